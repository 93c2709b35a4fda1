use gruff_kernels::matmul::{self, Glu, Projection};
use gruff_kernels::{Activation, PackedTensor, Tensor};

use super::Forward;
use crate::parameters::PackedWeight;
use crate::shard::Part;
use crate::weights::Module;
use crate::{ModuleKind, Result, Weight};

/// A packed matrix with an optional bias. Products with it are made here only, so that none is hidden from
/// those who watch its inputs.
#[derive(Debug)]
pub(crate) struct Linear {
    name: String,
    /// The module that owns the matrix, where that is another.
    owner: String,
    weight: PackedTensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// `[outputs, inputs]`, with a bias where the file has one.
    pub(crate) fn load(w: Module, outputs: usize, inputs: usize) -> Result<Self> {
        Self::load_part(w, [outputs, inputs], [&Part::All; 2])
    }

    /// Some of the outputs, from some of the inputs. Where inputs are missing, products are summands of the whole's; its bias
    /// is with the first of them.
    pub(crate) fn load_part(w: Module, [outputs, inputs]: [usize; 2], part: [&Part; 2]) -> Result<Self> {
        let weight = w.packed_part([1, outputs, inputs], part)?;
        let summand = *part[1] != Part::All && w.shard().rank > 0;
        let bias = if summand { None } else { w.bias(outputs, part[0])? };
        Ok(Self::named(&w, &weight, bias, w.name()))
    }

    /// A matrix that the module `owner` owns.
    pub(crate) fn shared(w: &Module, owner: &str, weight: &PackedTensor) -> Self {
        w.declare(ModuleKind::Linear);
        Self { name: w.name().to_owned(), owner: owner.to_owned(), weight: weight.clone(), bias: None }
    }

    /// The module `w`, its parameters known by their names.
    fn named(w: &Module, weight: &PackedWeight, bias: Option<Tensor>, owner: &str) -> Self {
        w.declare(ModuleKind::Linear);
        w.name_weight("weight", &Weight::Packed(weight.clone()));
        if let Some(bias) = &bias {
            w.name_weight("bias", &Weight::Dense(bias.clone()));
        }
        Self { name: w.name().to_owned(), owner: owner.to_owned(), weight: weight.tensor().clone(), bias }
    }

    /// Several matrices that read one input, from their own tensors or from one that stacks their rows:
    /// `parts` are (name, outputs, those of them that are asked for) inside `w`.
    pub(crate) fn load_many<const N: usize>(
        w: &Module,
        fused: &str,
        parts: [(&str, usize, Part); N],
        inputs: usize,
    ) -> Result<[Self; N]> {
        let fused = w.module(fused);
        if !fused.exists() || w.module(parts[0].0).exists() {
            return try_map(parts, |(name, outputs, rows)| {
                Linear::load_part(w.module(name), [outputs, inputs], [&rows, &Part::All])
            });
        }
        fused.declare(ModuleKind::Stack);
        let all = parts.iter().map(|(_, outputs, _)| outputs).sum();
        let mut start = 0;
        if !w.shard().is_whole() {
            return try_map(parts, |(name, outputs, rows)| {
                let rows = rows.within(start, outputs, all);
                start += outputs;
                let weight = fused.packed_part([1, all, inputs], [&rows, &Part::All])?;
                Ok(Self::named(&w.module(name), &weight, fused.bias(all, &rows)?, fused.name()))
            });
        }
        let (weight, bias) = (fused.matrix(all, inputs)?, fused.bias(all, &Part::All)?);
        try_map(parts, |(name, outputs, _)| {
            let weight = weight.narrow_rows(start, outputs)?;
            let bias = bias.as_ref().map(|bias| bias.narrow(0, start, outputs)).transpose()?;
            start += outputs;
            Ok(Self::named(&w.module(name), &weight, bias, fused.name()))
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Rows of the matrix.
    pub(crate) fn outputs(&self) -> usize {
        self.weight.rows()
    }

    pub(crate) fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// The matrix to use in this pass.
    fn weight<'a>(&'a self, cx: &'a Forward) -> &'a PackedTensor {
        cx.packed(&self.name, &self.owner, &self.weight)
    }

    /// The bias to use in this pass.
    fn bias<'a>(&'a self, cx: &'a Forward) -> Option<&'a Tensor> {
        self.bias.as_ref().map(|bias| cx.dense(&self.name, "bias", bias))
    }

    /// `[T, inputs] -> [T, outputs]`.
    pub(crate) fn forward(&self, cx: &Forward, x: &Activation) -> Result<Tensor> {
        let [out] = Self::forward_many(cx, x, [self])?;
        Ok(out)
    }

    /// Several products of one input, as one operation.
    pub(crate) fn forward_many<const N: usize>(
        cx: &Forward,
        x: &Activation,
        linears: [&Linear; N],
    ) -> Result<[Tensor; N]> {
        let outs = try_map(linears, |linear| cx.scratch(&[x.rows(), linear.weight.rows()]))?;
        let projections: [Projection; N] = std::array::from_fn(|i| Projection {
            weight: linears[i].weight(cx),
            bias: linears[i].bias(cx),
            out: &outs[i],
        });
        show(cx, x, &linears)?;
        if cx.replaces() {
            return Self::replace_or_forward(cx, x, linears, &projections).map(|()| outs.clone());
        }
        matmul::linear_many(x, &projections)?;
        for (linear, out) in linears.iter().zip(&outs) {
            cx.adapt(&linear.name, x, out)?;
            cx.output(&linear.name, out)?;
        }
        Ok(outs)
    }

    /// The products one by one, with the modules that stand in for some of them.
    fn replace_or_forward<const N: usize>(
        cx: &Forward,
        x: &Activation,
        linears: [&Linear; N],
        projections: &[Projection; N],
    ) -> Result<()> {
        for (linear, projection) in linears.iter().zip(projections) {
            if let Some(module) = cx.replacement(&linear.name) {
                cx.call(module, &linear.name, x.tensor(), projection.out)?;
            } else {
                matmul::linear_many(x, std::slice::from_ref(projection))?;
                cx.adapt(&linear.name, x, projection.out)?;
            }
            cx.output(&linear.name, projection.out)?;
        }
        Ok(())
    }

    /// Adds `[T, inputs] -> [T, outputs]` to `sum`; only for matrices without a bias.
    pub(crate) fn add_to(&self, cx: &Forward, x: &Activation, sum: &Tensor) -> Result<()> {
        show(cx, x, &[self])?;
        Ok(matmul::linear_add(x, self.weight(cx), sum)?)
    }

    /// `glu(gate(x)) * up(x)` as one operation; only for matrices without a bias.
    pub(crate) fn glu(cx: &Forward, x: &Activation, gate: &Self, up: &Self, glu: Glu) -> Result<Activation> {
        show(cx, x, &[gate, up])?;
        let out = cx.scratch(&[x.rows(), gate.outputs()])?;
        Ok(matmul::linear_glu(x, gate.weight(cx), up.weight(cx), glu, &out)?)
    }
}

/// Shows the input of several matrices, once for those that one module owns.
fn show(cx: &Forward, x: &Activation, linears: &[&Linear]) -> Result<()> {
    for (index, linear) in linears.iter().enumerate() {
        if index == 0 || linears[index - 1].owner != linear.owner {
            cx.input(&linear.owner, x, None)?;
        }
    }
    Ok(())
}

/// `array::map` for functions that may fail.
fn try_map<T, U, const N: usize>(array: [T; N], f: impl FnMut(T) -> Result<U>) -> Result<[U; N]> {
    let mapped = array.into_iter().map(f).collect::<Result<Vec<U>>>()?;
    match mapped.try_into() {
        Ok(array) => Ok(array),
        Err(_) => unreachable!("a map keeps the length"),
    }
}
