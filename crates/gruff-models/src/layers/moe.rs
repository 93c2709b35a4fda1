use gruff_kernels::matmul::Glu;
use gruff_kernels::moe::{self, Routing};
use gruff_kernels::{Activation, DType, Device, Tensor, elementwise};

use super::{Branch, ExpertStack, Forward, Linear, Mlp};
use crate::keys::Keys;
use crate::shard::Part;
use crate::weights::Module;
use crate::{ModuleKind, Result};

/// Softmax over all experts, in llama.cpp's numbering of `expert_gating_func`.
const GATING_SOFTMAX: usize = 1;

/// Sizes of a mixture of experts.
#[derive(Clone, Debug)]
pub(crate) struct MoeConfig {
    num_experts: usize,
    routing: Routing,
    /// Width of an expert, for each layer.
    moe_intermediate_size: Vec<usize>,
    /// Width of the expert that all tokens pass, where there is one.
    shared_intermediate_size: Option<usize>,
}

impl MoeConfig {
    /// Experts of `layers` blocks, as wide as `expert_feed_forward_length` says or, in files without it, as
    /// `feed_forward_length`.
    pub(crate) fn new(keys: &Keys, layers: usize) -> Result<Self> {
        let num_experts = keys.require_size("expert_count")?;
        let used_key = "expert_used_count";
        let used = keys.require_size(used_key)?;
        if used > num_experts {
            return Err(keys.refuse(used_key, used, format!("there are {num_experts} experts")));
        }
        if let Some(gating) = keys.size("expert_gating_func")?
            && gating != GATING_SOFTMAX
        {
            return Err(keys.refuse("expert_gating_func", gating, "only 1 (softmax) is supported"));
        }
        let width_key = "expert_feed_forward_length";
        let widths = match keys.per_layer(width_key, layers)? {
            Some(widths) => Some(widths),
            None => keys.per_layer("feed_forward_length", layers)?,
        };
        let moe_intermediate_size = match widths {
            Some(widths) if widths.iter().all(|width| *width > 0) => widths,
            Some(_) => return Err(keys.refuse(width_key, 0, "every layer has experts")),
            None => vec![keys.require_size(width_key)?; layers],
        };
        Ok(Self {
            num_experts,
            routing: Routing {
                used,
                renormalize: keys.flag("expert_weights_norm")?.unwrap_or(true),
                scale: keys.positive("expert_weights_scale")?.unwrap_or(1.0) as f32,
            },
            moe_intermediate_size,
            shared_intermediate_size: keys.size("expert_shared_feed_forward_length")?,
        })
    }
}

/// A sparse feed-forward: each token passes the experts that its router likes best, weighted, and the shared
/// expert where there is one.
#[derive(Debug)]
pub(crate) struct Moe {
    name: String,
    /// The name of the routed experts' module.
    experts: String,
    /// The names of the chosen experts and of their weights.
    top_k: [String; 2],
    /// The layer that it is in.
    layer: usize,
    /// The router.
    gate: Linear,
    gate_proj: ExpertStack,
    up_proj: ExpertStack,
    down_proj: ExpertStack,
    routing: Routing,
    shared: Option<SharedExpert>,
}

/// The expert that all tokens pass, times the sigmoid of a gate.
#[derive(Debug)]
struct SharedExpert {
    expert: Mlp,
    gate: Linear,
}

impl Moe {
    pub(crate) fn load(w: Module, hidden_size: usize, config: &MoeConfig, layer: usize) -> Result<Self> {
        let experts = config.num_experts;
        let width = config.moe_intermediate_size.get(layer).copied().unwrap_or(0);
        let stacks = w.module("experts");
        let fused = stacks.module("gate_up_proj");
        let down_proj = stacks.module("down_proj");
        let inner = Part::range(down_proj.shared_columns(width)?, width);
        let (gate_proj, up_proj) = if fused.exists() {
            let names = [stacks.module("gate_proj"), stacks.module("up_proj")];
            let [gate, up] = ExpertStack::load_halves(fused, names, [experts, width, hidden_size], &inner)?;
            (gate, up)
        } else {
            let shape = [experts, width, hidden_size];
            let stack = |name| ExpertStack::load(stacks.module(name), shape, [&inner, &Part::All]);
            (stack("gate_proj")?, stack("up_proj")?)
        };
        let shared = config.shared_intermediate_size.map(|width| -> Result<_> {
            Ok(SharedExpert {
                expert: Mlp::load(w.module("shared_expert"), hidden_size, width, Glu::Silu)?,
                gate: Linear::load(w.module("shared_expert_gate"), 1, hidden_size)?,
            })
        });
        w.declare(ModuleKind::FeedForward);
        stacks.declare(ModuleKind::Experts);
        let router = w.module("gate");
        Ok(Self {
            top_k: ["top_k_index", "top_k_weights"].map(|name| router.declare_value(name)),
            gate: Linear::load(router, experts, hidden_size)?,
            down_proj: ExpertStack::load(down_proj, [experts, hidden_size, width], [&Part::All, &inner])?,
            name: w.name().to_owned(),
            layer,
            experts: stacks.name().to_owned(),
            routing: config.routing,
            shared: shared.transpose()?,
            gate_proj,
            up_proj,
        })
    }

    /// `[T, hidden] -> [T, hidden]`.
    pub(crate) fn forward(&self, cx: &Forward, x: &Activation) -> Result<Branch<'_>> {
        if let Some(out) = cx.replaced(&self.name, x.tensor())? {
            return Ok(Branch::Value(out));
        }
        let (tokens, used) = (cx.tokens(), self.routing.used);
        let (logits, shared_gate) = match &self.shared {
            None => (self.gate.forward(cx, x)?, None),
            Some(shared) => {
                let [logits, gate] = Linear::forward_many(cx, x, [&self.gate, &shared.gate])?;
                (logits, Some(gate))
            }
        };
        let ids = cx.device().scratch(DType::I32, &[tokens, used])?;
        let weights = cx.scratch(&[tokens, used])?;
        moe::route(&logits, &self.routing, &ids, &weights)?;
        let [index_name, weights_name] = &self.top_k;
        cx.output(index_name, &ids)?;
        cx.output(weights_name, &weights)?;

        let shared = |cx: &Forward| -> Result<Option<Tensor>> {
            let (Some(shared), Some(gate)) = (&self.shared, &shared_gate) else { return Ok(None) };
            let expert = shared.expert.forward(cx, x)?.value(cx)?;
            elementwise::sigmoid_mul(&expert, gate)?;
            Ok(Some(expert))
        };
        let there = cx.placement.experts(self.layer);
        let (out, shared) = if there.same(cx.device()) {
            let out = self.routed(cx, x, &ids, &weights)?;
            (out, shared(cx)?)
        } else {
            self.routed_on(cx, there, [x.tensor(), &ids, &weights], shared)?
        };
        if let Some(shared) = shared {
            elementwise::add(&out, &shared)?;
        }
        let out = cx.sum_of_ranks(out)?;
        cx.output(&self.name, &out)?;
        Ok(Branch::Value(out))
    }

    /// The chosen experts of every token, weighted and summed.
    fn routed(&self, cx: &Forward, x: &Activation, ids: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let hidden = ExpertStack::glu(cx, x, ids, &self.gate_proj, &self.up_proj, Glu::Silu)?;
        let out = self.down_proj.combine(cx, &hidden, ids, weights)?;
        cx.output(&self.experts, &out)?;
        Ok(out)
    }

    /// The same on another device, which is given the experts' input, ids and weights, while this one is at work on
    /// `meanwhile`. Both results are on this one.
    fn routed_on<'a>(
        &self,
        cx: &Forward<'a>,
        there: &'a Device,
        inputs: [&Tensor; 3],
        meanwhile: impl Fn(&Forward) -> Result<Option<Tensor>>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let here = cx.device();
        cx.go_to(there);
        let [x, ids, weights] = inputs.map(|input| cx.carry(input));
        cx.go_to(here);
        let own = meanwhile(cx)?;
        cx.go_to(there);
        let (x, ids, weights) = (x?, ids?, weights?);
        let out = match cx.is_idle() {
            true => cx.scratch(x.shape())?,
            false => self.routed(cx, &Activation::new(&x)?, &ids, &weights)?,
        };
        cx.go_to(here);
        Ok((cx.carry(&out)?, own))
    }
}
