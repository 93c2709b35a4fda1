//! What the converter knows of each architecture: transformers' classes, the keys of its configuration, and
//! where its parameters go. Both directions read the same tables.

mod config;
mod keys;
mod parameters;
mod sizes;

pub(crate) use config::Config;
pub(crate) use keys::{KEYS, Kind};
pub(crate) use parameters::{Parameter, parameters};
pub(crate) use sizes::Sizes;

/// A class of transformers that can be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// Its name, as `architectures` in config.json has it.
    pub(crate) name: &'static str,
    /// `model_type` of the language model.
    pub(crate) model_type: &'static str,
    /// `general.architecture`.
    pub(crate) architecture: &'static str,
}

const fn class(name: &'static str, model_type: &'static str, architecture: &'static str) -> Class {
    Class { name, model_type, architecture }
}

/// Every class. The first of an architecture is what GGUF files lead back to, unless their keys say otherwise.
pub(crate) const CLASSES: &[Class] = &[
    class("LlamaForCausalLM", "llama", "llama"),
    class("MistralForCausalLM", "mistral", "llama"),
    class("MixtralForCausalLM", "mixtral", "llama"),
    class("Qwen2ForCausalLM", "qwen2", "qwen2"),
    class("Qwen3ForCausalLM", "qwen3", "qwen3"),
    class("Qwen3MoeForCausalLM", "qwen3_moe", "qwen3moe"),
    class("Qwen3_5ForCausalLM", "qwen3_5_text", "qwen35"),
    class("Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen35"),
    class("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "qwen35moe"),
    class("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "qwen35moe"),
    class("Gemma3ForCausalLM", "gemma3_text", "gemma3"),
    class("Gemma3ForConditionalGeneration", "gemma3", "gemma3"),
];

/// The classes' names, for messages.
pub(crate) fn supported_classes() -> String {
    let names: Vec<_> = CLASSES.iter().map(|class| class.name).collect();
    names.join(", ")
}
