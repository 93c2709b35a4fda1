use gruff_kernels::{Activation, Tensor, elementwise, norm};

use super::{Forward, Linear, RmsNorm};
use crate::Result;

/// What a block adds to the residual stream.
pub(crate) enum Branch<'a> {
    /// The block's last projection, not yet made.
    Linear {
        /// The block.
        name: &'a str,
        /// The projection's input.
        x: Tensor,
        /// The projection.
        projection: &'a Linear,
    },
    /// The block's output.
    Value(Tensor),
}

impl Branch<'_> {
    /// The block's output as a tensor.
    pub(crate) fn value(self, cx: &Forward) -> Result<Tensor> {
        match self {
            Branch::Value(value) => Ok(value),
            Branch::Linear { name, x, projection } => {
                let value = projection.forward(cx, &Activation::new(&x)?)?;
                cx.output(name, &value)?;
                Ok(value)
            }
        }
    }
}

/// The residual stream `[T, hidden]`.
pub(crate) struct Residual {
    x: Tensor,
    /// A branch that the next norm will add.
    pending: Option<Tensor>,
}

impl Residual {
    pub(crate) fn new(x: Tensor) -> Self {
        Self { x, pending: None }
    }

    /// Adds a branch: within its last projection where nobody looks in between, else with the next norm.
    pub(crate) fn add(&mut self, cx: &Forward, branch: Branch) -> Result<()> {
        self.flush()?;
        match branch {
            Branch::Linear { name, x, projection }
                if !projection.has_bias() && !cx.observes(name) && !cx.observes(projection.name()) =>
            {
                projection.add_to(cx, &Activation::new(&x)?, &self.x)?;
            }
            branch => self.pending = Some(branch.value(cx)?),
        }
        Ok(())
    }

    /// The stream, normalised.
    pub(crate) fn norm(&mut self, cx: &Forward, by: &RmsNorm) -> Result<Tensor> {
        let Some(delta) = self.pending.take() else { return by.forward(cx, &self.x) };
        let out = cx.scratch(self.x.shape())?;
        norm::add_rms_norm(&self.x, &delta, by.weight(), by.eps(), &out)?;
        cx.output(by.name(), &out)?;
        Ok(out)
    }

    /// The end of the layer `name`, whose output the stream is.
    pub(crate) fn end_layer(&mut self, cx: &Forward, name: &str) -> Result<()> {
        if cx.observes(name) {
            self.flush()?;
            cx.output(name, &self.x)?;
        }
        Ok(())
    }

    /// The rows that get logits.
    pub(crate) fn output_rows(mut self, cx: &Forward) -> Result<Residual> {
        let rows = cx.step.output_rows();
        if rows.iter().copied().eq(0..cx.tokens() as u32) {
            return Ok(self);
        }
        self.flush()?;
        let out = cx.scratch(&[rows.len(), self.x.shape()[1]])?;
        elementwise::gather_rows(&self.x, rows, &out)?;
        Ok(Residual::new(out))
    }

    fn flush(&mut self) -> Result<()> {
        match self.pending.take() {
            Some(delta) => Ok(elementwise::add(&self.x, &delta)?),
            None => Ok(()),
        }
    }
}
