//! The key-value pairs of the file.

use std::error::Error;

use gruff_gguf::{Array, Metadata, Strings, Value};

use crate::mix::Mix;
use crate::shape::{CONV, FeedForward, HEAD, INTERVAL, KEY_HEADS, STATE, Shape, VOCABULARY};

/// Token type of entries that stand for nothing (`LLAMA_TOKEN_TYPE_UNUSED`).
const UNUSED: i32 = 5;

/// Describes the model; the tokenizer comes from `vocab`.
pub(crate) fn describe(shape: &Shape, mix: &Mix, vocab: &Metadata) -> Result<Metadata, Box<dyn Error>> {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", shape.architecture());
    metadata.insert("general.type", "model");
    metadata.insert("general.name", format!("Qwen3.5-{} shape, random weights, {}", shape.name, mix.name()));
    metadata.insert("general.size_label", shape.name);
    metadata.insert("general.quantization_version", 2_u32);
    if let Some(number) = mix.file_type() {
        metadata.insert("general.file_type", number);
    }
    hyper_parameters(&mut metadata, shape)?;
    tokenizer(&mut metadata, vocab)?;
    Ok(metadata)
}

fn hyper_parameters(metadata: &mut Metadata, shape: &Shape) -> Result<(), Box<dyn Error>> {
    let architecture = shape.architecture();
    let mut set = |key: &str, value: Value| metadata.insert(&format!("{architecture}.{key}"), value);
    set("block_count", shape.layers.into());
    set("context_length", 262_144_u32.into());
    set("rope.freq_base", 1e7_f32.into());
    set("rope.dimension_count", 64_u32.into());
    set("rope.dimension_sections", vec![11_i32, 11, 10, 0].into());
    set("attention.layer_norm_rms_epsilon", 1e-6_f32.into());
    set(
        "attention.recurrent_layers",
        (0..shape.layers).map(|i| shape.is_linear(i)).collect::<Vec<bool>>().into(),
    );
    set("full_attention_interval", INTERVAL.into());
    let mut numbers = vec![
        ("embedding_length", shape.hidden),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", HEAD),
        ("attention.value_length", HEAD),
        ("ssm.conv_kernel", CONV),
        ("ssm.state_size", STATE),
        ("ssm.group_count", KEY_HEADS),
        ("ssm.time_step_rank", shape.value_heads),
        ("ssm.inner_size", shape.inner()),
    ];
    match shape.feed_forward {
        FeedForward::Dense(width) => numbers.push(("feed_forward_length", width)),
        FeedForward::Experts { count, used, width, shared } => numbers.extend([
            ("expert_count", count),
            ("expert_used_count", used),
            ("expert_feed_forward_length", width),
            ("expert_shared_feed_forward_length", shared),
        ]),
    }
    for (key, number) in numbers {
        set(key, u32::try_from(number)?.into());
    }
    Ok(())
}

/// Takes over every `tokenizer.*` pair and fills the vocabulary up with dummy tokens.
fn tokenizer(metadata: &mut Metadata, vocab: &Metadata) -> Result<(), Box<dyn Error>> {
    let size = usize::try_from(VOCABULARY)?;
    for (key, value) in vocab.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        let value = match (key, value) {
            ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))) => {
                if tokens.len() > size {
                    return Err(format!(
                        "the vocabulary has {} tokens, more than the model's {size}",
                        tokens.len()
                    )
                    .into());
                }
                let mut padded: Strings = tokens.iter().collect();
                (tokens.len()..size).for_each(|id| padded.push(format!("[PAD{id}]")));
                padded.into()
            }
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))) => {
                let mut padded = types.clone();
                padded.resize(size, UNUSED);
                padded.into()
            }
            ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))) => {
                let mut padded = scores.clone();
                padded.resize(size, 0.0);
                padded.into()
            }
            (_, value) => value.clone(),
        };
        metadata.insert(key, value);
    }
    if !metadata.contains("tokenizer.ggml.tokens") {
        return Err("the file given as --vocab has no tokenizer.ggml.tokens".into());
    }
    Ok(())
}
