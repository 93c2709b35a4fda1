//! Values on their way from a device to the host.

use crate::{DType, Error, Result, Tensor};

/// Integers that are being copied to the host; made by [`Tensor::read_later`].
#[must_use = "the values come from `wait`"]
pub struct Later(State);

enum State {
    Here(Vec<i32>),
    Coming(Box<dyn Coming>),
}

/// A copy that a device makes behind what it was told before.
pub(crate) trait Coming: Send {
    /// Waits for the copy.
    fn wait(self: Box<Self>) -> Result<Vec<i32>>;
}

impl Later {
    /// Waits for the values. What was launched behind the copy is not waited for.
    ///
    /// # Errors
    /// What the device says.
    pub fn wait(self) -> Result<Vec<i32>> {
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
        if self.dtype() != DType::I32 {
            return Err(Error::DType {
                op: "download",
                operand: "the tensor",
                found: self.dtype(),
                expected: DType::I32,
            });
        }
        if !self.is_contiguous() {
            return Err(Error::Shape { op: "download", what: format!("{:?} has gaps", self.shape()) });
        }
        let device = self.device().clone();
        let coming = device.exclusive(self.span_bytes(), || device.copy_later(self))?;
        Ok(Later(match coming {
            Some(coming) => State::Coming(coming),
            None => State::Here(self.to_vec_i32()?),
        }))
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
    }
}
