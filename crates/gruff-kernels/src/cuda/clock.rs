//! The time of operations by the card's own clock: events on the stream in front of an operation and behind each of its
//! kernels, read when somebody asks.
//!
//! Launching takes the host longer than many a kernel takes the card, so that the card would wait within operations. It is held
//! back until some operations are on the stream, and runs those without a gap. The hold ends by itself in any case, so that
//! a call that waits for the card without a word to this waits for a moment only.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use cudarc::driver::{result, sys};

use super::CudaDevice;
use super::driver::Context;
use super::phase::Phase;
use super::sources::Source;
use crate::Result;
use crate::profile::{Clock, Timed};

pub(crate) static CLOCK: Source =
    Source { name: "clock.cu", code: include_str!("clock.cu"), options: &[], variants: &[&[]] };

/// Events that are put on the stream before the card is let go: far fewer than launches that a driver takes without
/// waiting (1,024).
const HELD: usize = 200;

/// How long the card is held back at most.
const MOST_HELD: Duration = Duration::from_millis(50);

/// Events after which they are read, even if nobody has waited for the card.
const MOST_MARKS: usize = 1 << 14;

/// Launches of a kernel that does nothing, whose median counts.
const EMPTY_LAUNCHES: usize = 65;

/// What an event stands behind, or, the first of an operation, in front of.
#[derive(Clone, Copy)]
enum Mark {
    Begin,
    Kernel(&'static str),
    /// Copies, and what the host does meanwhile.
    Other,
    /// The end of waiting for another card, which is nobody's time.
    Waited,
}

struct Event(sys::CUevent);

// SAFETY: a handle into the driver, which takes it from any thread.
unsafe impl Send for Event {}

#[derive(Default)]
struct Book {
    /// In the stream's order.
    marks: Vec<(Mark, Event)>,
    free: Vec<Event>,
    timed: Vec<Timed>,
    /// Events since the card was last held back.
    since_hold: usize,
    /// What an empty kernel takes between two events, in milliseconds; part of every time that is read.
    empty: f64,
}

/// A card's account of time.
#[derive(Default)]
pub(super) struct State {
    on: AtomicBool,
    /// An operation is being timed.
    inside: AtomicBool,
    /// It has copied or cleared memory since its last event.
    touched: AtomicBool,
    /// Page-locked: the number up to which holds have ended.
    said: AtomicPtr<u32>,
    /// The number of the last hold.
    holds: AtomicU32,
    book: Mutex<Book>,
}

impl State {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether an operation is being timed: its kernels are then told apart, and run one after the other.
    pub(super) fn is_timing(&self) -> bool {
        self.on.load(Ordering::Relaxed) && self.inside.load(Ordering::Relaxed)
    }

    /// Notes that the operation does other things on the stream than launching kernels.
    pub(super) fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Lets the card go, if it is held back: somebody is about to wait for it.
    pub(super) fn release(&self) {
        let said = self.said.load(Ordering::Acquire);
        if !said.is_null() {
            // SAFETY: page-locked memory for one number, which lives as long as the context; the card only reads it.
            unsafe { said.write_volatile(self.holds.load(Ordering::Relaxed)) };
            self.book().since_hold = HELD;
        }
    }

    /// Gives everything back. The context is current and nothing runs on it any more.
    pub(super) fn end(&self) {
        let said = self.said.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !said.is_null() {
            // Nothing can be done about a fault here: the process ends or the device was lost.
            // SAFETY: taken in `switch`.
            let _ = unsafe { result::free_host(said.cast::<c_void>()) };
        }
        let book = std::mem::take(&mut *self.book());
        for Event(event) in book.free.into_iter().chain(book.marks.into_iter().map(|(_, event)| event)) {
            // SAFETY: made in `mark`.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

impl Context {
    /// Notes that a kernel was put on the stream, if that is asked for.
    pub(super) fn launched(&self, kernel: &'static str) {
        if self.clock.is_timing() && self.phase() == Phase::Running {
            self.clock.touched.store(false, Ordering::Relaxed);
            self.mark(Mark::Kernel(kernel));
        }
    }

    /// Notes that what stands on the stream in front of this, within an operation, has been waiting for another card.
    pub(super) fn waited(&self) {
        if self.clock.is_timing() && self.phase() == Phase::Running {
            self.mark(Mark::Waited);
        }
    }

    /// Puts an event on the stream. Without one, times of the operation are not told: a card that is lost.
    fn mark(&self, mark: Mark) {
        let mut book = self.clock.book();
        let event = book.free.pop();
        let made = self.call(
            || "noting a time".into(),
            || {
                let event = match event {
                    Some(Event(event)) => event,
                    None => result::event::create(sys::CUevent_flags_enum::CU_EVENT_DEFAULT)?,
                };
                // SAFETY: the event was just made, or has been read; the stream lives as long as the context.
                unsafe { result::event::record(event, self.stream()) }.map(|()| Event(event))
            },
        );
        if let Ok(event) = made {
            book.marks.push((mark, event));
            book.since_hold += 1;
        }
    }

    /// Reads the events.
    fn read_marks(&self) -> Result<()> {
        self.synchronize()?;
        let mut book = self.clock.book();
        let Book { marks, free, timed, empty, .. } = &mut *book;
        let empty = *empty;
        let mut before: Option<Event> = None;
        for (mark, event) in marks.drain(..) {
            if matches!(mark, Mark::Begin) {
                timed.push(Timed::default());
            }
            let from = before.replace(event);
            let (Some(from), Some(to), Some(own)) = (from, &before, timed.last_mut()) else { continue };
            let elapsed = || {
                self.call(
                    || "reading times".into(),
                    // SAFETY: both were recorded on the stream, which was waited for.
                    || unsafe { result::event::elapsed(from.0, to.0) },
                )
            };
            let milliseconds = match mark {
                Mark::Begin | Mark::Waited => None,
                Mark::Kernel(_) => Some((f64::from(elapsed()?) - empty).max(0.0)),
                Mark::Other => Some(f64::from(elapsed()?)),
            };
            if let Some(milliseconds) = milliseconds {
                let name = if let Mark::Kernel(name) = mark { name } else { "" };
                own.parts.push((name, Duration::from_secs_f64(milliseconds / 1e3)));
            }
            free.push(from);
        }
        free.extend(before);
        Ok(())
    }
}

impl CudaDevice {
    /// Holds the card back from now on, until `release`.
    fn hold(&self) -> Result<()> {
        let state = &self.context().clock;
        let said = state.said.load(Ordering::Acquire);
        let number = state.holds.fetch_add(1, Ordering::Relaxed) + 1;
        self.launch(&CLOCK, &[], "hold")?
            .arg(said as u64)
            .arg(number)
            .arg(MOST_HELD.as_nanos() as u64)
            .block(1)
            .run()?;
        state.book().since_hold = 0;
        Ok(())
    }

    /// Takes what is needed, and measures what an event and an empty kernel take.
    fn set_clock(&self) -> Result<()> {
        let context = self.context();
        let state = &context.clock;
        if state.said.load(Ordering::Acquire).is_null() {
            let memory = context.call(
                || "taking page-locked memory".into(),
                // SAFETY: given back in `end`; a number of holds that have ended is written before anybody reads it.
                || unsafe {
                    let memory = result::malloc_host(size_of::<u32>(), 0)?.cast::<u32>();
                    memory.write_volatile(state.holds.load(Ordering::Relaxed));
                    Ok(memory)
                },
            )?;
            state.said.store(memory, Ordering::Release);
        }
        // Loaded and run once before they are measured.
        self.launch(&CLOCK, &[], "nothing")?.run()?;
        self.hold()?;
        context.mark(Mark::Begin);
        for _ in 0..EMPTY_LAUNCHES {
            self.launch(&CLOCK, &[], "nothing")?.run()?;
            context.mark(Mark::Kernel("nothing"));
        }
        state.book().empty = 0.0;
        context.read_marks()?;
        let mut book = state.book();
        let mut times: Vec<f64> = std::mem::take(&mut book.timed)
            .iter()
            .flat_map(|timed| timed.parts.iter().map(|(_, time)| time.as_secs_f64() * 1e3))
            .collect();
        times.sort_by(f64::total_cmp);
        book.empty = times.get(times.len() / 2).copied().unwrap_or(0.0);
        Ok(())
    }
}

impl Clock for CudaDevice {
    fn switch(&self, on: bool) -> Result<()> {
        let state = &self.context().clock;
        state.on.store(false, Ordering::Relaxed);
        self.context().read_marks()?;
        state.book().timed.clear();
        if on {
            self.set_clock()?;
            state.on.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn begin(&self) -> bool {
        let context = self.context();
        let state = &context.clock;
        if context.phase() != Phase::Running {
            return false;
        }
        let (since_hold, marks) = {
            let book = state.book();
            (book.since_hold, book.marks.len())
        };
        // Faults show in the operation.
        if marks >= MOST_MARKS {
            let _ = context.read_marks();
        }
        if since_hold >= HELD {
            state.release();
            let _ = self.hold();
        }
        context.mark(Mark::Begin);
        state.touched.store(false, Ordering::Relaxed);
        state.inside.store(true, Ordering::Relaxed);
        true
    }

    fn end(&self) {
        let state = &self.context().clock;
        if state.is_timing() && state.touched.load(Ordering::Relaxed) {
            self.context().mark(Mark::Other);
        }
        state.inside.store(false, Ordering::Relaxed);
    }

    fn read(&self) -> Result<Vec<Timed>> {
        self.context().read_marks()?;
        Ok(std::mem::take(&mut self.context().clock.book().timed))
    }

    fn empty(&self) -> Duration {
        Duration::from_secs_f64(self.context().clock.book().empty / 1e3)
    }
}
