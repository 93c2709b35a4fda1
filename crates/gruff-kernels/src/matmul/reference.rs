//! Products in f64, with and without rounding of the activations.

use gruff_blocks::BlockType;

use super::{Glu, MatmulKernel, MatmulOps, Projection, round_row};
use crate::reference::{ReferenceDevice, load, store};
use crate::{Activation, Activations, PackedTensor, Result, Tensor};

/// The activation as products with `block_type` see it.
pub(crate) fn rounded(x: &[f64], cols: usize, block_type: BlockType, activations: Activations) -> Vec<f64> {
    if activations == Activations::F32 || block_type.is_scalar() {
        return x.to_vec();
    }
    if activations == Activations::Bf16 {
        return x.iter().map(|value| half::bf16::from_f32(*value as f32).to_f64()).collect();
    }
    let mut out = vec![0.0; x.len()];
    for (row, out) in x.chunks_exact(cols.max(1)).zip(out.chunks_exact_mut(cols.max(1))) {
        let values: Vec<f32> = row.iter().map(|value| *value as f32).collect();
        round_row(&values, |first, scale, quants| {
            for (out, quant) in out[first..].iter_mut().zip(quants) {
                *out += f64::from(*quant) * f64::from(scale);
            }
        });
    }
    out
}

/// `x W^T` in f64 for one matrix of a stack: x `[T, K]` already rounded -> `[T, N]`.
pub(crate) fn product(x: &[f64], weight: &PackedTensor, matrix: usize) -> Result<Vec<f64>> {
    let (rows, cols) = (weight.rows(), weight.cols());
    let tokens = x.len().checked_div(cols).unwrap_or(0);
    let mut out = vec![0.0; tokens * rows];
    let mut unpacked = vec![0f32; cols];
    for n in 0..rows {
        weight.unpack_row_unlocked(matrix, n, &mut unpacked)?;
        for t in 0..tokens {
            let row = &x[t * cols..(t + 1) * cols];
            out[t * rows + n] = row.iter().zip(&unpacked).map(|(a, b)| a * f64::from(*b)).sum();
        }
    }
    Ok(out)
}

fn project(x: &Activation, weight: &PackedTensor, activations: Activations) -> Result<Vec<f64>> {
    let x_rounded = rounded(&load(x.tensor())?, x.cols(), weight.block_type(), activations);
    product(&x_rounded, weight, 0)
}

impl MatmulOps for ReferenceDevice {
    fn matmul_kernel(&self, _: BlockType) -> MatmulKernel {
        MatmulKernel { name: "reference", fast: false }
    }

    fn linear_many(&self, x: &Activation, projections: &[Projection]) -> Result<()> {
        for Projection { weight, bias, out } in projections {
            let mut result = project(x, weight, crate::device::Backend::activations(self))?;
            if let Some(bias) = bias {
                let bias = load(bias)?;
                for row in result.chunks_exact_mut(bias.len().max(1)) {
                    row.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
                }
            }
            store(out, &result)?;
        }
        Ok(())
    }

    fn linear_add(&self, x: &Activation, weight: &PackedTensor, residual: &Tensor) -> Result<()> {
        let product = project(x, weight, crate::device::Backend::activations(self))?;
        let sum: Vec<f64> = load(residual)?.iter().zip(&product).map(|(a, b)| a + b).collect();
        store(residual, &sum)
    }

    fn linear_glu(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        let activations = crate::device::Backend::activations(self);
        let (gate, up) = (project(x, gate, activations)?, project(x, up, activations)?);
        let result: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| glu.apply(*g) * u).collect();
        store(out, &result)
    }
}
