//! A pool of threads that share the pieces of one operation and sleep between operations.
//!
//! The calling thread computes too. Pieces are claimed one by one from an atomic counter, so a thread that
//! loses its core holds up nobody beyond the piece in its hands: whoever has not joined an operation by the
//! time its last piece is claimed is not waited for. A thread without work watches for the next operation for
//! some microseconds (the operations of a decode step follow each other that closely), then sleeps until it is
//! woken; an idle pool uses no processor time.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::topology::Topology;
use crate::{Error, Result};

/// How long a thread watches for work before it sleeps: at most, and at least after watching in vain. Waking a
/// sleeper costs 5 to 50 microseconds, so watching longer than that cannot pay.
const WATCH_LONGEST: Duration = Duration::from_micros(50);
const WATCH_SHORTEST: Duration = Duration::from_micros(6);

/// Looks at the state between two looks at the clock.
const LOOKS: usize = 64;

/// More threads than any machine has cores.
const MOST_THREADS: usize = 1024;

/// The state word: the number of the job above, then whether it may be joined, then how many workers are in it.
const USERS: u64 = (1 << 16) - 1;
const OPEN: u64 = 1 << 16;
const JOB: u64 = 1 << 17;

/// Threads that compute one operation at a time, the calling thread among them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the thread that hands out pieces.
    caller: Mutex<()>,
}

/// Keeps two hot words out of one cache line (and out of one pair of lines, which some processors prefetch).
#[repr(align(128))]
struct Apart<T>(T);

struct Shared {
    state: Apart<AtomicU64>,
    /// The next piece to claim.
    next: Apart<AtomicUsize>,
    /// Written only while no job is open and no worker is in one.
    job: UnsafeCell<Job>,
    closing: AtomicBool,
    /// Workers asleep; whether the caller sleeps until the last worker has left its job.
    sleepers: AtomicUsize,
    caller_sleeps: AtomicBool,
    sleep: Mutex<()>,
    work: Condvar,
    done: Condvar,
    /// What the first panicking piece of the job threw.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A closure on the caller's stack, its type erased.
#[derive(Clone, Copy)]
struct Job {
    call: unsafe fn(*const (), usize),
    piece: *const (),
    pieces: usize,
}

// SAFETY: `job` is the only field that is not Sync by itself. It is written by the holder of `Pool::caller` while
// the state word is closed with no users, and read by workers that have joined an open job (acquire on the state
// word, after the caller's release); the caller closes the job and waits for all users before it returns or writes
// again. The closure behind `piece` is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the raw pointer in `job` is dead whenever no job is open.
unsafe impl Send for Shared {}

unsafe fn call_piece<F: Fn(usize) + Sync>(piece: *const (), index: usize) {
    // SAFETY: `for_each` made the pointer from a `&F` that it keeps alive until every user has left the job.
    let piece = unsafe { &*piece.cast::<F>() };
    piece(index);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Pool {
    /// Starts `threads - 1` workers; `None` for one thread a physical core.
    ///
    /// # Errors
    /// [`Error::Option`] for an impossible number, or when the system will not start that many.
    pub(crate) fn new(threads: Option<usize>) -> Result<Self> {
        let threads = match threads {
            Some(0) => {
                return Err(Error::Option { what: "0 threads cannot compute; ask for at least 1".into() });
            }
            Some(threads) if threads > MOST_THREADS => {
                return Err(Error::Option {
                    what: format!("{threads} threads are too many; ask for at most {MOST_THREADS}"),
                });
            }
            Some(threads) => threads,
            None => Topology::here().default_threads().min(MOST_THREADS),
        };
        let shared = Arc::new(Shared::new());
        let mut pool = Self { shared, workers: Vec::new(), caller: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new()
                .name(format!("gruff-cpu-{index}"))
                .spawn(move || shared.work())
                .map_err(|error| Error::Option {
                    what: format!(
                        "the system will not start {threads} threads ({error}); ask for fewer with --threads"
                    ),
                })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `piece(i)` once for every i in `0..pieces`, on any thread, in any order, and returns when all
    /// are done. A call from inside a piece, or while another thread's call is running, computes its pieces on
    /// the calling thread.
    ///
    /// # Panics
    /// With the payload of the first piece that panicked; pieces not yet claimed are then left out.
    pub(crate) fn for_each<F: Fn(usize) + Sync>(&self, pieces: usize, piece: F) {
        let Some(turn) = self.turn(pieces) else {
            return (0..pieces).for_each(piece);
        };
        let job = Job { call: call_piece::<F>, piece: (&raw const piece).cast(), pieces };
        self.shared.open(job);
        self.shared.claim(&job);
        self.shared.close();
        let thrown = lock(&self.shared.panic).take();
        drop(turn);
        if let Some(payload) = thrown {
            resume_unwind(payload);
        }
    }

    /// The right to hand out pieces, where there is somebody to share with and nobody else has it.
    fn turn(&self, pieces: usize) -> Option<MutexGuard<'_, ()>> {
        if pieces < 2 || self.workers.is_empty() {
            return None;
        }
        match self.caller.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches what pieces throw, so joining cannot fail; if it did, nothing is left to do here.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn new() -> Self {
        unsafe fn nothing(_: *const (), _: usize) {}
        Self {
            state: Apart(AtomicU64::new(0)),
            next: Apart(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { call: nothing, piece: std::ptr::null(), pieces: 0 }),
            closing: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            sleep: Mutex::new(()),
            work: Condvar::new(),
            done: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Publishes a job; the caller holds `Pool::caller`, so the state is closed and without users.
    fn open(&self, job: Job) {
        // SAFETY: closed and without users: no worker reads the job (see `Sync`).
        unsafe { *self.job.get() = job };
        self.next.0.store(0, Ordering::Relaxed);
        let number = self.state.0.load(Ordering::Relaxed) & !(OPEN | USERS);
        self.state.0.store(number.wrapping_add(JOB) | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.work.notify_all();
        }
    }

    /// Computes pieces until none is left to claim.
    fn claim(&self, job: &Job) {
        let computed = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let index = self.next.0.fetch_add(1, Ordering::Relaxed);
                if index >= job.pieces {
                    return;
                }
                // SAFETY: the closure lives until every user has left (see `Sync`).
                unsafe { (job.call)(job.piece, index) };
            }
        }));
        if let Err(payload) = computed {
            self.next.0.store(job.pieces, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }

    /// Lets nobody else in and waits for those who are.
    fn close(&self) {
        let mut users = self.state.0.fetch_and(!OPEN, Ordering::AcqRel) & USERS;
        let mut watch = Watch::new(WATCH_LONGEST);
        while users != 0 && watch.goes_on() {
            users = self.state.0.load(Ordering::Acquire) & USERS;
        }
        if users == 0 {
            return;
        }
        let mut guard = lock(&self.sleep);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while self.state.0.load(Ordering::SeqCst) & USERS != 0 {
            guard = self.done.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// A worker's life.
    fn work(&self) {
        let mut last = 0;
        let mut patience = WATCH_LONGEST;
        while let Some(state) = self.next_job(last, &mut patience) {
            last = state & !(OPEN | USERS);
            if self.state.0.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // Somebody else joined or the caller closed: look again.
                last = last.wrapping_sub(JOB);
                continue;
            }
            // SAFETY: joined an open job (see `Sync`).
            let job = unsafe { *self.job.get() };
            self.claim(&job);
            let before = self.state.0.fetch_sub(1, Ordering::SeqCst);
            if before & USERS == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
                drop(lock(&self.sleep));
                self.done.notify_one();
            }
        }
    }

    /// The state with an open job other than `last`, watching first and sleeping then; `None` when the pool goes.
    fn next_job(&self, last: u64, patience: &mut Duration) -> Option<u64> {
        let fresh = |state: u64| state & OPEN != 0 && state & !(OPEN | USERS) != last;
        let mut watch = Watch::new(*patience);
        loop {
            let state = self.state.0.load(Ordering::Acquire);
            if fresh(state) {
                *patience = (*patience * 2).min(WATCH_LONGEST);
                return Some(state);
            }
            if !watch.goes_on() {
                break;
            }
        }
        *patience = (*patience / 2).max(WATCH_SHORTEST);
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            // Read after `sleepers` was raised: either this sees the job, or its caller sees the sleeper.
            let state = self.state.0.load(Ordering::SeqCst);
            if fresh(state) {
                break Some(state);
            }
            if self.closing.load(Ordering::SeqCst) {
                break None;
            }
            guard = self.work.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

/// A bounded busy wait.
struct Watch {
    until: Option<Instant>,
    patience: Duration,
    looks: usize,
}

impl Watch {
    fn new(patience: Duration) -> Self {
        Self { until: None, patience, looks: 0 }
    }

    /// Whether to look once more.
    fn goes_on(&mut self) -> bool {
        std::hint::spin_loop();
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS) {
            return true;
        }
        let now = Instant::now();
        now < *self.until.get_or_insert(now + self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_called_once() {
        for count in [1, 2, 3, 7] {
            let pool = Pool::new(Some(count)).unwrap();
            assert_eq!(pool.threads(), count);
            for pieces in [0, 1, 2, 5, 100] {
                for _ in 0..200 {
                    let calls: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                    pool.for_each(pieces, |i| {
                        calls[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(Some(3)).unwrap();
        let sum = AtomicUsize::new(0);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            pool.for_each(10, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 20 * 45);
    }

    #[test]
    fn a_caller_waits_for_long_pieces() {
        let pool = Pool::new(Some(2)).unwrap();
        let done = AtomicUsize::new(0);
        pool.for_each(4, |i| {
            std::thread::sleep(Duration::from_millis(i as u64));
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 4);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(Some(3)).unwrap();
        for _ in 0..20 {
            let thrown = catch_unwind(AssertUnwindSafe(|| {
                pool.for_each(50, |i| {
                    if i == 17 {
                        resume_unwind(Box::new("piece 17"));
                    }
                });
            }));
            assert_eq!(*thrown.unwrap_err().downcast::<&str>().unwrap(), "piece 17");
        }
        let sum = AtomicUsize::new(0);
        pool.for_each(4, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 6);
    }

    #[test]
    fn nested_and_concurrent_calls_compute_too() {
        let pool = Pool::new(Some(2)).unwrap();
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.for_each(3, |_| {
                            pool.for_each(2, |i| {
                                sum.fetch_add(i, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 100 * 3);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        assert!(Pool::new(Some(0)).is_err());
        assert!(Pool::new(Some(usize::MAX)).is_err());
        assert!(Pool::new(None).unwrap().threads() >= 1);
    }
}
