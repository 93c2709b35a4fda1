use gruff_kernels::matmul::Glu;
use gruff_kernels::{Activation, elementwise};

use super::{Branch, Forward, Linear};
use crate::shard::Part;
use crate::weights::Module;
use crate::{ModuleKind, Result};

/// A gated feed-forward (arXiv:2002.05202): `down(glu(gate(x)) * up(x))`.
#[derive(Debug)]
pub(crate) struct Mlp {
    name: String,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    glu: Glu,
}

impl Mlp {
    pub(crate) fn load(w: Module, hidden_size: usize, intermediate_size: usize, glu: Glu) -> Result<Self> {
        let down_proj = w.module("down_proj");
        let inner = Part::range(down_proj.shared_columns(intermediate_size)?, intermediate_size);
        let parts = ["gate_proj", "up_proj"].map(|name| (name, intermediate_size, inner.clone()));
        let [gate_proj, up_proj] = Linear::load_many(&w, "gate_up_proj", parts, hidden_size)?;
        let down_proj = Linear::load_part(down_proj, [hidden_size, intermediate_size], [&Part::All, &inner])?;
        w.declare(ModuleKind::FeedForward);
        Ok(Self { name: w.name().to_owned(), gate_proj, up_proj, down_proj, glu })
    }

    /// `[T, hidden] -> [T, hidden]`.
    pub(crate) fn forward(&self, cx: &Forward, x: &Activation) -> Result<Branch<'_>> {
        if let Some(out) = cx.replaced(&self.name, x.tensor())? {
            return Ok(Branch::Value(out));
        }
        let hidden = self.hidden(cx, x)?;
        Ok(Branch::Linear { name: &self.name, x: hidden, projection: &self.down_proj })
    }

    /// `[T, hidden] -> [T, intermediate]`.
    fn hidden(&self, cx: &Forward, x: &Activation) -> Result<Activation> {
        let Self { gate_proj, up_proj, glu, .. } = self;
        let biased = gate_proj.has_bias() || up_proj.has_bias();
        if biased || cx.intervenes(gate_proj.name()) || cx.intervenes(up_proj.name()) {
            let [gate, up] = Linear::forward_many(cx, x, [gate_proj, up_proj])?;
            let out = cx.scratch(gate.shape())?;
            elementwise::glu(&gate, &up, *glu, &out)?;
            return Ok(Activation::new(&out)?);
        }
        Linear::glu(cx, x, gate_proj, up_proj, *glu)
    }
}
