//! The CPU with some kernel families in the plainest form that is still threaded: loops over f32, a token, a head or a
//! row of weights at a time, no fusion, no rounding to int8. It shows what each family's kernels contribute
//! (`gruff bench --without`), and is a device like any other: the same contracts, other bits.
//!
//! The plain delta rule is the recurrence; it keeps S as it is after the last token and cannot drop tokens again.

mod attention;
pub(crate) mod card;
mod delta_net;
mod matmul;
mod moe;
mod norm;

use std::fmt;
use std::str::FromStr;

use gruff_blocks::BlockType;

use crate::attention::{AttentionOps, AttentionSpec};
use crate::buffer::{ForeignBytes, Memory};
use crate::cpu::{CpuDevice, CpuOptions};
use crate::delta_net::{DeltaInputs, DeltaNetOps};
use crate::device::Backend;
use crate::elementwise::ElementwiseOps;
use crate::embedding::EmbeddingOps;
use crate::matmul::{Glu, MatmulKernel, MatmulOps, Projection};
use crate::moe::{MoeOps, Routing};
use crate::norm::NormOps;
use crate::rope::{RopeOps, RopeSpec, RopeStyle};
use crate::sampling::{SampleSpec, SamplingOps};
use crate::{Activation, Activations, DType, Error, KvLayer, PackedTensor, Result, StateLayer, Step, Tensor};

/// What a device can do without: kernels on a CPU and on a card, the last three on a device that runs behind its callers.
///
/// What stands in the place of kernels on a card: products have their weights unpacked to f32 in its memory first; attention
/// and the delta rule go to the ordinary units instead of tensor cores; norms and products of experts are computed by
/// plain Rust on the host, which is slow; what is fused is done one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Without {
    /// Products with packed weights.
    Matmul,
    /// Norms.
    Norm,
    /// Attention.
    Attention,
    /// The gated delta rule, its convolution and gates.
    DeltaNet,
    /// Products of experts.
    Moe,
    /// Operations that do several things at once; inputs rounded once for several matrices.
    Fusion,
    /// Decode steps that are recorded and replayed.
    Graphs,
    /// Steps that begin before the tokens of the one before are read.
    LateIds,
    /// Kernels that begin before the one in front of them has ended.
    EarlyLaunch,
}

impl Without {
    /// All of them.
    pub const ALL: [Without; 9] = [
        Without::Matmul,
        Without::Norm,
        Without::Attention,
        Without::DeltaNet,
        Without::Moe,
        Without::Fusion,
        Without::Graphs,
        Without::LateIds,
        Without::EarlyLaunch,
    ];

    /// Whether it is about how steps follow one another, which is so on NVIDIA cards alone, not about a family of kernels.
    pub const fn is_of_loop(self) -> bool {
        matches!(self, Without::Graphs | Without::LateIds | Without::EarlyLaunch)
    }

    /// The name: `delta-net`.
    pub const fn name(self) -> &'static str {
        match self {
            Without::Matmul => "matmul",
            Without::Norm => "norm",
            Without::Attention => "attention",
            Without::DeltaNet => "delta-net",
            Without::Moe => "moe",
            Without::Fusion => "fusion",
            Without::Graphs => "graphs",
            Without::LateIds => "late-ids",
            Without::EarlyLaunch => "early-launch",
        }
    }
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Without {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|without| without.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|without| without.name()).collect();
            Error::Option { what: format!("{text:?} cannot be left out; one of {}", names.join(", ")) }
        })
    }
}

/// See [`crate::Device::cpu_without`].
pub(crate) struct PlainDevice {
    name: String,
    cpu: CpuDevice,
    without: Vec<Without>,
}

impl PlainDevice {
    pub(crate) fn new(options: CpuOptions, without: &[Without]) -> Result<Self> {
        let cpu = CpuDevice::new(options)?;
        let names: Vec<&str> = without.iter().map(|without| without.name()).collect();
        let name = format!("{} without {}", Backend::name(&cpu), names.join(", "));
        Ok(Self { name, cpu, without: without.to_vec() })
    }

    fn lacks(&self, what: Without) -> bool {
        self.without.contains(&what)
    }

    /// Whether a fused product is composed of its parts.
    fn unfused(&self) -> bool {
        self.lacks(Without::Fusion) || self.lacks(Without::Matmul)
    }

    /// One product with an input that is rounded for it alone.
    fn linear(
        &self,
        x: &Activation,
        weight: &PackedTensor,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        if self.lacks(Without::Matmul) {
            return matmul::linear(&self.cpu, x.tensor(), weight, bias, out);
        }
        self.cpu.linear_many(&Activation::new(x.tensor())?, &[Projection { weight, bias, out }])
    }
}

impl Backend for PlainDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn activations(&self) -> Activations {
        Backend::activations(&self.cpu)
    }

    fn threads(&self) -> usize {
        Backend::threads(&self.cpu)
    }

    fn allocate(&self, bytes: usize) -> Option<Memory> {
        self.cpu.allocate(bytes)
    }

    fn import(&self, bytes: ForeignBytes) -> Option<Memory> {
        self.cpu.import(bytes)
    }
}

/// An operation that the CPU does, or, if the device is without its family, a plain function.
macro_rules! operation {
    ($name:ident ($($arg:ident: $type:ty),*)) => {
        fn $name(&self, $($arg: $type),*) -> Result<()> {
            self.cpu.$name($($arg),*)
        }
    };
    ($name:ident ($($arg:ident: $type:ty),*) $family:ident $plain:path) => {
        fn $name(&self, $($arg: $type),*) -> Result<()> {
            if self.lacks(Without::$family) {
                return $plain(&self.cpu, $($arg),*);
            }
            self.cpu.$name($($arg),*)
        }
    };
}

macro_rules! operations {
    ($trait:ident { $($name:ident $args:tt $(without $family:ident $plain:path)?;)* }) => {
        impl $trait for PlainDevice {
            $(operation! { $name $args $($family $plain)? })*
        }
    };
}

operations! { RopeOps {
    rope_table(step: &Step, spec: &RopeSpec, table: &Tensor);
    rope(x: &Tensor, table: &Tensor, style: RopeStyle);
} }

operations! { ElementwiseOps {
    add(x: &Tensor, y: &Tensor);
    glu(gate: &Tensor, up: &Tensor, glu: Glu, out: &Tensor);
    sigmoid_mul(x: &Tensor, gate: &Tensor);
    scale(x: &Tensor, factor: f32);
    softcap(x: &Tensor, cap: f32);
    gather_rows(x: &Tensor, rows: &[u32], out: &Tensor);
    copy(x: &Tensor, out: &Tensor);
} }

operations! { EmbeddingOps {
    embed(ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor);
} }

operations! { SamplingOps {
    argmax(logits: &Tensor, ids: &Tensor);
    sample(logits: &Tensor, specs: &[SampleSpec], ids: &Tensor);
} }

operations! { AttentionOps {
    write_kv(step: &Step, keys: &Tensor, values: &Tensor, layer: &KvLayer);
    attention(step: &Step, queries: &Tensor, layer: &KvLayer, spec: &AttentionSpec, out: &Tensor)
        without Attention attention::attention;
} }

operations! { DeltaNetOps {
    causal_conv(step: &Step, x: &Tensor, weight: &Tensor, layer: &StateLayer, out: &Tensor)
        without DeltaNet delta_net::causal_conv;
    delta_gates(a: &Tensor, b: &Tensor, dt_bias: &Tensor, a_neg: &Tensor, decay: &Tensor, beta: &Tensor)
        without DeltaNet delta_net::delta_gates;
    gated_delta(step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor)
        without DeltaNet delta_net::gated_delta;
} }

operations! { MoeOps {
    route(logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor);
    experts_glu(x: &Activation, ids: &Tensor, gate: &PackedTensor, up: &PackedTensor, glu: Glu, out: &Tensor)
        without Moe moe::experts_glu;
    experts_combine(hidden: &Activation, ids: &Tensor, weights: &Tensor, down: &PackedTensor, out: &Tensor)
        without Moe moe::experts_combine;
} }

impl NormOps for PlainDevice {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        if self.lacks(Without::Norm) {
            return norm::rms_norm(&self.cpu, x, weight, eps, out);
        }
        self.cpu.rms_norm(x, weight, eps, out)
    }

    fn add_rms_norm(
        &self,
        residual: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        if self.lacks(Without::Norm) || self.lacks(Without::Fusion) {
            self.cpu.add(residual, delta)?;
            return self.rms_norm(residual, weight, eps, out);
        }
        self.cpu.add_rms_norm(residual, delta, weight, eps, out)
    }

    fn gated_rms_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        if self.lacks(Without::Norm) || self.lacks(Without::Fusion) {
            let normed = out.device().scratch(DType::F32, x.shape())?;
            self.rms_norm(x, weight, eps, &normed)?;
            return self.cpu.glu(gate, &normed, Glu::Silu, out);
        }
        self.cpu.gated_rms_norm(x, weight, gate, eps, out)
    }

    fn l2_norm(&self, x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()> {
        if self.lacks(Without::Norm) {
            return norm::l2_norm(&self.cpu, x, eps, scale, out);
        }
        self.cpu.l2_norm(x, eps, scale, out)
    }
}

impl MatmulOps for PlainDevice {
    fn matmul_kernel(&self, block_type: BlockType) -> MatmulKernel {
        if self.lacks(Without::Matmul) {
            return MatmulKernel { name: "plain f32", fast: false };
        }
        self.cpu.matmul_kernel(block_type)
    }

    fn linear_many(&self, x: &Activation, projections: &[Projection]) -> Result<()> {
        if !self.unfused() {
            return self.cpu.linear_many(x, projections);
        }
        projections.iter().try_for_each(|one| self.linear(x, one.weight, one.bias, one.out))
    }

    fn linear_add(&self, x: &Activation, weight: &PackedTensor, residual: &Tensor) -> Result<()> {
        if !self.unfused() {
            return self.cpu.linear_add(x, weight, residual);
        }
        let product = residual.device().scratch(DType::F32, residual.shape())?;
        self.linear(x, weight, None, &product)?;
        self.cpu.add(residual, &product)
    }

    fn linear_glu(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        if !self.unfused() {
            return self.cpu.linear_glu(x, gate, up, glu, out);
        }
        let products = [0, 1].map(|_| out.device().scratch(DType::F32, out.shape()));
        let [gates, ups] = products;
        let (gates, ups) = (gates?, ups?);
        self.linear(x, gate, None, &gates)?;
        self.linear(x, up, None, &ups)?;
        self.cpu.glu(&gates, &ups, glu, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Values;
    use crate::delta_net::{causal_conv, delta_gates, gated_delta};
    use crate::{Device, StateShape, StepSequence};

    /// Outputs of convolution and delta rule for two sequences, in steps of so many tokens.
    fn delta(device: &Device, rollback: usize, step_len: usize) -> Result<Vec<f32>> {
        let shape = StateShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 16,
            value_dim: 24,
            conv_kernel: 4,
            conv_channels: 40,
            rollback,
        };
        let layer = StateLayer::new(device, 2, shape)?;
        let mut all = Vec::new();
        for past in (0..150).step_by(step_len) {
            let sequence = |slot| StepSequence { len: step_len, past, slot, pages: Vec::new() };
            let step = Step::text(vec![0; 2 * step_len], vec![sequence(1), sequence(0)])?;
            let tensor = |seed: u64, shape: &[usize], scale: f32| {
                let row: usize = shape[1..].iter().product();
                let values = (0..2).flat_map(|sequence| {
                    (past..past + step_len).flat_map(move |position| {
                        Values::new(seed + sequence * 1000 + position as u64 * 7).normal(row, scale)
                    })
                });
                device.tensor_f32(&values.collect::<Vec<_>>(), shape)
            };
            let tokens = 2 * step_len;
            let x = tensor(1, &[tokens, 40], 1.0)?;
            let weight = Values::new(9).tensor(device, &[40, 4], 0.5)?;
            let convolved = device.zeros(DType::F32, &[tokens, 40])?;
            causal_conv(&step, &x, &weight, &layer, &convolved)?;
            all.extend(convolved.to_vec_f32()?);
            let (a, b) = (tensor(2, &[tokens, 4], 1.0)?, tensor(3, &[tokens, 4], 1.0)?);
            let head = |value| device.tensor_f32(&[value; 4], &[4]);
            delta_gates(&a, &b, &head(0.5)?, &head(-0.2)?, &a, &b)?;
            let (queries, keys) = (tensor(4, &[tokens, 2, 16], 1.0)?, tensor(5, &[tokens, 2, 16], 1.0)?);
            crate::norm::l2_norm(&queries, 1e-6, 0.25, &queries)?;
            crate::norm::l2_norm(&keys, 1e-6, 1.0, &keys)?;
            let values = tensor(6, &[tokens, 4, 24], 1.0)?;
            let out = device.zeros(DType::F32, &[tokens, 4, 24])?;
            let inputs = DeltaInputs { queries: &queries, keys: &keys, values: &values, decay: &a, beta: &b };
            gated_delta(&step, &inputs, &layer, &out)?;
            all.extend(out.to_vec_f32()?);
        }
        Ok(all)
    }

    #[test]
    fn the_recurrence_gives_what_chunks_do() {
        let device = |without: &[Without]| Device::cpu_without(CpuOptions::default(), without).unwrap();
        let plain = device(&[Without::DeltaNet]);
        assert!(plain.name().ends_with("without delta-net"), "{}", plain.name());
        for step_len in [1, 30, 150] {
            let (expected, got) =
                (delta(&device(&[]), 0, step_len).unwrap(), delta(&plain, 0, step_len).unwrap());
            let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            for (expected, got) in expected.iter().zip(&got) {
                assert!(
                    (expected - got).abs() <= 1e-5 * largest,
                    "{expected} and {got} in steps of {step_len}"
                );
            }
        }
        let error = delta(&plain, 3, 30).unwrap_err();
        assert!(error.to_string().contains("--without delta-net"), "{error}");
    }

    #[test]
    fn names_are_read() {
        for without in Without::ALL {
            assert_eq!(without.name().parse::<Without>().unwrap(), without);
        }
        assert!("softmax".parse::<Without>().unwrap_err().to_string().contains("delta-net"));
    }
}
