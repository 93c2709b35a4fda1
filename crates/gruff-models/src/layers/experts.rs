use gruff_kernels::matmul::Glu;
use gruff_kernels::{Activation, PackedTensor, Tensor, moe};

use super::Forward;
use crate::weights::Module;
use crate::{Result, RoutedRows};

/// A stack of packed matrices, one an expert. As with [`Linear`](super::Linear), products with it are made here
/// only.
#[derive(Debug)]
pub(crate) struct ExpertStack {
    /// The module that owns the tensor.
    owner: String,
    weight: PackedTensor,
}

impl ExpertStack {
    /// `[experts, outputs, inputs]`.
    pub(crate) fn load(w: Module, shape: [usize; 3]) -> Result<Self> {
        Ok(Self { weight: w.packed(shape)?, owner: w.name().to_owned() })
    }

    /// Some outputs of every expert.
    pub(crate) fn narrow_outputs(&self, start: usize, len: usize) -> Result<Self> {
        Ok(Self { owner: self.owner.clone(), weight: self.weight.narrow_rows(start, len)? })
    }

    /// `glu(gate(x)) * up(x)` with the experts `ids` `[T, used]` of each token: `[T, inputs] -> [T * used, outputs]`.
    pub(crate) fn glu(
        cx: &Forward,
        x: &Activation,
        ids: &Tensor,
        gate: &Self,
        up: &Self,
        glu: Glu,
    ) -> Result<Tensor> {
        gate.show(cx, x, ids)?;
        if up.owner != gate.owner {
            up.show(cx, x, ids)?;
        }
        let out = cx.scratch(&[ids.len(), gate.weight.rows()])?;
        moe::experts_glu(x, ids, &gate.weight, &up.weight, glu, &out)?;
        Ok(out)
    }

    /// The experts' products of `[T * used, inputs]`, weighted and summed for each token: `[T, outputs]`.
    pub(crate) fn combine(
        &self,
        cx: &Forward,
        x: &Activation,
        ids: &Tensor,
        weights: &Tensor,
    ) -> Result<Tensor> {
        self.show(cx, x, ids)?;
        let out = cx.scratch(&[cx.tokens(), self.weight.rows()])?;
        moe::experts_combine(x, ids, weights, &self.weight, &out)?;
        Ok(out)
    }

    fn show(&self, cx: &Forward, x: &Activation, ids: &Tensor) -> Result<()> {
        cx.input(&self.owner, x, Some(RoutedRows { ids, count: self.weight.matrices() }))
    }
}
