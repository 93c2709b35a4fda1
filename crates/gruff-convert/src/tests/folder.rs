//! A folder as transformers saves it, with values that tell where they belong.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::architecture::{Config, Sizes, parameters};
use crate::convert::names::MIXTRAL;
use crate::json::Document;
use crate::safetensors::{Dtype, ShardTensor, ShardWriter};
use crate::{ConvertOptions, OutType, convert};

/// A class, and what its configuration has that others have not.
pub(super) struct Model {
    pub(super) class: &'static str,
    pub(super) architecture: &'static str,
    config: &'static str,
}

pub(super) const MODELS: &[Model] = &[
    Model {
        class: "Qwen3_5ForCausalLM",
        architecture: "qwen35",
        config: r#"{"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
            "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
            "rope_parameters": {"rope_theta": 1e7, "rope_type": "default", "partial_rotary_factor": 0.5,
                "mrope_section": [1, 1, 0]}}"#,
    },
    Model {
        class: "Qwen3_5MoeForCausalLM",
        architecture: "qwen35moe",
        config: r#"{"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
            "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4, "num_experts": 3, "num_experts_per_tok": 2,
            "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "tie_word_embeddings": true,
            "layer_types": ["full_attention", "linear_attention"], "rope_parameters": {"rope_theta": 1e7}}"#,
    },
    Model {
        class: "LlamaForCausalLM",
        architecture: "llama",
        config: r#"{"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}"#,
    },
    Model {
        class: "MistralForCausalLM",
        architecture: "llama",
        config: r#"{"sliding_window": 32, "rope_theta": 10000.0}"#,
    },
    Model {
        class: "MixtralForCausalLM",
        architecture: "llama",
        config: r#"{"num_local_experts": 3, "num_experts_per_tok": 2, "tie_word_embeddings": false,
            "rope_scaling": {"type": "linear", "factor": 2.0}}"#,
    },
    Model {
        class: "Qwen2ForCausalLM",
        architecture: "qwen2",
        config: r#"{"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
            "original_max_position_embeddings": 32}}"#,
    },
    Model { class: "Qwen3ForCausalLM", architecture: "qwen3", config: r#"{"head_dim": 16}"# },
    Model {
        class: "Qwen3MoeForCausalLM",
        architecture: "qwen3moe",
        config: r#"{"head_dim": 8, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
            "norm_topk_prob": false}"#,
    },
    Model {
        class: "Gemma3ForCausalLM",
        architecture: "gemma3",
        config: r#"{"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 64, "tie_word_embeddings": true,
            "layer_types": ["full_attention", "sliding_attention"], "rope_scaling": {"rope_type": "linear", "factor": 8.0}}"#,
    },
];

/// Tokens: bytes in the alphabet of byte-level tokenizers, one merge and two special tokens.
const VOCAB: usize = 259;

pub(super) struct Folder {
    folder: TempDir,
    tensors: BTreeMap<String, (Vec<u64>, Vec<f32>)>,
}

impl Folder {
    /// Makes the folder of a model.
    pub(super) fn new(model: &Model) -> Self {
        let mut config = json!({
            "architectures": [model.class], "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "eos_token_id": 258,
        });
        let own: Map<String, Value> = serde_json::from_str(model.config).unwrap();
        config.as_object_mut().unwrap().extend(own);
        let Value::Object(object) = config.clone() else { unreachable!() };
        let read = Config::new(Document::from_object(Path::new("config.json"), object)).unwrap();
        let sizes = Sizes::new(&read).unwrap();
        let names = gruff_models::names(model.architecture).unwrap();
        let mut tensors = BTreeMap::new();
        for parameter in parameters(model.architecture, names, &sizes) {
            if parameter.optional {
                continue;
            }
            let mut add = |name: String, shape: Vec<u64>| {
                let name = if model.class.starts_with("Mixtral") { mixtral(&name) } else { name };
                let values = values(&name, &shape);
                tensors.insert(name, (shape, values));
            };
            match (parameter.shape.as_slice(), parameter.stacked) {
                ([experts, rows, columns], true) => {
                    let (module, own) = parameter.name.trim_end_matches(".weight").rsplit_once('.').unwrap();
                    for expert in 0..*experts {
                        add(format!("{module}.{expert}.{own}.weight"), vec![*rows, *columns]);
                    }
                }
                (shape, _) => add(parameter.name.clone(), shape.to_vec()),
            }
        }
        let folder = Folder { folder: tempfile::tempdir().unwrap(), tensors };
        folder.write("config.json", &config.to_string());
        folder.write("tokenizer.json", &tokenizer().to_string());
        folder.write(
            "tokenizer_config.json",
            r#"{"eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}"#,
        );
        folder.write(
            "generation_config.json",
            r#"{"temperature": 0.7, "top_k": 20, "top_p": 0.8, "do_sample": true}"#,
        );
        folder.write_tensors();
        folder
    }

    /// The same model inside a multimodal one, its experts fused.
    pub(super) fn wrapped(&self, class: &str, model_type: &str) -> Folder {
        let mut tensors: BTreeMap<_, _> = self.tensors.clone();
        for layer in 0..2 {
            let stem = format!("model.layers.{layer}.mlp.experts");
            let mut take = |own: &str| -> Vec<Vec<f32>> {
                (0..3).map(|e| tensors.remove(&format!("{stem}.{e}.{own}.weight")).unwrap().1).collect()
            };
            let (gate, up, down) = (take("gate_proj"), take("up_proj"), take("down_proj"));
            let both: Vec<f32> =
                gate.into_iter().zip(up).flat_map(|(gate, up)| [gate, up].concat()).collect();
            tensors.insert(format!("{stem}.gate_up_proj"), (vec![3, 16, 32], both));
            tensors.insert(format!("{stem}.down_proj"), (vec![3, 32, 8], down.concat()));
        }
        let renamed = tensors
            .into_iter()
            .map(|(name, tensor)| (name.replacen("model.", "model.language_model.", 1), tensor));
        let mut tensors: BTreeMap<_, _> = renamed.collect();
        tensors.insert("model.visual.patch_embed.weight".to_owned(), (vec![2], vec![0.0; 2]));
        let folder = Folder { folder: tempfile::tempdir().unwrap(), tensors };
        let mut text: Value = serde_json::from_str(&self.read("config.json")).unwrap();
        text.as_object_mut().unwrap().remove("architectures");
        let config = json!({"architectures": [class], "model_type": model_type, "text_config": text});
        folder.write("config.json", &config.to_string());
        folder.write("tokenizer.json", &tokenizer().to_string());
        folder.write_tensors();
        folder
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap()
    }

    /// Writes model.safetensors anew, after a change of the tensors.
    pub(super) fn write_tensors(&self) {
        let _ = std::fs::remove_file(self.path().join("model.safetensors"));
        let tensors = self
            .tensors
            .iter()
            .map(|(name, (shape, _))| ShardTensor { name: name.clone(), shape: shape.clone() });
        let mut writer = ShardWriter::new(self.path(), Dtype::F32, tensors.collect(), u64::MAX);
        self.tensors.values().for_each(|(_, values)| writer.write(values).unwrap());
        writer.finish().unwrap();
    }

    pub(super) fn tensors_mut(&mut self) -> &mut BTreeMap<String, (Vec<u64>, Vec<f32>)> {
        &mut self.tensors
    }

    /// Names of all tensors, in alphabetical order.
    pub(super) fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    pub(super) fn tensor(&self, name: &str) -> (Vec<u64>, Vec<f32>) {
        self.tensors[name].clone()
    }

    /// Converts it; the file's path.
    pub(super) fn convert(&self, outtype: OutType) -> PathBuf {
        let path = self.path().join(format!("{outtype}.gguf"));
        let options = ConvertOptions { outtype, ..ConvertOptions::default() };
        convert(self.path(), &path, &options, &()).unwrap();
        path
    }
}

fn mixtral(name: &str) -> String {
    let mut name = name.replace(".mlp.", ".block_sparse_moe.");
    for (own, usual) in MIXTRAL.iter().filter(|(own, _)| own.starts_with('.')) {
        name = name.replace(usual, own);
    }
    name
}

/// Numbers between -1 and 1 that depend on the name and the position.
fn values(name: &str, shape: &[u64]) -> Vec<f32> {
    let seed = name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let number = |at: u64| {
        let mixed = (seed ^ at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        mixed as f32 / (1 << 23) as f32 - 1.0
    };
    (0..shape.iter().product()).map(number).collect()
}

fn tokenizer() -> Value {
    // The alphabet of byte-level tokenizers: printable bytes as they are, others from U+0100 on.
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let characters: Vec<u32> = (0..256).filter(printable).chain(0x100..0x100 + 68).collect();
    let text = |code: u32| char::from_u32(code).unwrap().to_string();
    let mut vocab: Map<String, Value> =
        characters.iter().enumerate().map(|(id, code)| (text(*code), id.into())).collect();
    vocab.insert("he".to_owned(), 256.into());
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({
        "version": "1.0",
        "added_tokens": [
            {"id": 257, "content": "<|im_start|>", "special": true, "normalized": false},
            {"id": 258, "content": "<|im_end|>", "special": true, "normalized": false},
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["h", "e"]]},
    })
}
