//! Keys that transformers' config.json and GGUF metadata share, as one table for both directions.

/// How a value is stored in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U32,
    F32,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// In config.json; where several names are in use, the one that transformers writes comes first.
    pub(crate) config: &'static [&'static str],
    /// In GGUF, behind the architecture and a dot.
    pub(crate) gguf: &'static [&'static str],
    pub(crate) kind: Kind,
    /// The architectures that have it; empty for all.
    pub(crate) only: &'static [&'static str],
    /// Whether transformers has no default for it that could be known here.
    pub(crate) required: bool,
}

impl Key {
    pub(crate) fn is_of(&self, architecture: &str) -> bool {
        self.only.is_empty() || self.only.contains(&architecture)
    }
}

const fn key(config: &'static [&'static str], gguf: &'static [&'static str]) -> Key {
    Key { config, gguf, kind: Kind::U32, only: &[], required: false }
}

impl Key {
    const fn required(self) -> Self {
        Key { required: true, ..self }
    }

    const fn float(self) -> Self {
        Key { kind: Kind::F32, ..self }
    }

    const fn only(self, only: &'static [&'static str]) -> Self {
        Key { only, ..self }
    }
}

const SPARSE: &[&str] = &["llama", "qwen3moe", "qwen35moe"];
const LINEAR: &[&str] = &["qwen35", "qwen35moe"];

/// Every key whose value goes over unchanged.
pub(crate) const KEYS: &[Key] = &[
    key(&["max_position_embeddings"], &["context_length"]),
    key(&["hidden_size"], &["embedding_length"]).required(),
    key(&["intermediate_size"], &["feed_forward_length"]),
    key(&["num_attention_heads"], &["attention.head_count"]).required(),
    key(&["num_key_value_heads"], &["attention.head_count_kv"]).required(),
    key(&["head_dim"], &["attention.key_length", "attention.value_length"]),
    key(&["rms_norm_eps"], &["attention.layer_norm_rms_epsilon"]).float().required(),
    key(&["num_experts", "num_local_experts"], &["expert_count"]).only(SPARSE),
    key(&["num_experts_per_tok"], &["expert_used_count"]).only(SPARSE),
    key(&["moe_intermediate_size"], &["expert_feed_forward_length"]).only(&["qwen3moe", "qwen35moe"]),
    key(&["shared_expert_intermediate_size"], &["expert_shared_feed_forward_length"]).only(&["qwen35moe"]),
    key(&["linear_conv_kernel_dim"], &["ssm.conv_kernel"]).only(LINEAR).required(),
    key(&["linear_key_head_dim"], &["ssm.state_size"]).only(LINEAR).required(),
    key(&["linear_num_key_heads"], &["ssm.group_count"]).only(LINEAR).required(),
    key(&["linear_num_value_heads"], &["ssm.time_step_rank"]).only(LINEAR).required(),
    key(&["vocab_size"], &["vocab_size"]).only(&["llama"]),
    key(&["sliding_window"], &["attention.sliding_window"]).only(&["llama", "gemma3"]),
    key(&["final_logit_softcapping"], &["final_logit_softcapping"]).float().only(&["gemma3"]),
];
