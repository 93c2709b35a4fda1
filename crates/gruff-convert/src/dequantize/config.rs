//! Metadata as transformers' configuration: the way back from [`crate::convert`].

use gruff_gguf::{Gguf, Metadata, TensorInfo, ValueType};
use serde_json::{Map, Value, json};

use super::values::path_of;
use crate::architecture::{CLASSES, Class, KEYS, Kind};
use crate::convert::{GEMMA3_PATTERN, llama3_divisors};
use crate::json::Document;
use crate::{Error, Result};

/// Keys of one architecture, and what transformers' configuration is made of.
struct Source<'a> {
    gguf: &'a Gguf,
    metadata: &'a Metadata,
    architecture: &'a str,
    /// Layers, without the blocks for multi-token prediction.
    layers: usize,
    blocks: usize,
}

/// The configuration of the model in `gguf`.
pub(super) fn from_metadata(gguf: &Gguf) -> Result<Document> {
    let metadata = gguf.metadata();
    let architecture = metadata.require_str("general.architecture")?;
    let name = |key: &str| format!("{architecture}.{key}");
    let blocks = metadata.require_usize(&name("block_count"))?;
    let layers = blocks.saturating_sub(metadata.usize_or(&name("nextn_predict_layers"), 0)?);
    let source = Source { gguf, metadata, architecture, layers, blocks };
    source.check_blocks()?;
    let class = source.class()?;
    let mut config = Map::new();
    config.insert("architectures".into(), json!([class.name]));
    config.insert("model_type".into(), class.model_type.into());
    source.shared(class, &mut config)?;
    config.insert("rope_parameters".into(), source.rope()?);
    match architecture {
        "qwen35" | "qwen35moe" => source.qwen35(&mut config)?,
        "gemma3" => source.gemma3(&mut config)?,
        "qwen3moe" => {
            let norm = metadata.bool_or(&name("expert_weights_norm"), true)?;
            config.insert("norm_topk_prob".into(), norm.into());
        }
        _ => {}
    }
    Ok(Document::from_object(&path_of(gguf), config))
}

/// An f32 of a file as the number with the fewest digits that it is.
fn short(number: f64) -> Value {
    let single = number as f32;
    let shortest =
        if f64::from(single) == number { single.to_string().parse().unwrap_or(number) } else { number };
    json!(shortest)
}

impl Source<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.metadata.f64(&self.name(key))? {
            Some(number) if !number.is_finite() => {
                Err(self.refuse(key, format!("is {number}, but should be a finite number")))
            }
            number => Ok(number),
        }
    }

    /// The file's tensors are of as many blocks as the file says: more would be made up, fewer would be lost.
    fn check_blocks(&self) -> Result<()> {
        let number =
            |tensor: &TensorInfo| tensor.name().strip_prefix("blk.")?.split('.').next()?.parse().ok();
        let found = self.gguf.tensors().filter_map(number).max().map_or(0, |last: u32| u64::from(last) + 1);
        // Files without the blocks for multi-token prediction may count them all the same.
        if (self.layers as u64..=self.blocks as u64).contains(&found) {
            return Ok(());
        }
        Err(self
            .refuse("block_count", format!("is {}, but the file's tensors make {found} blocks", self.blocks)))
    }

    fn refuse(&self, key: &str, fault: impl Into<String>) -> Error {
        Error::key(&path_of(self.gguf), self.name(key), fault)
    }

    /// transformers' class; GGUF does not tell Llama, Mistral and Mixtral apart, but their keys do.
    fn class(&self) -> Result<Class> {
        let count = |key: &str| self.metadata.usize_or(&self.name(key), 0);
        let wanted = match self.architecture {
            "llama" if count("expert_count")? > 0 => "mixtral",
            "llama" if count("attention.sliding_window")? > 0 => "mistral",
            _ => "",
        };
        let of_architecture = || CLASSES.iter().filter(|class| class.architecture == self.architecture);
        let found = of_architecture().find(|class| class.model_type == wanted).or(of_architecture().next());
        found.copied().ok_or_else(|| {
            let mut supported: Vec<_> = CLASSES.iter().map(|class| class.architecture).collect();
            supported.dedup();
            Error::Architecture {
                path: path_of(self.gguf),
                found: self.architecture.to_owned(),
                supported: supported.join(", "),
            }
        })
    }

    /// A size that is one number, or an array with the same number for each layer that has it.
    fn size(&self, key: &str) -> Result<Option<u32>> {
        let blocks = if self.metadata.is(&self.name(key), ValueType::Array) { self.blocks } else { 1 };
        let Some(sizes) = self.metadata.u32_per_layer(&self.name(key), blocks)? else { return Ok(None) };
        let mut sizes = sizes.into_iter().filter(|size| *size > 0);
        let Some(first) = sizes.next() else { return Ok(Some(0)) };
        if sizes.any(|size| size != first) {
            return Err(
                self.refuse(key, "differs from layer to layer, which transformers' class cannot express")
            );
        }
        Ok(Some(first))
    }

    fn shared(&self, class: Class, config: &mut Map<String, Value>) -> Result<()> {
        config.insert("num_hidden_layers".into(), self.layers.into());
        for key in KEYS.iter().filter(|key| key.is_of(self.architecture)) {
            let Some(gguf_key) = key.gguf.first() else { continue };
            let value = match key.kind {
                Kind::U32 => self.size(gguf_key)?.map(Value::from),
                Kind::F32 => self.number(gguf_key)?.map(short),
            };
            let name = match key.config {
                [_, local] if class.model_type == "mixtral" => local,
                [first, ..] => first,
                [] => continue,
            };
            match value {
                // A window of no keys is none.
                Some(value) if *name != "sliding_window" || value != json!(0) => {
                    config.insert((*name).to_owned(), value);
                }
                None if key.required => {
                    self.metadata.require_u64(&self.name(gguf_key))?;
                }
                _ => {}
            }
        }
        if class.model_type == "mixtral" && !config.contains_key("sliding_window") {
            config.insert("sliding_window".into(), Value::Null);
        }
        let embeddings = self.gguf.require("token_embd.weight")?;
        config.insert("vocab_size".into(), embeddings.rows().into());
        config.insert("tie_word_embeddings".into(), self.gguf.tensor("output.weight").is_none().into());
        if matches!(class.model_type, "llama" | "qwen3" | "qwen3_moe") {
            let bias = |tensor: &str| self.gguf.tensor(&format!("blk.0.{tensor}.bias")).is_some();
            config.insert("attention_bias".into(), (bias("attn_q") || bias("attn_output")).into());
            if class.model_type == "llama" {
                config.insert("mlp_bias".into(), bias("ffn_up").into());
            }
        }
        for role in ["bos", "eos", "pad"] {
            let key = crate::convert::tokenizer::role_key(role);
            let id = self.metadata.u32(key).ok().flatten();
            config.insert(format!("{role}_token_id"), json!(id));
        }
        Ok(())
    }

    fn rope(&self) -> Result<Value> {
        let theta = self.number("rope.freq_base")?.unwrap_or(10_000.0);
        let mut full = Map::new();
        full.insert("rope_theta".into(), short(theta));
        full.insert("rope_type".into(), "default".into());
        let factor = self.number("rope.scaling.factor")?;
        let kind = self.metadata.str_or(&self.name("rope.scaling.type"), "none")?;
        match (kind, factor) {
            ("linear", Some(factor)) => {
                full.insert("rope_type".into(), "linear".into());
                full.insert("factor".into(), short(factor));
            }
            ("yarn", Some(factor)) => {
                full.insert("rope_type".into(), "yarn".into());
                full.insert("factor".into(), short(factor));
                for (from, to) in [
                    ("rope.scaling.original_context_length", "original_max_position_embeddings"),
                    ("rope.scaling.yarn_attn_factor", "attention_factor"),
                    ("rope.scaling.yarn_beta_fast", "beta_fast"),
                    ("rope.scaling.yarn_beta_slow", "beta_slow"),
                ] {
                    if let Some(value) = self.number(from)? {
                        let whole = value.fract() == 0.0 && to.starts_with("original");
                        let value = if whole { json!(value as u64) } else { short(value) };
                        full.insert(to.to_owned(), value);
                    }
                }
            }
            ("none" | "linear", _) => {}
            (other, _) => {
                return Err(
                    self.refuse("rope.scaling.type", format!("is {other:?}, which cannot be turned back"))
                );
            }
        }
        if let Some(tensor) = self.gguf.tensor("rope_freqs.weight") {
            let divisors = tensor.block_type()?.unpack_to_vec(&self.gguf.data(tensor)?)?;
            self.llama3(theta, &divisors, &mut full)?;
        }
        if self.architecture != "gemma3" {
            return Ok(Value::Object(full));
        }
        let local = self.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
        let sliding = json!({"rope_theta": short(local), "rope_type": "default"});
        Ok(json!({"full_attention": full, "sliding_attention": sliding}))
    }

    /// The settings of Llama 3's scaling that give these divisors.
    fn llama3(&self, theta: f64, divisors: &[f32], rope: &mut Map<String, Value>) -> Result<()> {
        // Frequencies may be divided by nothing in all.
        if divisors.iter().all(|divisor| *divisor == 1.0) {
            return Ok(());
        }
        let factor = divisors.iter().copied().fold(1.0, f32::max);
        let (low, high) = (1.0, 4.0);
        let near = |context: &u64| {
            let own = llama3_divisors(theta, 2 * divisors.len() as u64, [factor, low, high, *context as f32]);
            own.iter().zip(divisors).all(|(own, found)| (own - found).abs() <= 1e-4 * found.abs())
        };
        let Some(context) = (6..=20).map(|power| 1_u64 << power).find(near) else {
            let fault =
                "holds divisors of frequencies that are none of Llama 3's, which cannot be turned back";
            return Err(Error::tensor(&path_of(self.gguf), "rope_freqs.weight", fault));
        };
        rope.insert("rope_type".into(), "llama3".into());
        rope.insert("factor".into(), short(factor.into()));
        rope.insert("low_freq_factor".into(), short(low.into()));
        rope.insert("high_freq_factor".into(), short(high.into()));
        rope.insert("original_max_position_embeddings".into(), context.into());
        Ok(())
    }

    fn qwen35(&self, config: &mut Map<String, Value>) -> Result<()> {
        let interval = self.metadata.usize_or(&self.name("full_attention_interval"), 4)?.max(1);
        config.insert("full_attention_interval".into(), interval.into());
        let is_linear = match self.flags("attention.recurrent_layers")? {
            Some(flags) => flags,
            None => (1..=self.layers).map(|layer| layer % interval != 0).collect(),
        };
        let kind = |linear: bool| if linear { "linear_attention" } else { "full_attention" };
        let types: Vec<_> = is_linear.into_iter().take(self.layers).map(kind).collect();
        config.insert("layer_types".into(), json!(types));
        let inner = self.metadata.require_u32(&self.name("ssm.inner_size"))?;
        let heads = self.metadata.require_u32(&self.name("ssm.time_step_rank"))?.max(1);
        config.insert("linear_value_head_dim".into(), (inner / heads).into());
        let head_dim = config.get("head_dim").and_then(Value::as_u64);
        let turned = self.metadata.u64(&self.name("rope.dimension_count"))?;
        let Some(Value::Object(rope)) = config.get_mut("rope_parameters") else { return Ok(()) };
        if let (Some(turned), Some(head_dim @ 1..)) = (turned, head_dim) {
            rope.insert("partial_rotary_factor".into(), json!(turned as f64 / head_dim as f64));
        }
        if let Some(sections) = self.metadata.u32_array(&self.name("rope.dimension_sections"))? {
            let three: Vec<u32> = sections.iter().copied().take(3).collect();
            rope.insert("mrope_section".into(), json!(three));
            rope.insert("mrope_interleaved".into(), true.into());
        }
        Ok(())
    }

    fn gemma3(&self, config: &mut Map<String, Value>) -> Result<()> {
        let is_sliding = match self.flags("attention.sliding_window_pattern")? {
            Some(flags) => flags,
            None => (1..=self.layers).map(|layer| layer % GEMMA3_PATTERN != 0).collect(),
        };
        let kind = |sliding: bool| if sliding { "sliding_attention" } else { "full_attention" };
        config.insert("layer_types".into(), is_sliding.into_iter().map(kind).collect());
        let number = |key: &str| config.get(key).and_then(Value::as_f64);
        let scalar = match self.number("attention.scale")? {
            Some(scale) if scale > 0.0 => Some((scale * scale).recip()),
            // Known of the one published size that differs.
            _ if self.layers == 62 => {
                number("hidden_size").zip(number("num_attention_heads")).map(|(h, n)| h / n)
            }
            _ => number("head_dim"),
        };
        if let Some(scalar) = scalar {
            // A whole number, but for the rounding of its root.
            let whole = scalar.round();
            let scalar = if (scalar - whole).abs() < 1e-3 { json!(whole as u64) } else { json!(scalar) };
            config.insert("query_pre_attn_scalar".into(), scalar);
        }
        Ok(())
    }

    /// An array of truth values, one a block, if the key is there and an array.
    fn flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        let name = self.name(key);
        let Some(array) = self.metadata.get(&name).and_then(|value| value.as_array()) else {
            return Ok(None);
        };
        let flags: Vec<bool> = match array.ints() {
            Some(ints) => ints.map(|value| value != 0).collect(),
            None => self.metadata.require_bool_array(&name)?.to_vec(),
        };
        if flags.len() < self.layers {
            return Err(self.refuse(key, format!("has {} values for {} layers", flags.len(), self.layers)));
        }
        Ok(Some(flags))
    }
}
