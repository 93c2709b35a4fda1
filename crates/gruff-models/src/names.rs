//! Module names in transformers and tensor names in GGUF.

/// A table of (transformers module, GGUF tensor), as each architecture file has it at its top.
///
/// `N` stands for the layer's number on both sides. Entries name modules, to which GGUF adds `.weight`,
/// `.bias` or `.scale`; an entry with a suffix of its own (`dt_bias`, `ssm_dt.bias`) names a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names(pub &'static [(&'static str, &'static str)]);

impl Names {
    /// The GGUF tensor that holds a module: `model.layers.3.mlp.up_proj` is `blk.3.ffn_up`.
    pub fn gguf(&self, module: &str) -> Option<String> {
        let (pattern, layer) = split_layer(module, "model.layers.");
        let (_, tensor) = self.0.iter().find(|(name, _)| *name == pattern)?;
        Some(fill(tensor, layer))
    }

    /// The module that a GGUF tensor belongs to, its `.weight`, `.bias` or `.scale` left off.
    pub fn module(&self, tensor: &str) -> Option<String> {
        let (pattern, layer) = split_layer(tensor, "blk.");
        let stem = pattern.rsplit_once('.').map_or(pattern.as_str(), |(stem, _)| stem);
        let same = |(_, name): &&(&str, &str)| *name == pattern || *name == stem;
        let (module, _) = self.0.iter().find(same)?;
        Some(fill(module, layer))
    }
}

impl Names {
    /// Every module that a GGUF tensor may belong to: a file's `attn_qkv` is in layers of either kind.
    pub fn modules(&self, tensor: &str) -> impl Iterator<Item = String> {
        let (pattern, layer) = split_layer(tensor, "blk.");
        let stem = pattern.rsplit_once('.').map_or(pattern.clone(), |(stem, _)| stem.to_owned());
        let layer = layer.map(str::to_owned);
        let same = move |(_, name): &&(&str, &str)| **name == *pattern || **name == *stem;
        self.0.iter().filter(same).map(move |(module, _)| fill(module, layer.as_deref()))
    }
}

/// Replaces the number behind `prefix` with `N`.
fn split_layer<'a>(name: &'a str, prefix: &str) -> (String, Option<&'a str>) {
    let rest = name.strip_prefix(prefix);
    match rest.and_then(|rest| rest.split_once('.')) {
        Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => {
            (format!("{prefix}N.{rest}"), Some(number))
        }
        _ => (name.to_owned(), None),
    }
}

/// Puts the layer's number back.
fn fill(pattern: &str, layer: Option<&str>) -> String {
    match layer {
        Some(number) => pattern.replacen(".N.", &format!(".{number}."), 1),
        None => pattern.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names(&[
        ("model.norm", "output_norm"),
        ("model.layers.N.mlp.up_proj", "blk.N.ffn_up"),
        ("model.layers.N.linear_attn.dt_bias", "blk.N.ssm_dt.bias"),
        ("model.layers.N.linear_attn.A_log", "blk.N.ssm_a"),
    ]);

    #[test]
    fn names_lead_both_ways() {
        for (module, tensor) in [
            ("model.norm", "output_norm"),
            ("model.layers.12.mlp.up_proj", "blk.12.ffn_up"),
            ("model.layers.0.linear_attn.dt_bias", "blk.0.ssm_dt.bias"),
            ("model.layers.7.linear_attn.A_log", "blk.7.ssm_a"),
        ] {
            assert_eq!(NAMES.gguf(module).as_deref(), Some(tensor));
            assert_eq!(NAMES.module(tensor).as_deref(), Some(module));
        }
        assert_eq!(NAMES.module("blk.3.ffn_up.weight").as_deref(), Some("model.layers.3.mlp.up_proj"));
        assert_eq!(NAMES.modules("blk.3.ffn_up").collect::<Vec<_>>(), ["model.layers.3.mlp.up_proj"]);
        assert_eq!(NAMES.gguf("model.layers.x.mlp.up_proj"), None);
        assert_eq!(NAMES.gguf("model.layers"), None);
        assert_eq!(NAMES.module("blk.3.ffn_gate.weight"), None);
    }
}
