//! The names that parameters have in published files, in one form.

use crate::architecture::Sizes;

/// Parts of multimodal models that are no language model, and tables that are computed.
const SKIPPED: &[&str] = &[
    "visual.",
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "audio_tower.",
    "rotary_emb.inv_freq",
    ".attention.masked_bias",
];

/// Prefixes of the language model within a multimodal one, and what they stand for.
const PREFIXES: &[(&str, &str)] = &[
    ("model.language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.lm_head.", "lm_head."),
    ("model.mtp.", "mtp."),
];

/// Mixtral's names of what others call so.
pub(crate) const MIXTRAL: &[(&str, &str)] = &[
    ("block_sparse_moe.gate.", "mlp.gate."),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
    ("block_sparse_moe.", "mlp."),
];

/// Inputs of the first block for multi-token prediction, in files and as a module of that block.
const MTP: &[(&str, &str)] = &[
    ("mtp.fc.", "eh_proj."),
    ("mtp.pre_fc_norm_embedding.", "enorm."),
    ("mtp.pre_fc_norm_hidden.", "hnorm."),
    ("mtp.norm.", "shared_head.norm."),
];

/// The name of a parameter as the tables have it; `None` for one that is no part of the language model.
pub(crate) fn plain(name: &str, sizes: &Sizes) -> Option<String> {
    if SKIPPED.iter().any(|part| name.contains(part)) {
        return None;
    }
    let mut name = name.to_owned();
    if let Some((prefix, plain)) = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        name = format!("{plain}{}", &name[prefix.len()..]);
    }
    if name.starts_with("mtp.") {
        let layers = sizes.layers;
        if let Some((prefix, module)) = MTP.iter().find(|(prefix, _)| name.starts_with(prefix)) {
            return Some(format!("model.layers.{layers}.{module}{}", &name[prefix.len()..]));
        }
        let (number, rest) = name.strip_prefix("mtp.layers.")?.split_once('.')?;
        return Some(format!("model.layers.{}.{rest}", layers.checked_add(number.parse().ok()?)?));
    }
    if name.contains("block_sparse_moe.") {
        for (own, usual) in MIXTRAL {
            name = name.replace(own, usual);
        }
    }
    Some(name)
}

/// Whether a name is one of a block for multi-token prediction, and which.
pub(crate) fn mtp_layer(name: &str) -> Option<u64> {
    let rest = name.strip_prefix("model.").unwrap_or(name).strip_prefix("mtp.")?;
    match rest.strip_prefix("layers.") {
        Some(rest) => rest.split_once('.')?.0.parse().ok(),
        None => Some(0),
    }
}
