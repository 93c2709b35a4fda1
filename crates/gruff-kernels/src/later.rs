//! Values on their way from a device to the host.

use std::fmt;

use crate::{DType, Error, Result, Tensor};

/// Values that are being copied to the host; made by [`Tensor::read_later`] and [`Tensor::read_aside`].
#[must_use = "the values come from `wait`"]
pub struct Later<T = i32>(State<T>);

enum State<T> {
    Here(Vec<T>),
    Coming(Box<dyn Coming<T>>),
}

impl<T> fmt::Debug for Later<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Here(_) => "Later(here)",
            State::Coming(_) => "Later(coming)",
        })
    }
}

/// A copy that a device makes behind what it was told before.
pub(crate) trait Coming<T>: Send {
    /// Waits for the copy.
    fn wait(self: Box<Self>) -> Result<Vec<T>>;
}

impl<T> From<Vec<T>> for Later<T> {
    /// Values that are here.
    fn from(values: Vec<T>) -> Self {
        Self(State::Here(values))
    }
}

impl<T> Later<T> {
    /// Waits for the values. What was launched behind the copy is not waited for.
    ///
    /// # Errors
    /// What the device says.
    pub fn wait(self) -> Result<Vec<T>> {
        match self.0 {
            State::Here(values) => Ok(values),
            State::Coming(coming) => coming.wait(),
        }
    }
}

impl Tensor {
    /// Has the values copied to the host as they are behind the operations called so far, without waiting. Devices that
    /// compute while they are called copy at once.
    ///
    /// # Errors
    /// [`Error::DType`] for other than integer tensors, [`Error::Shape`] for one with gaps; what the device says.
    pub fn read_later(&self) -> Result<Later> {
        self.check_later(DType::I32)?;
        let device = self.device().clone();
        let coming = device.exclusive(self.span_bytes(), || device.copy_later(self))?;
        Ok(Later(match coming {
            Some(coming) => State::Coming(coming),
            None => State::Here(self.to_vec_i32()?),
        }))
    }

    /// Has many values copied to the host as they are behind the operations called so far, by a thread and beside what the
    /// device does next. **They must not be written before they have come.** Devices that compute while they are called copy
    /// at once.
    ///
    /// # Errors
    /// [`Error::DType`] for other than f32 tensors, [`Error::Shape`] for one with gaps; what the device says.
    pub fn read_aside(&self) -> Result<Later<f32>> {
        self.check_later(DType::F32)?;
        let device = self.device().clone();
        let coming = device.exclusive(self.span_bytes(), || device.copy_aside(self))?;
        Ok(Later(match coming {
            Some(coming) => State::Coming(coming),
            None => State::Here(self.to_vec_f32()?),
        }))
    }

    fn check_later(&self, expected: DType) -> Result<()> {
        if self.dtype() != expected {
            let (op, operand) = ("download", "the tensor");
            return Err(Error::DType { op, operand, found: self.dtype(), expected });
        }
        if !self.is_contiguous() {
            return Err(Error::Shape { op: "download", what: format!("{:?} has gaps", self.shape()) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activations, Device};

    #[test]
    fn values_are_those_of_the_call() {
        let device = Device::reference(Activations::F32);
        let tensor = device.tensor_i32(&[3, -1, 7], &[3]).unwrap();
        let later = tensor.read_later().unwrap();
        tensor.write_i32(&[0, 0, 0]).unwrap();
        assert_eq!(later.wait().unwrap(), [3, -1, 7]);
        let floats = device.zeros(DType::F32, &[2]).unwrap();
        assert!(matches!(floats.read_later(), Err(Error::DType { .. })));
        let gaps = device.tensor_i32(&[1, 2, 3, 4], &[2, 2]).unwrap().narrow(1, 0, 1).unwrap();
        assert!(matches!(gaps.read_later(), Err(Error::Shape { .. })));
        let many = device.tensor_f32(&[1.5, -2.0], &[2]).unwrap();
        assert_eq!(many.read_aside().unwrap().wait().unwrap(), [1.5, -2.0]);
        assert!(matches!(tensor.read_aside(), Err(Error::DType { .. })));
    }
}
