//! NCCL, NVIDIA's library for what several cards do together: where it is found, its few functions, and the communicators of
//! the cards of one process.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::driver::Context;
use super::error::CudaError;
use super::libraries::Wanted;
use super::{CudaDevice, pointer};
use crate::{Result, Tensor};

type Comm = *mut c_void;
type Status = c_int;

/// `ncclSuccess`.
const SUCCESS: Status = 0;
/// `ncclInProgress`: no fault.
const IN_PROGRESS: Status = 7;
/// `ncclFloat32`.
const FLOAT32: c_int = 7;
/// `ncclSum`.
const SUM: c_int = 0;

/// The library, loaded.
pub(crate) struct Nccl {
    path: String,
    functions: Functions,
    /// Keeps the functions where they are.
    _library: Library,
}

struct Functions {
    version: unsafe extern "C" fn(*mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    /// From 2.13 on.
    last_error: Option<unsafe extern "C" fn(Comm) -> *const c_char>,
    init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> Status,
    destroy: unsafe extern "C" fn(Comm) -> Status,
    abort: unsafe extern "C" fn(Comm) -> Status,
    async_error: unsafe extern "C" fn(Comm, *mut Status) -> Status,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> Status,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> Status,
}

impl Nccl {
    /// Looks for the library: `GRUFF_NCCL`, the system's search path, CUDA toolkits, Python environments.
    ///
    /// # Errors
    /// [`CudaError::NoNccl`] when it is not found.
    pub(crate) fn find() -> Result<Self, CudaError> {
        let names = ["libnccl.so.2".to_owned()];
        let wanted = Wanted { variable: "GRUFF_NCCL", names: &names, wheels: &["nvidia/nccl/lib"] };
        let found = wanted.find(|path| Self::load(path).map_err(|_| String::new()));
        found.map_err(|tried| CudaError::NoNccl { tried })
    }

    fn load(path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: NVIDIA's library runs no code of consequence when loaded; its functions have these types (nccl.h).
        unsafe {
            let library = Library::new(path)?;
            let functions = Functions {
                version: *library.get(c"ncclGetVersion")?,
                error_string: *library.get(c"ncclGetErrorString")?,
                last_error: library.get(c"ncclGetLastError").ok().map(|function| *function),
                init_all: *library.get(c"ncclCommInitAll")?,
                destroy: *library.get(c"ncclCommDestroy")?,
                abort: *library.get(c"ncclCommAbort")?,
                async_error: *library.get(c"ncclCommGetAsyncError")?,
                group_start: *library.get(c"ncclGroupStart")?,
                group_end: *library.get(c"ncclGroupEnd")?,
                all_reduce: *library.get(c"ncclAllReduce")?,
                all_gather: *library.get(c"ncclAllGather")?,
            };
            Ok(Self { path: path.display().to_string(), functions, _library: library })
        }
    }

    /// Where it was found.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Its version: 2.27.3 is 22703.
    pub(crate) fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: writes one number.
        unsafe { (self.functions.version)(&mut version) };
        version
    }

    /// What a status means, if it is a fault.
    fn check(&self, call: &str, status: Status, comm: Comm) -> Result<(), CudaError> {
        if status == SUCCESS || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: returns a static string for every number.
        let mut fault = text(unsafe { (self.functions.error_string)(status) })
            .unwrap_or_else(|| format!("error {status}"));
        // SAFETY: takes null, and communicators that live; returns a string of the library's own.
        let last = self.functions.last_error.and_then(|last| text(unsafe { last(comm) }));
        if let Some(last) = last.filter(|last| !last.trim().is_empty()) {
            fault = format!("{fault} ({})", last.trim());
        }
        Err(CudaError::Nccl { call: call.to_owned(), fault })
    }
}

fn text(words: *const c_char) -> Option<String> {
    // SAFETY: a string that ends with zero, read at once.
    (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

/// Held while an operation is put on its streams: cards that two models share meet their operations in the same order.
static LAUNCHING: Mutex<()> = Mutex::new(());

/// The communicators of cards of this process, one a card, in the order of their ranks.
pub(crate) struct Communicators {
    nccl: Nccl,
    comms: Vec<Comm>,
    contexts: Vec<Arc<Context>>,
    /// The fault after which nothing can be done together any more.
    broken: OnceLock<String>,
}

// SAFETY: communicators may be used from any thread, one call at a time, which the ranks' meeting sees to.
unsafe impl Send for Communicators {}
// SAFETY: as above.
unsafe impl Sync for Communicators {}

impl Communicators {
    pub(crate) fn new(cards: &[&CudaDevice]) -> Result<Self> {
        let nccl = Nccl::find()?;
        let contexts: Vec<Arc<Context>> = cards.iter().map(|card| card.context().clone()).collect();
        let ordinals: Vec<c_int> = contexts.iter().map(|context| context.card.ordinal as c_int).collect();
        let mut comms = vec![std::ptr::null_mut(); cards.len()];
        // SAFETY: as many communicators are written as numbers are read.
        let status = unsafe {
            (nccl.functions.init_all)(comms.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr())
        };
        nccl.check(&format!("connecting the cards {ordinals:?}"), status, std::ptr::null_mut())?;
        Ok(Self { nccl, comms, contexts, broken: OnceLock::new() })
    }

    /// Puts the sum of all cards' values in the place of each one's.
    pub(crate) fn all_reduce(&self, tensors: &[&Tensor]) -> Result<()> {
        self.group("all-reduce", |rank, comm, stream| {
            let (at, count) = (pointer(tensors[rank]), tensors[rank].len());
            // SAFETY: the tensor has as many values, on the card of this communicator and stream (checked by the caller),
            // and its memory is used again behind this on the stream only.
            unsafe {
                (self.nccl.functions.all_reduce)(
                    at as *const c_void,
                    at as *mut c_void,
                    count,
                    FLOAT32,
                    SUM,
                    comm,
                    stream,
                )
            }
        })
    }

    /// Puts all cards' parts one behind the other, on each.
    pub(crate) fn all_gather(&self, parts: &[&Tensor], wholes: &[&Tensor]) -> Result<()> {
        self.group("all-gather", |rank, comm, stream| {
            let (from, to, count) = (pointer(parts[rank]), pointer(wholes[rank]), parts[rank].len());
            // SAFETY: as above; the whole has room for all parts (checked by the caller).
            unsafe {
                (self.nccl.functions.all_gather)(
                    from as *const c_void,
                    to as *mut c_void,
                    count,
                    FLOAT32,
                    comm,
                    stream,
                )
            }
        })
    }

    /// Puts one operation on the streams of all cards.
    fn group(&self, call: &str, operation: impl Fn(usize, Comm, CUstream) -> Status) -> Result<()> {
        if let Some(fault) = self.broken.get() {
            return Err(CudaError::Nccl { call: call.to_owned(), fault: fault.clone() }.into());
        }
        for context in &self.contexts {
            // One waits for the other: none is to be held back for its profile.
            context.clock.touch();
            context.clock.release();
        }
        let _launching = LAUNCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let put = || -> Result<(), CudaError> {
            let null = std::ptr::null_mut();
            for comm in &self.comms {
                let mut fault = SUCCESS;
                // SAFETY: the communicator lives; one number is written.
                let status = unsafe { (self.nccl.functions.async_error)(*comm, &mut fault) };
                self.nccl.check(call, if status == SUCCESS { fault } else { status }, *comm)?;
            }
            // SAFETY: ended below, whatever happens in between.
            self.nccl.check(call, unsafe { (self.nccl.functions.group_start)() }, null)?;
            let mut asked = Ok(());
            for (rank, (comm, context)) in self.comms.iter().zip(&self.contexts).enumerate() {
                asked = asked.and(self.nccl.check(call, operation(rank, *comm, context.stream()), *comm));
            }
            // SAFETY: begun above, on this thread.
            asked.and(self.nccl.check(call, unsafe { (self.nccl.functions.group_end)() }, null))
        };
        put().map_err(|error| {
            self.give_up(&error);
            error.into()
        })
    }

    /// Ends what the cards may be waiting for: some of them may have been given an operation that others were not.
    fn give_up(&self, error: &CudaError) {
        if let CudaError::Nccl { fault, .. } = error
            && self.broken.set(fault.clone()).is_ok()
        {
            for (comm, context) in self.comms.iter().zip(&self.contexts) {
                context.lose(error.to_string());
                // SAFETY: used by nobody any more: every later operation is refused.
                unsafe { (self.nccl.functions.abort)(*comm) };
            }
        }
    }
}

impl Drop for Communicators {
    fn drop(&mut self) {
        if self.broken.get().is_some() {
            return;
        }
        for context in &self.contexts {
            // A fault would have shown in an operation.
            let _ = context.synchronize();
        }
        for comm in &self.comms {
            // SAFETY: nothing of it runs any more, and nobody uses it.
            unsafe { (self.nccl.functions.destroy)(*comm) };
        }
    }
}
