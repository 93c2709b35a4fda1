//! A small hybrid: gated delta net and gated attention in turn, a byte-level vocabulary, a ChatML template.

use std::path::Path;

use gruff::floors::blocks::BlockType;
use gruff::floors::blocks::synthetic::fill_blocks;
use gruff::floors::gguf::{Error, Metadata, Strings, Writer};

/// Tokens of context.
pub(crate) const CONTEXT: u32 = 512;

const LAYERS: u32 = 4;
const HIDDEN: u64 = 64;
const FEED_FORWARD: u64 = 96;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD_DIM: u64 = 32;
/// Heads of the delta net, the width of each, and the width of what enters its convolution.
const DELTA_HEADS: u64 = 4;
const DELTA_DIM: u64 = 16;
const CONVOLVED: u64 = 128;

/// Merges of the vocabulary, in byte-level BPE's alphabet.
const MERGES: [&str; 4] = ["h e", "Ġ t", "Ġt he", "l l"];
/// Tokens behind bytes and merges, with their types: 3 is control, 4 is user-defined.
const SPECIAL: [(&str, i32); 5] =
    [("<|endoftext|>", 3), ("<|im_start|>", 3), ("<|im_end|>", 3), ("<think>", 4), ("</think>", 4)];

const TEMPLATE: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined %}
        {{- '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}";

/// Writes the model.
pub(crate) fn write(path: &Path) -> Result<(), Error> {
    let mut writer = Writer::new(metadata());
    let tensors = tensors();
    for Tensor { name, shape, .. } in &tensors {
        writer.add(name, shape, block_type(shape))?;
    }
    let mut file = writer.create(path)?;
    for (seed, tensor) in (0..).zip(&tensors) {
        file.write(&tensor.name, &tensor.bytes(seed))?;
    }
    file.finish()?;
    Ok(())
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "qwen35");
    metadata.insert("general.name", "tiny random");
    metadata.insert("general.size_label", "300K");
    metadata.insert("general.file_type", 7_u32);
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", CONTEXT),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", FEED_FORWARD as u32),
        ("attention.head_count", HEADS as u32),
        ("attention.head_count_kv", KV_HEADS as u32),
        ("attention.key_length", HEAD_DIM as u32),
        ("attention.value_length", HEAD_DIM as u32),
        ("rope.dimension_count", 16),
        ("full_attention_interval", 2),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", DELTA_DIM as u32),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", DELTA_HEADS as u32),
        ("ssm.inner_size", (DELTA_HEADS * DELTA_DIM) as u32),
    ] {
        metadata.insert(&format!("qwen35.{key}"), value);
    }
    metadata.insert("qwen35.rope.dimension_sections", vec![3_i32, 3, 2, 0]);
    metadata.insert("qwen35.attention.layer_norm_rms_epsilon", 1e-6_f32);
    let (tokens, types) = vocabulary();
    let id = |token: &str| tokens.iter().position(|known| known == token).unwrap_or_default() as u32;
    metadata.insert("tokenizer.ggml.eos_token_id", id("<|im_end|>"));
    metadata.insert("tokenizer.ggml.padding_token_id", id("<|endoftext|>"));
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", "qwen2");
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.tokens", tokens.iter().collect::<Strings>());
    metadata.insert("tokenizer.ggml.merges", MERGES.iter().collect::<Strings>());
    metadata.insert("tokenizer.chat_template", TEMPLATE);
    metadata
}

/// One token a byte, one a merge, and the special ones; with their types.
fn vocabulary() -> (Vec<String>, Vec<i32>) {
    // GPT-2 writes bytes that are no visible characters of Latin-1 as characters from U+0100 on.
    let visible = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut hidden = '\u{100}'..;
    let letter = |byte: u8| if visible(&byte) { char::from(byte) } else { hidden.next().unwrap_or_default() };
    let mut tokens: Vec<String> = (0..=255).map(letter).map(String::from).collect();
    tokens.extend(MERGES.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for (token, kind) in SPECIAL {
        tokens.push(token.to_owned());
        types.push(kind);
    }
    (tokens, types)
}

struct Tensor {
    name: String,
    shape: Vec<u64>,
    /// Around what its values lie; 0 for matrices.
    center: f32,
}

impl Tensor {
    fn bytes(&self, seed: u64) -> Vec<u8> {
        let block_type = block_type(&self.shape);
        let values: u64 = self.shape.iter().product();
        let mut bytes = vec![0; values as usize / block_type.values() * block_type.bytes()];
        fill_blocks(block_type, seed, 0, 0.05..0.2, &mut bytes);
        if block_type == BlockType::F32 {
            for value in bytes.chunks_exact_mut(4) {
                let random = f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                value.copy_from_slice(&(self.center + random).to_le_bytes());
            }
        }
        bytes
    }
}

/// Matrices are Q8_0, vectors and the convolution F32.
fn block_type(shape: &[u64]) -> BlockType {
    if shape.len() > 1 && shape[0] >= HIDDEN { BlockType::Q8_0 } else { BlockType::F32 }
}

fn tensors() -> Vec<Tensor> {
    let vocabulary = vocabulary().0.len() as u64;
    let mut tensors = vec![tensor("token_embd.weight", &[HIDDEN, vocabulary], 0.0)];
    for layer in 0..LAYERS {
        let (mut block, delta) = (common(), delta_net());
        block.extend(if layer % 2 == 0 { delta } else { attention() });
        tensors.extend(block.into_iter().map(|mut tensor| {
            tensor.name.insert_str(0, &format!("blk.{layer}."));
            tensor
        }));
    }
    tensors.push(tensor("output_norm.weight", &[HIDDEN], 1.0));
    tensors.push(tensor("output.weight", &[HIDDEN, vocabulary], 0.0));
    tensors
}

fn tensor(name: &str, shape: &[u64], center: f32) -> Tensor {
    Tensor { name: name.to_owned(), shape: shape.to_vec(), center }
}

fn common() -> Vec<Tensor> {
    vec![
        tensor("attn_norm.weight", &[HIDDEN], 1.0),
        tensor("post_attention_norm.weight", &[HIDDEN], 1.0),
        tensor("ffn_gate.weight", &[HIDDEN, FEED_FORWARD], 0.0),
        tensor("ffn_up.weight", &[HIDDEN, FEED_FORWARD], 0.0),
        tensor("ffn_down.weight", &[FEED_FORWARD, HIDDEN], 0.0),
    ]
}

fn delta_net() -> Vec<Tensor> {
    let inner = DELTA_HEADS * DELTA_DIM;
    vec![
        tensor("attn_qkv.weight", &[HIDDEN, CONVOLVED], 0.0),
        tensor("attn_gate.weight", &[HIDDEN, inner], 0.0),
        tensor("ssm_alpha.weight", &[HIDDEN, DELTA_HEADS], 0.0),
        tensor("ssm_beta.weight", &[HIDDEN, DELTA_HEADS], 0.0),
        tensor("ssm_conv1d.weight", &[4, CONVOLVED], 0.0),
        tensor("ssm_dt.bias", &[DELTA_HEADS], 0.5),
        tensor("ssm_a", &[DELTA_HEADS], -1.0),
        tensor("ssm_norm.weight", &[DELTA_DIM], 1.0),
        tensor("ssm_out.weight", &[inner, HIDDEN], 0.0),
    ]
}

fn attention() -> Vec<Tensor> {
    vec![
        // Queries and their gates.
        tensor("attn_q.weight", &[HIDDEN, 2 * HEADS * HEAD_DIM], 0.0),
        tensor("attn_k.weight", &[HIDDEN, KV_HEADS * HEAD_DIM], 0.0),
        tensor("attn_v.weight", &[HIDDEN, KV_HEADS * HEAD_DIM], 0.0),
        tensor("attn_output.weight", &[HEADS * HEAD_DIM, HIDDEN], 0.0),
        tensor("attn_q_norm.weight", &[HEAD_DIM], 1.0),
        tensor("attn_k_norm.weight", &[HEAD_DIM], 1.0),
    ]
}
