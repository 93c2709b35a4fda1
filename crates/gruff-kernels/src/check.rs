//! Checks that every operation makes before it reaches a device.

use crate::device::Backend;
use crate::profile::Work;
use crate::{DType, Device, Error, Family, Result, Tensor};

/// An operation's name and device, to check operands against.
pub(crate) struct Check<'a> {
    op: &'static str,
    device: &'a Device,
}

impl<'a> Check<'a> {
    /// Starts the checks of `op`, which writes to `out`.
    pub(crate) fn new(op: &'static str, out: &'a Tensor) -> Result<Self> {
        if !out.buffer().writable() {
            return Err(Error::Alias { op, operand: "the output", fault: "is read-only memory" });
        }
        Ok(Self { op, device: out.device() })
    }

    /// Runs the checked operation; `work` says what it has to do, should anybody count.
    pub(crate) fn run<T>(
        &self,
        family: Family,
        work: impl FnOnce() -> Work,
        operation: impl FnOnce(&dyn Backend) -> T,
    ) -> T {
        self.device.run(family, self.op, work, operation)
    }

    /// The output's device, to be asked what it can do.
    pub(crate) fn backend(&self) -> &'a dyn Backend {
        self.device.backend()
    }

    /// The operand lives on the output's device.
    pub(crate) fn on_device(&self, operand: &'static str, device: &Device) -> Result<()> {
        if device.same(self.device) {
            return Ok(());
        }
        Err(Error::Device { op: self.op, operand, device: self.device.name().to_owned() })
    }

    /// The operand has this type, lives on the device and has this shape.
    pub(crate) fn tensor(
        &self,
        operand: &'static str,
        tensor: &Tensor,
        dtype: DType,
        shape: &[usize],
    ) -> Result<()> {
        self.on_device(operand, tensor.device())?;
        self.alike(operand, tensor, dtype, shape)
    }

    /// The operand has this type and this shape, wherever it lives.
    pub(crate) fn alike(
        &self,
        operand: &'static str,
        tensor: &Tensor,
        dtype: DType,
        shape: &[usize],
    ) -> Result<()> {
        if tensor.dtype() != dtype {
            return Err(Error::DType { op: self.op, operand, found: tensor.dtype(), expected: dtype });
        }
        self.that(tensor.shape() == shape, || {
            format!("{operand} is {:?}, but {shape:?} is needed", tensor.shape())
        })
    }

    /// The operand has this many dimensions.
    pub(crate) fn rank(&self, operand: &'static str, tensor: &Tensor, rank: usize) -> Result<()> {
        self.that(tensor.shape().len() == rank, || {
            format!("{operand} is {:?}, but {rank} dimensions are needed", tensor.shape())
        })
    }

    /// The two operands share no memory.
    pub(crate) fn disjoint(&self, operand: &'static str, out: &Tensor, input: &Tensor) -> Result<()> {
        if out.overlaps(input) {
            return Err(Error::Alias { op: self.op, operand, fault: "overlaps an input" });
        }
        Ok(())
    }

    /// The two operands share no memory, or are the very same view (element-wise operations in place).
    pub(crate) fn disjoint_or_same(&self, operand: &'static str, out: &Tensor, input: &Tensor) -> Result<()> {
        if out.same_view(input) { Ok(()) } else { self.disjoint(operand, out, input) }
    }

    /// Any other condition on shapes.
    pub(crate) fn that(&self, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
        if holds { Ok(()) } else { Err(Error::Shape { op: self.op, what: what() }) }
    }

    /// A condition on values.
    pub(crate) fn value(&self, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
        if holds { Ok(()) } else { Err(Error::Value { op: self.op, what: what() }) }
    }
}
