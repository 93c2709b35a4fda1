use std::path::Path;

use serde_json::Value;

use super::{CLASSES, Class, supported_classes};
use crate::json::Document;
use crate::{Error, Result};

/// Values that transformers fills in where config.json is silent, for models that are published so.
const DEFAULTS: &[(&str, &[(&str, f64)])] = &[
    ("llama", &[("max_position_embeddings", 2048.0), ("rms_norm_eps", 1e-6), ("rope_theta", 10_000.0)]),
    ("qwen2", &[("max_position_embeddings", 32_768.0), ("rms_norm_eps", 1e-6), ("rope_theta", 10_000.0)]),
    (
        "qwen3",
        &[
            ("max_position_embeddings", 32_768.0),
            ("rms_norm_eps", 1e-6),
            ("rope_theta", 10_000.0),
            ("head_dim", 128.0),
        ],
    ),
    ("qwen3moe", &[("max_position_embeddings", 32_768.0), ("rms_norm_eps", 1e-6), ("rope_theta", 10_000.0)]),
    (
        "gemma3",
        &[
            ("vocab_size", 262_208.0),
            ("max_position_embeddings", 131_072.0),
            ("num_attention_heads", 8.0),
            ("num_key_value_heads", 4.0),
            ("head_dim", 256.0),
            ("rms_norm_eps", 1e-6),
            ("rope_theta", 1_000_000.0),
            ("rope_local_base_freq", 10_000.0),
            ("sliding_window", 4096.0),
        ],
    ),
];

/// The configuration of a model in transformers' words.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) document: Document,
    pub(crate) class: Class,
}

impl Config {
    /// Reads `config.json` of a folder. The part about the language model of a multimodal one is laid over the
    /// rest.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        Self::new(Document::read(&folder.join("config.json"))?)
    }

    /// The configuration that a document states.
    pub(crate) fn new(mut document: Document) -> Result<Self> {
        let mut class_name = first_class(&document);
        if let Some(text) = document.section("text_config")? {
            // What transformers writes for the part is a class too, but `model_type` of the whole is known as well.
            class_name = first_class(&text).or(class_name);
            for (key, value) in text.object() {
                if !value.is_null() {
                    document.insert(key, value.clone());
                }
            }
        }
        let model_type = document.str("model_type")?.unwrap_or_default();
        let known = CLASSES
            .iter()
            .find(|class| class_name.as_deref() == Some(class.name))
            .or_else(|| CLASSES.iter().find(|class| class_name.is_none() && class.model_type == model_type));
        let Some(class) = known.copied() else {
            return Err(Error::Architecture {
                path: document.path().to_owned(),
                found: class_name.unwrap_or_else(|| model_type.to_owned()),
                supported: supported_classes(),
            });
        };
        if let Some(method) = document.section("quantization_config")? {
            let method = method.str("quant_method")?.unwrap_or("unknown").to_owned();
            let fault =
                format!("says that weights are quantized ({method}); convert the model they were made of");
            return Err(document.refuse("quantization_config", fault));
        }
        let mut config = Config { document, class };
        config.fill_in()?;
        Ok(config)
    }

    pub(crate) fn architecture(&self) -> &'static str {
        self.class.architecture
    }

    fn fill_in(&mut self) -> Result<()> {
        let architecture = self.architecture();
        let rope = ["rope_parameters", "rope_scaling"].iter().find_map(|key| self.document.get(key)).cloned();
        for (key, value) in DEFAULTS.iter().filter(|(name, _)| *name == architecture).flat_map(|(_, v)| *v) {
            // The modern form has its own.
            let stated = key.starts_with("rope_")
                && rope.as_ref().is_some_and(|rope| {
                    rope.get("rope_theta").is_some() || rope.get("full_attention").is_some()
                });
            if self.document.get(key).is_none() && !stated {
                let value = if value.fract() == 0.0 && !key.starts_with("rope_") {
                    Value::from(*value as u64)
                } else {
                    Value::from(*value)
                };
                self.document.insert(key, value);
            }
        }
        let heads = self.document.require_u32("num_attention_heads")?;
        if self.document.get("num_key_value_heads").is_none() {
            self.document.insert("num_key_value_heads", heads);
        }
        // These classes' configurations compute it, the others leave it out.
        let computes = matches!(self.class.model_type, "llama" | "mistral");
        if self.document.get("head_dim").is_none() && computes {
            let hidden = self.document.require_u32("hidden_size")?;
            if heads == 0 || !hidden.is_multiple_of(heads) {
                let fault = format!("is {heads}, by which the hidden size {hidden} cannot be divided");
                return Err(self.document.refuse("num_attention_heads", fault));
            }
            self.document.insert("head_dim", hidden / heads);
        }
        Ok(())
    }

    /// Whether the head shares the embedding's weights.
    pub(crate) fn tied(&self) -> Result<bool> {
        let default = self.architecture() == "gemma3";
        Ok(self.document.bool("tie_word_embeddings")?.unwrap_or(default))
    }

    /// `layer_types`, if it is there: one a layer.
    pub(crate) fn layer_types(&self) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.document.get("layer_types") else { return Ok(None) };
        let types: Option<Vec<&str>> =
            value.as_array().and_then(|types| types.iter().map(Value::as_str).collect());
        let layers = self.document.require_u32("num_hidden_layers")? as usize;
        match types {
            Some(types) if types.len() == layers => {
                match types.iter().find(|kind| !LAYER_TYPES.contains(kind)) {
                    None => Ok(Some(types)),
                    Some(kind) => {
                        let fault = format!("has {kind:?}; {} can be converted", LAYER_TYPES.join(", "));
                        Err(self.document.refuse("layer_types", fault))
                    }
                }
            }
            Some(types) => {
                let fault = format!("names {} layers, where there are {layers}", types.len());
                Err(self.document.refuse("layer_types", fault))
            }
            None => Err(self.document.refuse("layer_types", "should be an array of names")),
        }
    }

    /// Rotary positions.
    pub(crate) fn rope(&self) -> Result<Rope> {
        Rope::new(&self.document)
    }
}

/// What a layer mixes tokens with, in transformers' words.
const LAYER_TYPES: [&str; 3] = ["full_attention", "sliding_attention", "linear_attention"];

fn first_class(document: &Document) -> Option<String> {
    Some(document.get("architectures")?.as_array()?.first()?.as_str()?.to_owned())
}

/// Rotary positions, from both the modern `rope_parameters` and the keys that came before it.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Of layers that see everything.
    pub(crate) full: Document,
    pub(crate) theta: Option<f64>,
    /// `default`, `linear`, `yarn`, `llama3`, …
    pub(crate) kind: String,
    /// Base of layers with a window.
    pub(crate) sliding_theta: Option<f64>,
    pub(crate) partial_rotary_factor: Option<f64>,
    pub(crate) mrope_section: Option<Vec<u32>>,
}

impl Rope {
    fn new(config: &Document) -> Result<Self> {
        let empty = || Document::from_object(config.path(), serde_json::Map::new());
        let all = match config.section("rope_parameters")? {
            Some(all) => all,
            None => config.section("rope_scaling")?.unwrap_or_else(empty),
        };
        let full = all.section("full_attention")?.unwrap_or_else(|| all.clone());
        let theta = match full.f64("rope_theta")? {
            Some(theta) => Some(theta),
            None => config.f64("rope_theta")?,
        };
        let sliding_theta = match all.section("sliding_attention")? {
            Some(sliding) => sliding.f64("rope_theta")?,
            None => config.f64("rope_local_base_freq")?,
        };
        let kind = match full.str("rope_type")? {
            Some(kind) => kind,
            None => full.str("type")?.unwrap_or("default"),
        };
        let partial_rotary_factor = match full.f64("partial_rotary_factor")? {
            Some(factor) => Some(factor),
            None => config.f64("partial_rotary_factor")?,
        };
        let mrope_section = match full.get("mrope_section").map(|sections| sections.as_array()) {
            None => None,
            Some(sections) => {
                let numbers = sections.and_then(|sections| {
                    sections.iter().map(|s| s.as_u64().and_then(|s| u32::try_from(s).ok())).collect()
                });
                let fault = || config.refuse("rope_parameters.mrope_section", "should be an array of sizes");
                Some(numbers.ok_or_else(fault)?)
            }
        };
        let kind = kind.to_lowercase();
        Ok(Rope { theta, kind, sliding_theta, partial_rotary_factor, mrope_section, full })
    }
}
