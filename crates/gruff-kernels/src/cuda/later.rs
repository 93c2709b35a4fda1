//! Copies to the host that nobody waits for yet: into page-locked memory, with an event behind them.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr};

use super::driver::Context;
use crate::Result;
use crate::later::Coming;

/// Page-locked memory and events, used again and again.
#[derive(Default)]
pub(crate) struct Landings {
    free: Mutex<Vec<Landing>>,
}

/// A place where a copy arrives.
struct Landing {
    context: Arc<Context>,
    memory: *mut c_void,
    bytes: usize,
    event: sys::CUevent,
}

// SAFETY: memory of its own and a handle into the driver, which takes it from any thread.
unsafe impl Send for Landing {}

impl Landing {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let bytes = bytes.next_power_of_two().max(256);
        context.call(
            || format!("taking {bytes} bytes of page-locked memory"),
            || {
                // SAFETY: given back on drop; written by copies, read behind them only.
                let memory = unsafe { result::malloc_host(bytes, 0) }?;
                let mut landing =
                    Self { context: context.clone(), memory, bytes, event: std::ptr::null_mut() };
                landing.event = result::event::create(sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING)?;
                Ok(landing)
            },
        )
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let Self { memory, event, .. } = *self;
        // Nothing can be done about a fault here: the process ends or the device was lost.
        // SAFETY: made in `new`; no copy is on its way to it any more.
        let _ = self.context.call(
            || "giving memory back".into(),
            || unsafe {
                if !event.is_null() {
                    result::event::destroy(event)?;
                }
                result::free_host(memory)
            },
        );
    }
}

/// A copy on its way.
struct Flight {
    landings: Arc<Landings>,
    landing: Option<Landing>,
    values: usize,
}

impl Landings {
    /// Has `values` integers copied from `source` behind what is on the stream.
    pub(super) fn copy(
        self: &Arc<Self>,
        context: &Arc<Context>,
        source: CUdeviceptr,
        values: usize,
    ) -> Result<Box<dyn Coming>> {
        let bytes = 4 * values;
        let known = {
            let mut free = self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let fits = free.iter().position(|landing| landing.bytes >= bytes);
            fits.map(|at| free.swap_remove(at))
        };
        let landing = match known {
            Some(landing) => landing,
            None => Landing::new(context, bytes)?,
        };
        context.clock.touch();
        context.call(
            || format!("copying {bytes} bytes out"),
            // SAFETY: there is room for the bytes, which nobody looks at before the event.
            || unsafe {
                let target = std::slice::from_raw_parts_mut(landing.memory.cast::<u8>(), bytes);
                result::memcpy_dtoh_async(target, source, context.stream())?;
                result::event::record(landing.event, context.stream())
            },
        )?;
        Ok(Box::new(Flight { landings: self.clone(), landing: Some(landing), values }))
    }
}

impl Flight {
    fn arrive(&mut self) -> Result<Vec<i32>> {
        let Some(landing) = self.landing.take() else { return Ok(Vec::new()) };
        landing.context.clock.release();
        landing.context.call(
            || "waiting for ids".into(),
            // SAFETY: the event was recorded behind the copy.
            || unsafe { sys::cuEventSynchronize(landing.event).result() },
        )?;
        // SAFETY: the copy is complete; memory from the driver is aligned for pages.
        let values =
            unsafe { std::slice::from_raw_parts(landing.memory.cast::<i32>(), self.values) }.to_vec();
        self.landings.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(landing);
        Ok(values)
    }
}

impl Coming for Flight {
    fn wait(mut self: Box<Self>) -> Result<Vec<i32>> {
        self.arrive()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Its place must not be used again before the copy has arrived. A fault shows in the next operation.
        let _ = self.arrive();
    }
}
