//! The driver: one card, its primary context and one stream.

use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::aside::Aside;
use super::clock;
use super::error::{CudaError, LEAST_CAPABILITY, LEAST_DRIVER, lasts, words};
use super::peer::Meeting;
use super::phase::Phase;
use super::pinned::Page;
use super::staging::Staging;
use crate::{Error, Result};

/// A card with its context and the stream that everything runs on, in order.
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// Where operations are put to be recorded; nothing runs on it.
    recorder: sys::CUstream,
    /// Copies to the card that are under way.
    pub(super) staging: Staging,
    /// Where other cards wait for this one.
    meeting: Meeting,
    pub(crate) card: Card,
    /// The first fault that every later call meets again.
    lost: OnceLock<String>,
    pub(super) clock: clock::State,
    /// Through this, larger copies to the host go.
    pub(super) reading: Mutex<Option<Page>>,
    /// What large copies to the host that nobody waits for are made with.
    pub(super) aside: Mutex<Option<Aside>>,
}

/// What is known of a card.
#[derive(Clone, Debug)]
pub struct Card {
    /// The number behind `cuda:`.
    pub ordinal: usize,
    /// The vendor's name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of shared memory that a block may ask for.
    pub shared_bytes: usize,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// The driver's CUDA version: 13000 is 13.0.
    pub driver: i32,
}

impl Card {
    /// The name that the compiler has for it: `sm_86`; `sm_90a` where instructions belong to one architecture alone.
    pub fn arch(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if (major, minor) == (9, 0) { "a" } else { "" })
    }
}

// SAFETY: contexts and streams may be used from any thread; each use makes the context current first.
unsafe impl Send for Context {}
// SAFETY: as above; a device runs one operation at a time.
unsafe impl Sync for Context {}

/// Initialises the driver and returns its version.
pub(crate) fn start() -> Result<i32, CudaError> {
    // SAFETY: looks for a library by name.
    if !unsafe { sys::is_culib_present() } {
        let what = if cfg!(windows) { "nvcuda.dll is not there" } else { "libcuda.so.1 is not there" };
        return Err(CudaError::NoDriver { what: what.into(), broken: false });
    }
    // A name that is missing ends the program where it is called: these are asked of whatever bears the library's name.
    for name in ["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"] {
        // SAFETY: looks for a function by name and calls nothing; the type is that of any function's address.
        if unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err() {
            return Err(CudaError::NoDriver { what: format!("the library has no {name}"), broken: true });
        }
    }
    let broken = |error: DriverError| CudaError::NoDriver {
        what: words(error),
        broken: error.0 != sys::CUresult::CUDA_ERROR_NO_DEVICE,
    };
    result::init().map_err(broken)?;
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(broken)?;
    if version < LEAST_DRIVER {
        return Err(CudaError::OldDriver { found: version });
    }
    Ok(version)
}

/// The cards that the driver shows.
///
/// # Errors
/// [`CudaError`] without a driver, or with one that is too old.
pub fn cards() -> Result<Vec<Card>, CudaError> {
    let driver = start()?;
    (0..count()?).map(|ordinal| card(ordinal, driver)).collect()
}

fn count() -> Result<usize, CudaError> {
    let count = result::device::get_count()
        .map_err(|error| CudaError::NoDriver { what: words(error), broken: true })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

fn card(ordinal: usize, driver: i32) -> Result<Card, CudaError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let fail = |error: DriverError| CudaError::Call {
        call: "asking for the card".into(),
        device: format!("cuda:{ordinal}"),
        fault: words(error),
    };
    let device = result::device::get(ordinal as i32).map_err(fail)?;
    // SAFETY: the device was just got.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.map_err(fail);
    Ok(Card {
        ordinal,
        name: result::device::get_name(device).map_err(fail)?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as usize,
        shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?.max(0)
            as usize,
        // SAFETY: the device was just got.
        memory_bytes: unsafe { result::device::total_mem(device) }.map_err(fail)?,
        driver,
    })
}

impl Context {
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let driver = start()?;
        let count = count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let card = card(ordinal, driver)?;
        if card.capability < LEAST_CAPABILITY {
            return Err(CudaError::OldDevice { name: card.name, capability: card.capability });
        }
        let fail = |call: &str, error: DriverError| CudaError::Call {
            call: call.to_owned(),
            device: format!("cuda:{ordinal}"),
            fault: words(error),
        };
        let device = result::device::get(ordinal as i32).map_err(|error| fail("opening", error))?;
        // SAFETY: the device was just got; the context is released on drop.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(|error| fail("opening", error))?;
        let none = std::ptr::null_mut();
        let mut opened = Self {
            device,
            context,
            stream: none,
            recorder: none,
            staging: Staging::default(),
            meeting: Meeting::default(),
            card,
            lost: OnceLock::new(),
            clock: clock::State::default(),
            reading: Mutex::default(),
            aside: Mutex::default(),
        };
        opened.make_current().map_err(|error| fail("opening", error))?;
        for stream in [&mut opened.stream, &mut opened.recorder] {
            *stream = result::stream::create(result::stream::StreamKind::NonBlocking)
                .map_err(|error| fail("making a stream", error))?;
        }
        Ok(Arc::new(opened))
    }

    fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained while this lives.
        unsafe { result::ctx::set_current(self.context) }
    }

    /// The stream that everything runs on.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// The driver's handle.
    pub(super) fn handle(&self) -> sys::CUcontext {
        self.context
    }

    /// Where other cards wait for this one.
    pub(super) fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    /// The stream that recordings are made on.
    pub(crate) fn recorder(&self) -> sys::CUstream {
        self.recorder
    }

    /// The stream for this thread's kernels: they run, or are recorded.
    pub(crate) fn kernel_stream(&self) -> sys::CUstream {
        if self.phase() == Phase::Recording { self.recorder } else { self.stream }
    }

    /// Makes the context current, makes a call, and names the call in its error.
    pub(crate) fn call<T>(
        &self,
        what: impl Fn() -> String,
        call: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T> {
        self.make_current().and_then(|()| call()).map_err(|error| {
            let fault = words(error);
            let lasting = lasts(&fault);
            let error = CudaError::Call {
                call: what(),
                device: format!("cuda:{} ({})", self.card.ordinal, self.card.name),
                fault,
            };
            if lasting {
                self.lost.get_or_init(|| error.to_string());
            }
            Error::Cuda(error)
        })
    }

    /// What happened to the card, if nothing can be computed on it any more.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Notes that nothing can be computed on the card any more.
    #[cfg(feature = "nccl")]
    pub(super) fn lose(&self, why: String) {
        self.lost.get_or_init(|| why);
    }

    /// Waits for everything that was launched.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.clock.release();
        // SAFETY: the stream lives as long as this.
        self.call(|| "waiting for kernels".into(), || unsafe { result::stream::synchronize(self.stream) })
    }

    /// Bytes of memory that are free.
    pub(crate) fn free_bytes(&self) -> Option<usize> {
        self.call(|| "asking for free memory".into(), result::mem_get_info).ok().map(|(free, _)| free)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nothing can be done about a fault here: the process ends or the device was lost.
        let _ = self.make_current();
        self.clock.release();
        for stream in [self.stream, self.recorder] {
            if !stream.is_null() {
                // SAFETY: created in `open`; nobody uses it any more.
                let _ = unsafe { result::stream::synchronize(stream) };
                // SAFETY: as above.
                let _ = unsafe { result::stream::destroy(stream) };
            }
        }
        self.drop_staging();
        self.clock.end();
        let reading = self.reading.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(page) = reading {
            // SAFETY: whoever copies to it waits.
            unsafe { page.free() };
        }
        let aside = self.aside.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(aside) = aside {
            aside.destroy();
        }
        self.meeting.destroy();
        // SAFETY: retained in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
