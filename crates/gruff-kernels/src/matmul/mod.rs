//! Products of activations with packed weights.
//!
//! # Contract
//!
//! `out[t, n] = scale * sum_k x[t, k] * W[n, k] (+ bias[n])`, with x `[T, K]` f32, W `[N, K]` packed and out
//! `[T, N]` f32.
//!
//! With [`Activations::Int8`](crate::Activations::Int8), and for every weight type that is not a plain float
//! or integer (`!BlockType::is_scalar`), x is rounded first, in blocks of [`Q8_BLOCK`] along K, by
//! [`round_block`]. A K-quant's super-block of 256 thus meets eight activation scales, which loses less than
//! one scale for 256. A block whose loudest value stands far above the row ([`is_loud`]) would lose its other values to
//! their scale; it gets a second term, the rounded remainder of the first ([`round_row`]). For
//! scalar types, and with [`Activations::F32`](crate::Activations::F32), x enters as
//! it is.
//!
//! With [`Activations::Bf16`](crate::Activations::Bf16), which cards have in place of int8, x is rounded to bfloat16 and so is each
//! packed weight, from its scale and minimum rounded likewise (`cuda/packed.cuh`).
//!
//! **Same bits however it is batched.** One output depends on its row of x and its row of W only, never on T,
//! N or the number of threads, and a fused operation gives the same bits as the composition it stands for.
//! CPU kernels reach that by one summation tree. Int8: the sum over a block of 32 (or over the halves of it that have
//! scales of their own) is an exact integer; block `b` of a row contributes to f32 accumulator
//! `[0, 4, 1, 5, 2, 6, 3, 7][b mod 8]`, in order of `b`, by fused multiply-adds: `(scale * x_scale) * sum`, then, for
//! types with minima, `min * (x_scale * x_sum)`. Second terms have eight accumulators of their own. f32: value `k` contributes to accumulator `k mod 8`, in order of `k`.
//! The eight are added as `((0+4)+(2+6))+((1+5)+(3+7))`; if the row has second terms, their sum, added likewise, is added to
//! it; then come the scale beside the matrix, and the bias.
//!
//! Tolerance: NMSE against the f64 twin of the same rounding below 1e-10. In bfloat16 the twin rounds x alone, and the bound is
//! 2e-4, which few results that nearly cancel need; 1e-5 is usual. Plain floats and integers, which nothing is rounded for, are held to
//! 1e-10 everywhere. CUDA kernels add up groups of 256 values in order, each a chain of products of 16 on tensor cores, so that their
//! results have the same bits however batched, too.

pub(crate) mod cpu;
pub(crate) mod cuda;
mod quantize;
pub(crate) mod reference;

pub use quantize::{Q8_BLOCK, is_loud, loud_bar, round_block, round_row};

use gruff_blocks::BlockType;

use crate::check::Check;
use crate::plain::card;
use crate::profile::Work;
use crate::{Activation, DType, Device, Family, PackedTensor, Result, Tensor};

/// The gate of a gated linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Glu {
    /// `x * sigmoid(x)` (SwiGLU).
    Silu,
    /// GELU by its tanh approximation (GeGLU, as in Gemma).
    GeluTanh,
}

impl Glu {
    /// The gate's value.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Glu::Silu => x / (1.0 + (-x).exp()),
            Glu::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}

/// One of the matrices that read the same input.
#[derive(Clone, Copy, Debug)]
pub struct Projection<'a> {
    /// `[N, K]`.
    pub weight: &'a PackedTensor,
    /// `[N]`, f32.
    pub bias: Option<&'a Tensor>,
    /// `[T, N]`, f32.
    pub out: &'a Tensor,
}

/// How a device computes with a weight type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatmulKernel {
    /// The kernel's name: `avx2 int8`, `generic`.
    pub name: &'static str,
    /// Whether it is made for this type; a generic kernel unpacks a tile at a time instead.
    pub fast: bool,
}

/// Which kernel of a device serves a weight type.
pub fn kernel(device: &Device, block_type: BlockType) -> MatmulKernel {
    device.matmul_kernel(block_type)
}

pub(crate) trait MatmulOps {
    /// Which kernel serves a weight type.
    fn matmul_kernel(&self, block_type: BlockType) -> MatmulKernel;

    /// See [`Device::product_bytes`](crate::Device::product_bytes).
    fn product_bytes(&self, _block_type: BlockType, _shape: [usize; 2], _columns: usize) -> usize {
        0
    }

    fn linear_many(&self, x: &Activation, projections: &[Projection]) -> Result<()>;

    fn linear_add(&self, x: &Activation, weight: &PackedTensor, residual: &Tensor) -> Result<()>;

    fn linear_glu(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()>;

    /// The same, in the form that the product behind it reads, too.
    fn linear_glu_activation(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<Activation> {
        self.linear_glu(x, gate, up, glu, out)?;
        Activation::new(out)
    }
}

/// `out = x W^T (+ bias)`: x `[T, K]`, W `[N, K]`, bias `[N]`, out `[T, N]`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn linear(x: &Activation, weight: &PackedTensor, bias: Option<&Tensor>, out: &Tensor) -> Result<()> {
    linear_many(x, &[Projection { weight, bias, out }])
}

/// Several products of one input (q|k|v, gate|up, qkv|z|a|b): x is quantized once and threads are woken once.
/// Each result equals [`linear`]'s, bit for bit.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn linear_many(x: &Activation, projections: &[Projection]) -> Result<()> {
    let Some(first) = projections.first() else { return Ok(()) };
    let check = Check::new("linear", first.out)?;
    check.on_device("x", x.device())?;
    for (index, Projection { weight, bias, out }) in projections.iter().enumerate() {
        Check::new("linear", out)?;
        check_weight(&check, "the weight", weight, x.cols(), 1)?;
        check.tensor("the output", out, DType::F32, &[x.rows(), weight.rows()])?;
        check.disjoint("the output", out, x.tensor())?;
        if let Some(bias) = bias {
            check.tensor("the bias", bias, DType::F32, &[weight.rows()])?;
            check.disjoint("the output", out, bias)?;
        }
        for other in &projections[..index] {
            check.disjoint("the output", out, other.out)?;
        }
    }
    check.run(
        Family::Matmul,
        || projections_work(x, projections),
        |backend| match card::unfused(backend) {
            true => card::linear_many(backend, x, projections),
            false => backend.linear_many(x, projections),
        },
    )
}

/// `residual += x W^T`: x `[T, K]`, W `[N, K]`, residual `[T, N]`. Equals [`linear`] and an addition, bit for
/// bit.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn linear_add(x: &Activation, weight: &PackedTensor, residual: &Tensor) -> Result<()> {
    let check = Check::new("linear_add", residual)?;
    check.on_device("x", x.device())?;
    check_weight(&check, "the weight", weight, x.cols(), 1)?;
    check.tensor("the residual", residual, DType::F32, &[x.rows(), weight.rows()])?;
    check.disjoint("the residual", residual, x.tensor())?;
    check.run(
        Family::Matmul,
        || product_work(x, &[weight], &[residual, residual]),
        |backend| match card::unfused(backend) {
            true => card::linear_add(backend, x, weight, residual),
            false => backend.linear_add(x, weight, residual),
        },
    )
}

/// `out = glu(x Wg^T) * (x Wu^T)`: x `[T, K]`, Wg and Wu `[N, K]`, out `[T, N]`. Equals two [`linear`]s and
/// [`crate::elementwise::glu`], bit for bit. Gives `out` for the product behind it, in a form of which there may be made already.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn linear_glu(
    x: &Activation,
    gate: &PackedTensor,
    up: &PackedTensor,
    glu: Glu,
    out: &Tensor,
) -> Result<Activation> {
    let check = Check::new("linear_glu", out)?;
    check.on_device("x", x.device())?;
    check_weight(&check, "the gate weight", gate, x.cols(), 1)?;
    check_weight(&check, "the up weight", up, x.cols(), 1)?;
    check
        .that(gate.rows() == up.rows(), || format!("gate has {} rows, up has {}", gate.rows(), up.rows()))?;
    check.tensor("the output", out, DType::F32, &[x.rows(), gate.rows()])?;
    check.disjoint("the output", out, x.tensor())?;
    check.run(
        Family::Matmul,
        || product_work(x, &[gate, up], &[out]),
        |backend| match card::unfused(backend) {
            true => card::linear_glu(backend, x, gate, up, glu, out).and_then(|()| Activation::new(out)),
            false => backend.linear_glu_activation(x, gate, up, glu, out),
        },
    )
}

/// A weight lives on the device and fits an input of `cols` columns.
pub(crate) fn check_weight(
    check: &Check,
    operand: &'static str,
    weight: &PackedTensor,
    cols: usize,
    matrices: usize,
) -> Result<()> {
    check.on_device(operand, weight.device())?;
    check.that(weight.cols() == cols && weight.matrices() == matrices, || {
        format!(
            "{operand} is [{}, {}, {}], but the input has {cols} columns and {matrices} matrices are needed",
            weight.matrices(),
            weight.rows(),
            weight.cols()
        )
    })
}

fn projections_work(x: &Activation, projections: &[Projection]) -> Work {
    let weights: Vec<&PackedTensor> = projections.iter().map(|projection| projection.weight).collect();
    let outs: Vec<&Tensor> = projections.iter().map(|projection| projection.out).collect();
    product_work(x, &weights, &outs)
}

/// Input, weights and outputs, each once.
fn product_work(x: &Activation, weights: &[&PackedTensor], outs: &[&Tensor]) -> Work {
    let bytes = weights.iter().map(|weight| weight.packed_bytes()).sum();
    let products = weights.iter().map(|weight| x.rows() * weight.rows() * weight.cols()).sum();
    let first = weights[0].block_type();
    let same = weights.iter().all(|weight| weight.block_type() == first);
    Work::through(outs.iter().copied().chain([x.tensor()])).bytes(bytes).products(products).detail(if same {
        first.name()
    } else {
        "mixed"
    })
}
