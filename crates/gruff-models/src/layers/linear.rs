use gruff_kernels::matmul::{self, Glu, Projection};
use gruff_kernels::{Activation, PackedTensor, Tensor};

use super::Forward;
use crate::Result;
use crate::weights::Module;

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
        let (weight, bias) = (w.matrix(outputs, inputs)?, w.bias(outputs)?);
        Ok(Self { weight, bias, name: w.name().to_owned(), owner: w.name().to_owned() })
    }

    /// A matrix that the module `owner` owns.
    pub(crate) fn shared(name: &str, owner: &str, weight: &PackedTensor) -> Self {
        Self { name: name.to_owned(), owner: owner.to_owned(), weight: weight.clone(), bias: None }
    }

    /// Several matrices that read one input, from their own tensors or from one that stacks their rows:
    /// `parts` are (name, outputs) inside `w`.
    pub(crate) fn load_many<const N: usize>(
        w: &Module,
        fused: &str,
        parts: [(&str, usize); N],
        inputs: usize,
    ) -> Result<[Self; N]> {
        let fused = w.module(fused);
        if !fused.exists() || w.module(parts[0].0).exists() {
            return try_map(parts, |(name, outputs)| Linear::load(w.module(name), outputs, inputs));
        }
        let all = Linear::load(fused, parts.iter().map(|(_, outputs)| outputs).sum(), inputs)?;
        let mut start = 0;
        try_map(parts, |(name, outputs)| {
            let weight = all.weight.narrow_rows(start, outputs)?;
            let bias = all.bias.as_ref().map(|bias| bias.narrow(0, start, outputs)).transpose()?;
            start += outputs;
            Ok(Self { name: w.module(name).name().to_owned(), owner: all.owner.clone(), weight, bias })
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
            weight: &linears[i].weight,
            bias: linears[i].bias.as_ref(),
            out: &outs[i],
        });
        show(cx, x, &linears)?;
        matmul::linear_many(x, &projections)?;
        for (linear, out) in linears.iter().zip(&outs) {
            cx.output(&linear.name, out)?;
        }
        Ok(outs)
    }

    /// Adds `[T, inputs] -> [T, outputs]` to `sum`; only for matrices without a bias.
    pub(crate) fn add_to(&self, cx: &Forward, x: &Activation, sum: &Tensor) -> Result<()> {
        show(cx, x, &[self])?;
        Ok(matmul::linear_add(x, &self.weight, sum)?)
    }

    /// `glu(gate(x)) * up(x)` as one operation; only for matrices without a bias.
    pub(crate) fn glu(cx: &Forward, x: &Activation, gate: &Self, up: &Self, glu: Glu) -> Result<Tensor> {
        show(cx, x, &[gate, up])?;
        let out = cx.scratch(&[x.rows(), gate.outputs()])?;
        matmul::linear_glu(x, &gate.weight, &up.weight, glu, &out)?;
        Ok(out)
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
