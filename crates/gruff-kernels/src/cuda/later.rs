//! Copies to the host that nobody waits for yet: into page-locked memory, with an event behind them.

use std::sync::{Arc, Mutex};

use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;

use super::driver::Context;
use super::pinned::Pinned;
use crate::Result;
use crate::later::Coming;

/// The least memory that is taken for a copy.
const LEAST_BYTES: usize = 256;

/// Page-locked memory, used again and again.
#[derive(Default)]
pub(crate) struct Landings {
    free: Mutex<Vec<Pinned>>,
}

/// A copy on its way.
struct Flight {
    landings: Arc<Landings>,
    landing: Option<Pinned>,
    values: usize,
}

impl Landings {
    /// Has `values` integers copied from `source` behind what is on the stream.
    pub(super) fn copy(
        self: &Arc<Self>,
        context: &Arc<Context>,
        source: CUdeviceptr,
        values: usize,
    ) -> Result<Box<dyn Coming<i32>>> {
        let bytes = 4 * values;
        let known = {
            let mut free = self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let fits = free.iter().position(|landing| landing.page.bytes() >= bytes);
            fits.map(|at| free.swap_remove(at))
        };
        let mut landing = match known {
            Some(landing) => landing,
            None => Pinned::new(context, bytes.next_power_of_two().max(LEAST_BYTES))?,
        };
        context.clock.touch();
        let target = landing.page.slice_mut(bytes);
        context.call(
            || format!("copying {bytes} bytes out"),
            // SAFETY: nobody looks at the bytes before the event.
            || unsafe { result::memcpy_dtoh_async(target, source, context.stream()) },
        )?;
        landing.page.note(context)?;
        Ok(Box::new(Flight { landings: self.clone(), landing: Some(landing), values }))
    }
}

impl Flight {
    fn arrive(&mut self) -> Result<Vec<i32>> {
        let Some(landing) = self.landing.take() else { return Ok(Vec::new()) };
        landing.page.arrived(landing.context())?;
        let bytes = landing.page.slice(4 * self.values);
        let values = bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        self.landings.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(landing);
        Ok(values)
    }
}

impl Coming<i32> for Flight {
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
