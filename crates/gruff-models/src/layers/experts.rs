use gruff_kernels::matmul::Glu;
use gruff_kernels::{Activation, DType, PackedTensor, Tensor, elementwise, moe};

use super::Forward;
use crate::parameters::PackedWeight;
use crate::shard::Part;
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
    /// Some outputs and inputs of `[experts, outputs, inputs]`.
    pub(crate) fn load(w: Module, shape: [usize; 3], part: [&Part; 2]) -> Result<Self> {
        w.declare(ModuleKind::Experts);
        Ok(Self::named(&w, &w.packed_part(shape, part)?, w.name()))
    }

    /// Two stacks from one tensor: some of the first half of every expert's outputs, and of the second.
    pub(crate) fn load_halves(
        fused: Module,
        names: [Module; 2],
        [experts, outputs, inputs]: [usize; 3],
        part: &Part,
    ) -> Result<[Self; 2]> {
        fused.declare(ModuleKind::Stack);
        let [first, second] = names;
        let shape = [experts, 2 * outputs, inputs];
        if !fused.shard().is_whole() {
            let half = |start| -> Result<_> {
                fused.packed_part(shape, [&part.within(start, outputs, 2 * outputs), &Part::All])
            };
            return Ok([
                Self::named(&first, &half(0)?, fused.name()),
                Self::named(&second, &half(outputs)?, fused.name()),
            ]);
        }
        let both = fused.packed(shape)?;
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
    ) -> Result<Activation> {
        gate.show(cx, x, ids)?;
        if up.owner != gate.owner {
            up.show(cx, x, ids)?;
        }
        let out = cx.scratch(&[ids.len(), gate.weight.rows()])?;
        if cx.adapts(&gate.name) || cx.adapts(&up.name) {
            Self::glu_apart(cx, x, ids, [gate, up], glu, &out)?;
            return Ok(Activation::new(&out)?);
        }
        Ok(moe::experts_glu(x, ids, gate.weight(cx), up.weight(cx), glu, &out)?)
    }

    /// The products that [`glu`](Self::glu) makes in one operation, with what adapters add between them.
    fn glu_apart(
        cx: &Forward,
        x: &Activation,
        ids: &Tensor,
        stacks: [&Self; 2],
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        // Every row has one expert, whose product is taken as it is.
        let (count, used) = (ids.len(), ids.shape()[1]);
        let rows: Vec<u32> = (0..count).map(|row| (row / used) as u32).collect();
        let repeated = cx.scratch(&[count, x.cols()])?;
        elementwise::gather_rows(x.tensor(), &rows, &repeated)?;
        let x = Activation::new(&repeated)?;
        let each = cx.device().scratch(DType::I32, &[count, 1])?;
        each.write_i32(&ids.to_vec_i32()?)?;
        let ones = cx.device().tensor_f32(&vec![1.0; count], &[count, 1])?;
        let mut products = Vec::with_capacity(2);
        for stack in stacks {
            let product = cx.scratch(&[count, stack.weight.rows()])?;
            moe::experts_combine(&x, &each, &ones, stack.weight(cx), &product)?;
            cx.adapt_experts(&stack.name, &x, [&each, &ones], &product, used)?;
            products.push(product);
        }
        Ok(elementwise::glu(&products[0], &products[1], glu, out)?)
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
        cx.adapt_experts(&self.name, x, [ids, weights], &out, 1)?;
        Ok(out)
    }

    fn show(&self, cx: &Forward, x: &Activation, ids: &Tensor) -> Result<()> {
        cx.input(&self.owner, x, Some(RoutedRows { ids, count: self.weight.matrices() }))
    }
}
