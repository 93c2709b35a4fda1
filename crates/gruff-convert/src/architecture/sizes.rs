use super::Config;
use crate::Result;

/// The largest size that any dimension of a model has, with a margin: products of two fit in 64 bits.
const LARGEST: u32 = 1 << 24;

/// The sizes of a model, checked so that products of any three are sound.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) vocab: u64,
    pub(crate) hidden: u64,
    pub(crate) layers: u64,
    /// Blocks for multi-token prediction behind the layers.
    pub(crate) mtp_layers: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    /// Whether queries come with a gate of the same width.
    pub(crate) gated: bool,
    pub(crate) qk_norm: bool,
    pub(crate) intermediate: u64,
    pub(crate) experts: Option<Experts>,
    pub(crate) linear: Option<Linear>,
    /// One a layer: linear attention.
    pub(crate) is_linear: Vec<bool>,
    pub(crate) tied: bool,
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) count: u64,
    pub(crate) width: u64,
    pub(crate) shared_width: Option<u64>,
}

/// Sizes of gated delta nets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) k_heads: u64,
    pub(crate) v_heads: u64,
    pub(crate) k_dim: u64,
    pub(crate) v_dim: u64,
    pub(crate) kernel: u64,
}

impl Linear {
    pub(crate) fn keys(&self) -> u64 {
        self.k_heads * self.k_dim
    }

    pub(crate) fn values(&self) -> u64 {
        self.v_heads * self.v_dim
    }

    pub(crate) fn channels(&self) -> u64 {
        2 * self.keys() + self.values()
    }
}

impl Sizes {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let size = |key: &str| check(config, key, config.document.require_u32(key)?);
        let architecture = config.architecture();
        let (hidden, heads) = (size("hidden_size")?, size("num_attention_heads")?);
        let head_dim = match config.document.u32("head_dim")? {
            Some(dim) => check(config, "head_dim", dim)?,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                let fault = format!("is {heads}, by which the hidden size {hidden} cannot be divided");
                return Err(config.document.refuse("num_attention_heads", fault));
            }
        };
        let experts = experts(config)?;
        let linear = linear(config)?;
        let layers = size("num_hidden_layers")?;
        let is_linear = match (&linear, config.layer_types()?) {
            (None, _) => vec![false; layers as usize],
            (Some(_), Some(types)) => types.iter().map(|kind| *kind == "linear_attention").collect(),
            (Some(_), None) => {
                let interval = config.document.u32("full_attention_interval")?.unwrap_or(4).max(1);
                (1..=layers).map(|layer| layer % u64::from(interval) != 0).collect()
            }
        };
        let mtp = if linear.is_some() { config.document.u32("mtp_num_hidden_layers")? } else { None };
        let intermediate = match config.document.u32("intermediate_size")? {
            Some(width) => check(config, "intermediate_size", width)?,
            None if experts.is_some() => 0,
            None => size("intermediate_size")?,
        };
        Ok(Sizes {
            vocab: size("vocab_size")?,
            hidden,
            layers,
            mtp_layers: u64::from(mtp.unwrap_or(0)),
            heads,
            kv_heads: size("num_key_value_heads")?,
            head_dim,
            gated: linear.is_some(),
            qk_norm: !matches!(architecture, "llama" | "qwen2"),
            intermediate,
            experts,
            linear,
            is_linear,
            tied: config.tied()?,
        })
    }
}

fn check(config: &Config, key: &str, size: u32) -> Result<u64> {
    if (1..=LARGEST).contains(&size) {
        return Ok(size.into());
    }
    Err(config.document.refuse(key, format!("is {size}, where sizes from 1 to {LARGEST} are possible")))
}

fn experts(config: &Config) -> Result<Option<Experts>> {
    let optional = |key: &str| match config.document.u32(key)? {
        Some(size) => check(config, key, size).map(Some),
        None => Ok(None),
    };
    let count_key = match config.document.get("num_local_experts") {
        Some(_) => "num_local_experts",
        None => "num_experts",
    };
    let width_key = match config.class.model_type {
        "mixtral" => "intermediate_size",
        "qwen3_moe" | "qwen3_5_moe" | "qwen3_5_moe_text" => "moe_intermediate_size",
        _ => return Ok(None),
    };
    Ok(Some(Experts {
        count: check(config, count_key, config.document.require_u32(count_key)?)?,
        width: check(config, width_key, config.document.require_u32(width_key)?)?,
        shared_width: match config.architecture() {
            "qwen35moe" => optional("shared_expert_intermediate_size")?,
            _ => None,
        },
    }))
}

fn linear(config: &Config) -> Result<Option<Linear>> {
    if !matches!(config.architecture(), "qwen35" | "qwen35moe") {
        return Ok(None);
    }
    let size = |key: &str| check(config, key, config.document.require_u32(key)?);
    let linear = Linear {
        k_heads: size("linear_num_key_heads")?,
        v_heads: size("linear_num_value_heads")?,
        k_dim: size("linear_key_head_dim")?,
        v_dim: size("linear_value_head_dim")?,
        kernel: size("linear_conv_kernel_dim")?,
    };
    if !linear.v_heads.is_multiple_of(linear.k_heads) {
        let fault = format!("is {}, which {} key heads cannot share", linear.v_heads, linear.k_heads);
        return Err(config.document.refuse("linear_num_value_heads", fault));
    }
    Ok(Some(linear))
}
