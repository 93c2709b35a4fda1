use gruff_kernels::matmul::{self, Projection};
use gruff_kernels::{Activation, PackedTensor, Tensor};

use super::Forward;
use crate::Result;
use crate::weights::Module;

/// A packed matrix with an optional bias.
#[derive(Debug)]
pub(crate) struct Linear {
    name: String,
    weight: PackedTensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// `[outputs, inputs]`, with a bias where the file has one.
    pub(crate) fn load(w: Module, outputs: usize, inputs: usize) -> Result<Self> {
        Ok(Self { weight: w.matrix(outputs, inputs)?, bias: w.bias(outputs)?, name: w.name().to_owned() })
    }

    /// A matrix that another module owns.
    pub(crate) fn shared(name: &str, weight: &PackedTensor) -> Self {
        Self { name: name.to_owned(), weight: weight.clone(), bias: None }
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
            Ok(Self { name: w.module(name).name().to_owned(), weight, bias })
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn weight(&self) -> &PackedTensor {
        &self.weight
    }

    pub(crate) fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
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
        matmul::linear_many(x, &projections)?;
        for (linear, out) in linears.iter().zip(&outs) {
            cx.output(&linear.name, out)?;
        }
        Ok(outs)
    }
}

/// `array::map` for functions that may fail.
fn try_map<T, U, const N: usize>(array: [T; N], f: impl FnMut(T) -> Result<U>) -> Result<[U; N]> {
    let mapped = array.into_iter().map(f).collect::<Result<Vec<U>>>()?;
    match mapped.try_into() {
        Ok(array) => Ok(array),
        Err(_) => unreachable!("a map keeps the length"),
    }
}
