//! Values that are here, or on their way from a device.

use std::fmt;
use std::sync::{Mutex, OnceLock};

use gruff_kernels::Later;

use crate::Result;

/// Values that somebody may be copying still.
pub(super) struct Values {
    here: OnceLock<Vec<f32>>,
    /// Their parts, one after the other.
    coming: Mutex<Vec<Later<f32>>>,
}

impl Values {
    pub(super) fn here(values: Vec<f32>) -> Self {
        Self { here: OnceLock::from(values), coming: Mutex::default() }
    }

    pub(super) fn coming(parts: Vec<Later<f32>>) -> Self {
        Self { here: OnceLock::new(), coming: Mutex::new(parts) }
    }

    /// Waits for them. After a fault there are none.
    pub(super) fn get(&self) -> Result<&[f32]> {
        if let Some(values) = self.here.get() {
            return Ok(values);
        }
        let mut coming = self.coming.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // All are waited for, whatever becomes of one.
        let parts: Vec<_> = coming.drain(..).map(Later::wait).collect();
        let mut all = Vec::new();
        for part in parts {
            let part = part?;
            if all.is_empty() {
                all = part;
            } else {
                all.extend(part);
            }
        }
        // Whoever waited for the lock finds what the first one has put there.
        Ok(self.here.get_or_init(|| all))
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.here.get() {
            Some(values) => write!(f, "{} values", values.len()),
            None => f.write_str("on their way"),
        }
    }
}
