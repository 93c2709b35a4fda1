use gruff_kernels::matmul::Glu;
use gruff_kernels::{Activation, PackedTensor, Tensor, moe};

use super::Forward;
use crate::parameters::PackedWeight;
use crate::weights::Module;
use crate::{ModuleKind, Result, RoutedRows, Weight};

/// A stack of packed matrices, one an expert. As with [`Linear`](super::Linear), products with it are made here
/// only.
#[derive(Debug)]
pub(crate) struct ExpertStack {
    /// The module that owns the tensor.
    owner: String,
    /// Its own name, that of its parameter without `.weight`.
    name: String,
    weight: PackedTensor,
}

impl ExpertStack {
    /// `[experts, outputs, inputs]`.
    pub(crate) fn load(w: Module, shape: [usize; 3]) -> Result<Self> {
        w.declare(ModuleKind::Experts);
        Ok(Self::named(&w, &w.packed(shape)?, w.name()))
    }

    /// Two stacks from one tensor: the first half of every expert's outputs, and the second.
    pub(crate) fn load_halves(
        fused: Module,
        names: [Module; 2],
        [experts, outputs, inputs]: [usize; 3],
    ) -> Result<[Self; 2]> {
        fused.declare(ModuleKind::Stack);
        let both = fused.packed([experts, 2 * outputs, inputs])?;
        let [first, second] = names;
        Ok([
            Self::named(&first, &both.narrow_rows(0, outputs)?, fused.name()),
            Self::named(&second, &both.narrow_rows(outputs, outputs)?, fused.name()),
        ])
    }

    fn named(w: &Module, weight: &PackedWeight, owner: &str) -> Self {
        w.name_weight("weight", &Weight::Packed(weight.clone()));
        Self { owner: owner.to_owned(), name: w.name().to_owned(), weight: weight.tensor().clone() }
    }

    /// The stack to use in this pass.
    fn weight<'a>(&'a self, cx: &'a Forward) -> &'a PackedTensor {
        cx.packed(&self.name, &self.name, &self.weight)
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
        moe::experts_glu(x, ids, gate.weight(cx), up.weight(cx), glu, &out)?;
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
        moe::experts_combine(x, ids, weights, self.weight(cx), &out)?;
        Ok(out)
    }

    fn show(&self, cx: &Forward, x: &Activation, ids: &Tensor) -> Result<()> {
        cx.input(&self.owner, x, Some(RoutedRows { ids, count: self.weight.matrices() }))
    }
}
