//! One runner that holds every device to every operation's contract.
//!
//! A [`Case`] computes an operation on odd shapes, on any device, from values that depend on its name alone.
//! The runner computes it on the reference (the f64 specification, or the twin that rounds activations) and on
//! each instruction set and thread count of the CPU, and compares: with the reference within the operation's
//! stated tolerance, and bit for bit between instruction sets, thread counts and the [other ways](Case::equals)
//! to the same result (unfused, alone instead of in a batch, split into steps).
//!
//! `cargo run -p gruff-kernels --bin conformance` prints the table; `cargo test` runs it too.

mod attention;
mod compare;
mod data;
mod delta_net;
mod elementwise;
mod matmul;
mod moe;
mod norm;
mod rope;
mod run;
mod sampling;
mod subset;

use crate::{Activations, Device, Result, Tensor};

pub use compare::Tolerance;
pub use data::Values;
pub use run::{Failure, Options, Outcome, Report, run};
pub use subset::{Shard, Subset};

/// All cases, operation by operation.
pub fn cases() -> Vec<Case> {
    let families = [
        norm::cases,
        rope::cases,
        elementwise::cases,
        attention::cases,
        delta_net::cases,
        sampling::cases,
        matmul::cases,
        moe::cases,
    ];
    families.into_iter().flat_map(|family| family()).collect()
}

/// One result of an operation, copied to the host.
#[derive(Clone, Debug)]
pub struct Output {
    /// Which operand: "out", "residual".
    pub name: &'static str,
    /// Values of a row.
    pub width: usize,
    /// The values in order, ids as numbers.
    pub values: Vec<f32>,
}

impl Output {
    /// Copies a tensor of any type.
    ///
    /// # Errors
    /// None that a tensor of a known type has.
    pub fn of(name: &'static str, tensor: &Tensor) -> Result<Self> {
        let values = match tensor.dtype() {
            crate::DType::I32 => tensor.to_vec_i32()?.into_iter().map(|id| id as f32).collect(),
            _ => tensor.to_vec_f32()?,
        };
        Ok(Self { name, width: tensor.shape().last().copied().unwrap_or(1).max(1), values })
    }
}

/// Computes an operation on a device.
pub type Compute = Box<dyn Fn(&Device) -> Result<Vec<Output>> + Send + Sync>;

/// What a device's result is compared with, and how closely.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// How activations enter products on the device.
    pub device: Activations,
    /// How they do on the reference.
    pub reference: Activations,
    /// How far the two may be apart.
    pub tolerance: Tolerance,
}

/// One thing that is checked: an operation on one shape.
pub struct Case {
    op: &'static str,
    label: String,
    bars: Vec<Bar>,
    compute: Compute,
    equals: Vec<(&'static str, Compute)>,
}

impl Case {
    /// A case of an operation that rounds no activations, held to the f64 reference within `tolerance`.
    pub fn new(
        op: &'static str,
        label: impl Into<String>,
        tolerance: Tolerance,
        compute: impl Fn(&Device) -> Result<Vec<Output>> + Send + Sync + 'static,
    ) -> Self {
        let bars = [Activations::Int8, Activations::Bf16].map(|device| Bar {
            device,
            reference: Activations::F32,
            tolerance,
        });
        Self { op, label: label.into(), bars: bars.to_vec(), compute: Box::new(compute), equals: Vec::new() }
    }

    /// Operation and label: `linear Q4_K [7, 256] x 1`.
    pub fn name(&self) -> String {
        format!("{} {}", self.op, self.label)
    }

    /// Replaces what the case is held to (products with packed weights: the twin and the f64 reference).
    pub fn with_bars(mut self, bars: &[Bar]) -> Self {
        self.bars = bars.to_vec();
        self
    }

    /// Adds another way to the same result, which must have the same bits on every device but the reference
    /// (which works in f64 and only has to be as close as the tolerance).
    pub fn equals(
        mut self,
        way: &'static str,
        compute: impl Fn(&Device) -> Result<Vec<Output>> + Send + Sync + 'static,
    ) -> Self {
        self.equals.push((way, Box::new(compute)));
        self
    }

    /// The operation's name.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Shape and options.
    pub fn label(&self) -> &str {
        &self.label
    }
}
