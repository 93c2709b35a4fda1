use gruff_kernels::{Activation, Device, Tensor, elementwise};

use super::{Forward, Linear, RmsNorm};
use crate::Result;

/// What a block adds to the residual stream.
pub(crate) enum Branch<'a> {
    /// The block's last projection, not yet made.
    Linear {
        /// The block.
        name: &'a str,
        /// The projection's input.
        x: Activation,
        /// The projection.
        projection: &'a Linear,
    },
    /// The block's output.
    Value(Tensor),
}

impl Branch<'_> {
    /// The block's output as a tensor; where matrices are shared out and the last projection is not yet made, a summand of it.
    pub(crate) fn value(self, cx: &Forward) -> Result<Tensor> {
        match self {
            Branch::Value(value) => Ok(value),
            Branch::Linear { name, x, projection } => {
                let value = projection.forward(cx, &x)?;
                cx.output(name, &value)?;
                Ok(value)
            }
        }
    }

    /// The block's whole output, wherever its parts are made.
    pub(crate) fn whole(self, cx: &Forward) -> Result<Tensor> {
        match self {
            Branch::Value(value) => Ok(value),
            part => cx.sum_of_ranks(part.value(cx)?),
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

    /// Carries the stream to `device`, where the pass goes on; says whether it came from another.
    pub(crate) fn enter<'a>(&mut self, cx: &Forward<'a>, device: &'a Device) -> Result<bool> {
        if cx.device().same(device) {
            return Ok(false);
        }
        if !cx.is_idle() {
            self.flush()?;
        }
        cx.go_to(device);
        self.x = cx.carry(&self.x)?;
        Ok(true)
    }

    /// Adds a branch: within its last projection where that is made in one place and nobody looks in between, else with the
    /// next norm.
    pub(crate) fn add(&mut self, cx: &Forward, branch: Branch) -> Result<()> {
        self.flush()?;
        match branch {
            Branch::Linear { name, x, projection }
                if !projection.has_bias()
                    && !cx.is_shared_out()
                    && !cx.observes(name)
                    && !cx.intervenes(projection.name()) =>
            {
                projection.add_to(cx, &x, &self.x)?;
            }
            branch => self.pending = Some(branch.whole(cx)?),
        }
        Ok(())
    }

    /// The stream, normalised, on its way to products.
    pub(crate) fn norm(&mut self, cx: &Forward, by: &RmsNorm) -> Result<Activation> {
        if cx.replacement(by.name()).is_some() {
            self.flush()?;
        }
        match self.pending.take() {
            Some(delta) => by.activation_of_sum(cx, &self.x, &delta),
            None => by.activation(cx, &self.x),
        }
    }

    /// The end of the layer `name`, whose output the stream is.
    pub(crate) fn end_layer(&mut self, cx: &Forward, name: &str) -> Result<()> {
        if cx.observes(name) {
            self.flush()?;
            cx.output(name, &self.x)?;
        }
        Ok(())
    }

    /// Lets the module that stands in for the layer `name` make the stream, where there is one.
    pub(crate) fn replaced(&mut self, cx: &Forward, name: &str) -> Result<bool> {
        if cx.replacement(name).is_none() {
            return Ok(false);
        }
        self.flush()?;
        if let Some(out) = cx.replaced(name, &self.x)? {
            self.x = out;
        }
        Ok(true)
    }

    /// Keeps the stream as it is now, where that is asked for.
    pub(crate) fn keep(&mut self, cx: &Forward) -> Result<()> {
        if !cx.keeps_hidden_states() {
            return Ok(());
        }
        self.flush()?;
        cx.keep_hidden_state(&self.x)
    }

    /// The rows that get logits, normalised. Where the normalised stream is kept, it is made of every token.
    pub(crate) fn output_rows(mut self, cx: &Forward, by: &RmsNorm) -> Result<Activation> {
        let rows = cx.step.output_rows();
        let all = rows.iter().copied().eq(0..cx.tokens() as u32);
        let gather = |x: &Tensor| -> Result<Tensor> {
            let out = cx.scratch(&[rows.len(), x.shape()[1]])?;
            elementwise::gather_rows(x, rows, &out)?;
            Ok(out)
        };
        if cx.keeps_last_hidden_state() {
            let h = self.norm(cx, by)?;
            cx.keep_last_hidden_state(h.tensor())?;
            return if all || rows.is_empty() { Ok(h) } else { Ok(Activation::new(&gather(h.tensor())?)?) };
        }
        if all {
            return self.norm(cx, by);
        }
        self.flush()?;
        Residual::new(gather(&self.x)?).norm(cx, by)
    }

    fn flush(&mut self) -> Result<()> {
        match self.pending.take() {
            Some(delta) => Ok(elementwise::add(&self.x, &delta)?),
            None => Ok(()),
        }
    }
}
