//! What a tensor is for, told from its name.

/// What a tensor is for, as far as mixes tell tensors apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `output.weight`.
    Output,
    /// `token_embd.weight`, `per_layer_token_embd.weight`.
    TokenEmbedding,
    /// Query, key and value projections in one matrix; the delta net's input too.
    AttentionQkv,
    /// The up-projection of compressed keys and values.
    AttentionKvB,
    /// Value projection.
    AttentionV,
    /// Key projection.
    AttentionK,
    /// Query projection.
    AttentionQ,
    /// Attention's output projection.
    AttentionOutput,
    /// Feed-forward up-projection, of experts too.
    Up,
    /// Feed-forward gate, of experts too.
    Gate,
    /// Feed-forward down-projection, of experts too.
    Down,
    /// Anything else.
    Other,
}

/// Parts of names and what they mean, the first match counting.
const PARTS: &[(&str, Role)] = &[
    ("attn_qkv.weight", Role::AttentionQkv),
    ("attn_kv_b.weight", Role::AttentionKvB),
    ("attn_v.weight", Role::AttentionV),
    ("attn_k.weight", Role::AttentionK),
    ("attn_q.weight", Role::AttentionQ),
    ("attn_output.weight", Role::AttentionOutput),
    ("ffn_up", Role::Up),
    ("ffn_gate", Role::Gate),
    ("ffn_down", Role::Down),
];

/// Parts of the names of matrices that are too small or too sensitive to quantize.
const KEPT: &[&str] = &[
    "_norm.weight",
    // Expert routing.
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    // Short convolutions.
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    // RWKV.
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    // Positions.
    "attn_rel_b.weight",
    ".position_embd",
    ".rel_pos",
    // Vision and audio.
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// The same for one architecture.
const KEPT_IN: &[(&str, &[&str])] = &[(
    "glm5-next",
    &[
        "hc_",
        "indexer.attn_q_b",
        "indexer.attn_k",
        "indexer.proj",
        "indexer_compressor_gate",
        "indexer_compressor_ape",
        "ssm_f_a.weight",
        "ssm_f_b.weight",
        "ssm_g_a.weight",
        "ssm_g_b.weight",
        "ssm_beta.weight",
        "attn_kv_a_mqa.weight",
        "attn_k_b.weight",
        "attn_v_b.weight",
    ],
)];

impl Role {
    /// The role of the tensor called `name`.
    pub fn of(name: &str) -> Role {
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::TokenEmbedding,
            _ => PARTS.iter().find(|(part, _)| name.contains(part)).map_or(Role::Other, |(_, role)| *role),
        }
    }

    /// Whether errors in the tensor go straight into the residual stream, as those of value projections do.
    pub fn is_value(self) -> bool {
        matches!(self, Role::AttentionV | Role::AttentionQkv | Role::AttentionKvB)
    }
}

/// Whether a matrix of this name is one that quantizers touch.
pub fn is_weight(name: &str, architecture: &str) -> bool {
    let kept = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    name.ends_with("weight")
        && !["position_embd.weight", "token_types.weight"].contains(&name)
        && !kept(KEPT)
        && !KEPT_IN.iter().any(|(of, parts)| *of == architecture && kept(parts))
}

/// The number of the layer that a tensor belongs to (`blk.7.…`).
pub(super) fn layer(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("blk.")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}
