use gruff_kernels::delta_net::{self, DeltaInputs, NetInputs};
use gruff_kernels::{Activation, StateLayer, StateShape, Tensor, norm};

use super::{Branch, Forward, Linear, RmsNorm, recurrent};
use crate::keys::Keys;
use crate::shard::Part;
use crate::weights::Module;
use crate::{Error, LayerCache, ModuleKind, Result};

/// Added to the squared length of queries and keys before the root.
const L2_EPS: f32 = 1e-6;

/// Sizes of a gated delta net.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedDeltaNetConfig {
    pub(crate) hidden_size: usize,
    num_k_heads: usize,
    num_v_heads: usize,
    head_k_dim: usize,
    head_v_dim: usize,
    conv_kernel_size: usize,
    rms_norm_eps: f32,
}

impl GatedDeltaNetConfig {
    pub(crate) fn new(keys: &Keys, hidden_size: usize, rms_norm_eps: f32) -> Result<Self> {
        let (k_heads_key, v_heads_key) = ("ssm.group_count", "ssm.time_step_rank");
        let num_k_heads = keys.require_size(k_heads_key)?;
        let num_v_heads = keys.require_size(v_heads_key)?;
        if !num_v_heads.is_multiple_of(num_k_heads) {
            let expected = format!("{num_v_heads} value heads cannot share that many key heads");
            return Err(keys.refuse(k_heads_key, num_k_heads, expected));
        }
        let inner_key = "ssm.inner_size";
        let inner = keys.require_size(inner_key)?;
        if !inner.is_multiple_of(num_v_heads) {
            return Err(keys.refuse(inner_key, inner, format!("there are {num_v_heads} value heads")));
        }
        Ok(Self {
            hidden_size,
            num_k_heads,
            num_v_heads,
            head_k_dim: keys.require_size("ssm.state_size")?,
            head_v_dim: inner / num_v_heads,
            conv_kernel_size: keys.require_size("ssm.conv_kernel")?,
            rms_norm_eps,
        })
    }

    fn key_dim(&self) -> usize {
        self.num_k_heads * self.head_k_dim
    }

    fn value_dim(&self) -> usize {
        self.num_v_heads * self.head_v_dim
    }

    fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
}

/// Linear attention by the gated delta rule (arXiv:2412.06464). Value heads are in GGUF's tiled order: value
/// head h pairs with key head h mod Hk.
#[derive(Debug)]
pub(crate) struct GatedDeltaNet {
    name: String,
    config: GatedDeltaNetConfig,
    in_proj_qkv: Linear,
    in_proj_z: Linear,
    in_proj_b: Linear,
    in_proj_a: Linear,
    /// `[conv_dim, kernel]`.
    conv1d: Tensor,
    dt_bias: Tensor,
    /// `-exp(A_log)`, as GGUF stores it.
    a_neg: Tensor,
    norm: RmsNorm,
    out_proj: Linear,
    /// The names of its queries, keys and values.
    qkv: [String; 3],
    recurrent_state: String,
}

impl GatedDeltaNet {
    pub(crate) fn load(w: Module, config: GatedDeltaNetConfig) -> Result<Self> {
        let GatedDeltaNetConfig { hidden_size, num_k_heads, num_v_heads, head_k_dim, head_v_dim, .. } =
            config;
        w.declare(ModuleKind::LinearAttention);
        // Value heads in their tiled order: as many strips as there are of them to a key head. What is left of each strip is in
        // that order again.
        let own = w.shard().even(&format!("key heads of {}", w.name()), num_k_heads)?;
        let strips = (0..num_v_heads).step_by(num_k_heads);
        let strips: Vec<_> = strips.map(|first| first + own.start..first + own.end).collect();
        let keys = Part::of_heads(std::slice::from_ref(&own), head_k_dim, num_k_heads);
        let values = Part::of_heads(&strips, head_v_dim, num_v_heads);
        let heads = Part::of_heads(&strips, 1, num_v_heads);
        let (key_dim, value_dim) = (config.key_dim(), config.value_dim());
        let mixed = Part::stacked(&[(&keys, key_dim), (&keys, key_dim), (&values, value_dim)]);
        let linear = |name, outputs, rows| {
            Linear::load_part(w.module(name), [outputs, hidden_size], [rows, &Part::All])
        };
        let conv = [config.conv_dim(), config.conv_kernel_size];
        let out_proj = w.module("out_proj");
        Ok(Self {
            in_proj_qkv: linear("in_proj_qkv", config.conv_dim(), &mixed)?,
            in_proj_z: linear("in_proj_z", value_dim, &values)?,
            in_proj_b: linear("in_proj_b", num_v_heads, &heads)?,
            in_proj_a: linear("in_proj_a", num_v_heads, &heads)?,
            conv1d: w.module("conv1d").weight_part(&conv, &mixed)?,
            dt_bias: w.parameter("dt_bias", num_v_heads, &heads)?,
            a_neg: w.parameter("A_log", num_v_heads, &heads)?,
            norm: RmsNorm::load_gated(w.module("norm"), head_v_dim, config.rms_norm_eps)?,
            out_proj: Linear::load_part(out_proj, [hidden_size, value_dim], [&Part::All, &values])?,
            qkv: ["q", "k", "v"].map(|name| w.declare_value(name)),
            recurrent_state: w.declare_value("recurrent_state"),
            name: w.name().to_owned(),
            config: GatedDeltaNetConfig {
                num_k_heads: own.len(),
                num_v_heads: heads.count(num_v_heads),
                ..config
            },
        })
    }

    /// What the layer remembers.
    pub(crate) fn cache(&self) -> LayerCache {
        LayerCache::State(StateShape {
            key_heads: self.config.num_k_heads,
            value_heads: self.config.num_v_heads,
            key_dim: self.config.head_k_dim,
            value_dim: self.config.head_v_dim,
            conv_kernel: self.config.conv_kernel_size,
            conv_channels: self.config.conv_dim(),
            rollback: 0,
        })
    }

    /// `[T, hidden] -> [T, hidden]`.
    pub(crate) fn forward(&self, cx: &Forward, x: &Activation, state: &StateLayer) -> Result<Branch<'_>> {
        if let Some(out) = cx.replaced(&self.name, x.tensor())? {
            return Ok(Branch::Value(out));
        }
        let num_v_heads = self.config.num_v_heads;
        let projections = [&self.in_proj_qkv, &self.in_proj_z, &self.in_proj_b, &self.in_proj_a];
        let [qkv, z, b, a] = Linear::forward_many(cx, x, projections)?;

        let inputs = NetInputs {
            qkv: &qkv,
            z: &z.split_last(num_v_heads)?,
            a: &a,
            b: &b,
            conv: cx.dense(&self.name, "conv1d.weight", &self.conv1d),
            dt_bias: cx.dense(&self.name, "dt_bias", &self.dt_bias),
            a_neg: cx.dense(&self.name, "A_log", &self.a_neg),
            norm: self.norm.weight(cx),
            l2_eps: L2_EPS,
            norm_eps: self.norm.eps(),
        };
        let x = if self.qkv.iter().any(|name| cx.observes(name)) || cx.observes(self.norm.name()) {
            self.forward_in_parts(cx, &inputs, state)?
        } else {
            delta_net::gated_delta_net(cx.step, &inputs, state)?
        };
        if cx.observes(&self.recurrent_state) {
            self.show_state(cx, state)?;
        }
        Ok(Branch::Linear { name: &self.name, x, projection: &self.out_proj })
    }

    /// What lies between the projections, step by step for those who look at it.
    fn forward_in_parts(&self, cx: &Forward, inputs: &NetInputs, state: &StateLayer) -> Result<Activation> {
        let GatedDeltaNetConfig { num_k_heads, num_v_heads, head_k_dim, .. } = self.config;
        let (key_dim, value_dim) = (self.config.key_dim(), self.config.value_dim());
        let NetInputs { qkv, z, a, b, .. } = *inputs;
        let mixed = cx.scratch(qkv.shape())?;
        delta_net::causal_conv(cx.step, qkv, inputs.conv, state, &mixed)?;
        let q = mixed.narrow(1, 0, key_dim)?.split_last(num_k_heads)?;
        let k = mixed.narrow(1, key_dim, key_dim)?.split_last(num_k_heads)?;
        let v = mixed.narrow(1, 2 * key_dim, value_dim)?.split_last(num_v_heads)?;
        norm::l2_norm(&q, L2_EPS, (head_k_dim as f64).sqrt().recip() as f32, &q)?;
        norm::l2_norm(&k, L2_EPS, 1.0, &k)?;
        for (name, value) in self.qkv.iter().zip([&q, &k, &v]) {
            cx.output(name, value)?;
        }

        let (decay, beta) = (cx.scratch(a.shape())?, cx.scratch(b.shape())?);
        delta_net::delta_gates(a, b, inputs.dt_bias, inputs.a_neg, &decay, &beta)?;
        let out = cx.scratch(&[cx.tokens(), value_dim])?;
        let by_head = out.split_last(num_v_heads)?;
        let rule = DeltaInputs { queries: &q, keys: &k, values: &v, decay: &decay, beta: &beta };
        delta_net::gated_delta(cx.step, &rule, state, &by_head)?;
        norm::gated_rms_norm(&by_head, inputs.norm, z, inputs.norm_eps, &by_head)?;
        cx.output(self.norm.name(), &by_head)?;
        Ok(Activation::new(&out)?)
    }

    /// Shows every sequence's recurrent state, as it is behind the step, to its hooks.
    fn show_state(&self, cx: &Forward, layer: &StateLayer) -> Result<()> {
        let shape = layer.shape();
        for (index, sequence) in cx.step.sequences().iter().enumerate() {
            let position = sequence.past + sequence.len;
            let values = recurrent::read(layer, sequence.slot, position)?;
            let state =
                cx.device().tensor_f32(&values, &[shape.value_heads, shape.key_dim, shape.value_dim])?;
            if cx.value(&self.recurrent_state, Some(index), &state)?
                && !recurrent::write(layer, sequence.slot, position, &state.to_vec_f32()?)?
            {
                let source = "a recurrent state can be replaced once 64 tokens are in it".into();
                return Err(Error::Hook { module: self.recurrent_state.clone(), source });
            }
        }
        Ok(())
    }
}
