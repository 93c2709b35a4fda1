//! The configuration of a model as GGUF metadata.

use gruff_gguf::Metadata;

use crate::Result;
use crate::architecture::{Config, KEYS, Kind, Sizes};

/// One layer in six of Gemma 3 sees everything, unless `layer_types` says otherwise.
pub(crate) const GEMMA3_PATTERN: usize = 6;
/// The default of `rope.dimension_sections`, as transformers has it.
const QWEN35_SECTIONS: [u32; 3] = [11, 11, 10];
/// The default of `partial_rotary_factor` in Qwen3.5.
const QWEN35_ROTARY: f64 = 0.25;

/// Describes the model in `metadata`.
pub(super) fn describe(config: &Config, sizes: &Sizes, metadata: &mut Metadata) -> Result<()> {
    let architecture = config.architecture();
    let document = &config.document;
    let name = |key: &str| format!("{architecture}.{key}");
    metadata.insert(&name("block_count"), (sizes.layers + sizes.mtp_layers) as u32);
    for key in KEYS.iter().filter(|key| key.is_of(architecture)) {
        let Some(config_key) = key.config.iter().find(|key| document.get(key).is_some()) else {
            if key.required {
                return Err(document.refuse(key.config[0], "is missing"));
            }
            continue;
        };
        for gguf_key in key.gguf {
            match key.kind {
                Kind::U32 => metadata.insert(&name(gguf_key), document.require_u32(config_key)?),
                Kind::F32 => {
                    let number = document.f64(config_key)?.unwrap_or_default();
                    metadata.insert(&name(gguf_key), number as f32)
                }
            };
        }
    }
    rope(config, sizes, metadata)?;
    match architecture {
        "llama" => {
            metadata.insert("llama.rope.dimension_count", sizes.head_dim as u32);
        }
        "qwen35" | "qwen35moe" => qwen35(config, sizes, metadata)?,
        "gemma3" => gemma3(config, sizes, metadata)?,
        _ => {}
    }
    if document.bool("norm_topk_prob")? == Some(false) && architecture == "qwen3moe" {
        metadata.insert(&name("expert_weights_norm"), false);
    }
    if document.bool("use_sliding_window")? == Some(true)
        && matches!(architecture, "qwen2" | "qwen3" | "qwen3moe")
    {
        tracing::warn!("use_sliding_window is not kept: files of {architecture} have no place for it");
    }
    Ok(())
}

/// `rope.*`, but for what one architecture alone has.
fn rope(config: &Config, sizes: &Sizes, metadata: &mut Metadata) -> Result<()> {
    let architecture = config.architecture();
    let name = |key: &str| format!("{architecture}.{key}");
    let rope = config.rope()?;
    let full = &rope.full;
    let factor = full.f64("factor")?;
    match (rope.kind.as_str(), factor) {
        ("linear", Some(factor)) => {
            metadata.insert(&name("rope.scaling.type"), "linear");
            metadata.insert(&name("rope.scaling.factor"), factor as f32);
        }
        ("yarn", Some(factor)) => {
            metadata.insert(&name("rope.scaling.type"), "yarn");
            metadata.insert(&name("rope.scaling.factor"), factor as f32);
            let original = match full.u32("original_max_position_embeddings")? {
                Some(original) => original,
                None => config.document.require_u32("original_max_position_embeddings")?,
            };
            metadata.insert(&name("rope.scaling.original_context_length"), original);
            for (from, to) in [
                ("extrapolation_factor", "rope.scaling.yarn_ext_factor"),
                ("attention_factor", "rope.scaling.yarn_attn_factor"),
                ("attn_factor", "rope.scaling.yarn_attn_factor"),
                ("beta_fast", "rope.scaling.yarn_beta_fast"),
                ("beta_slow", "rope.scaling.yarn_beta_slow"),
            ] {
                if let Some(value) = full.f64(from)? {
                    metadata.insert(&name(to), value as f32);
                }
            }
        }
        // Written as a tensor of divisors.
        ("llama3", _) | ("default", _) => {}
        (other, _) => {
            let fault = format!("is {other:?}; default, linear, yarn and llama3 can be converted");
            return Err(config.document.refuse("rope_parameters.rope_type", fault));
        }
    }
    if let Some(theta) = rope.theta {
        metadata.insert(&name("rope.freq_base"), theta as f32);
    }
    if let Some(theta) = rope.sliding_theta {
        metadata.insert(&name("rope.freq_base_swa"), theta as f32);
    }
    let is_qwen35 = matches!(architecture, "qwen35" | "qwen35moe");
    if let Some(sections) = rope.mrope_section.clone().or(is_qwen35.then(|| QWEN35_SECTIONS.to_vec())) {
        let mut four: Vec<i32> = sections.iter().take(4).map(|section| *section as i32).collect();
        four.resize(4, 0);
        metadata.insert(&name("rope.dimension_sections"), four);
    }
    if is_qwen35 {
        let factor = rope.partial_rotary_factor.unwrap_or(QWEN35_ROTARY);
        metadata.insert(&name("rope.dimension_count"), (sizes.head_dim as f64 * factor) as u32);
    }
    Ok(())
}

fn qwen35(config: &Config, sizes: &Sizes, metadata: &mut Metadata) -> Result<()> {
    let name = |key: &str| format!("{}.{key}", config.architecture());
    if let Some(linear) = &sizes.linear {
        metadata.insert(&name("ssm.inner_size"), linear.values() as u32);
    }
    let mut recurrent = sizes.is_linear.clone();
    recurrent.resize((sizes.layers + sizes.mtp_layers) as usize, false);
    metadata.insert(&name("attention.recurrent_layers"), recurrent);
    let interval = config.document.u32("full_attention_interval")?.unwrap_or(4);
    metadata.insert(&name("full_attention_interval"), interval);
    if sizes.mtp_layers > 0 {
        metadata.insert(&name("nextn_predict_layers"), sizes.mtp_layers as u32);
    }
    Ok(())
}

fn gemma3(config: &Config, sizes: &Sizes, metadata: &mut Metadata) -> Result<()> {
    if let Some(types) = config.layer_types()? {
        let sliding: Vec<bool> = types.iter().map(|kind| *kind == "sliding_attention").collect();
        let usual = (1..=sliding.len()).map(|layer| layer % GEMMA3_PATTERN != 0);
        if !sliding.iter().copied().eq(usual) {
            metadata.insert("gemma3.attention.sliding_window_pattern", sliding);
        }
    }
    if config.document.f64("attn_logit_softcapping")?.is_some() {
        let fault = "is set, which no file of gemma3 has a place for";
        return Err(config.document.refuse("attn_logit_softcapping", fault));
    }
    // Programs know the scale of each published size; only another one needs saying.
    let usual =
        if sizes.layers == 62 { sizes.hidden as f64 / sizes.heads as f64 } else { sizes.head_dim as f64 };
    if let Some(scalar) = config.document.f64("query_pre_attn_scalar")?
        && scalar != usual
        && scalar > 0.0
    {
        metadata.insert("gemma3.attention.scale", scalar.sqrt().recip() as f32);
    }
    Ok(())
}

/// Divisors of the rotary frequencies of Llama 3.1 and later, one a pair of dimensions.
pub(super) fn rope_freqs(config: &Config, sizes: &Sizes) -> Result<Option<Vec<f32>>> {
    let rope = config.rope()?;
    if rope.kind != "llama3" {
        return Ok(None);
    }
    let mut settings = [8.0, 1.0, 4.0, 8192.0];
    let keys = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];
    for (setting, key) in settings.iter_mut().zip(keys) {
        if let Some(number) = rope.full.f64(key)? {
            *setting = number as f32;
        }
    }
    Ok(Some(llama3_divisors(rope.theta.unwrap_or(10_000.0), sizes.head_dim, settings)))
}

/// What frequencies of the base `theta` are divided by: nothing below a wavelength of `context / high`, `factor`
/// above `context / low`, and something between the two between them.
pub(crate) fn llama3_divisors(theta: f64, head_dim: u64, settings: [f32; 4]) -> Vec<f32> {
    let [factor, low, high, context] = settings;
    let divisor = |pair: u64| {
        let frequency = (theta as f32).powf(2.0 * pair as f32 / head_dim as f32).recip();
        let wavelength = 2.0 * std::f32::consts::PI / frequency;
        if wavelength < context / high {
            1.0
        } else if wavelength > context / low {
            factor
        } else {
            let smooth = (context / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..head_dim / 2).map(divisor).collect()
}
