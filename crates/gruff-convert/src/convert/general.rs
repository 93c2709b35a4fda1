//! `general.*`: what the model is called, and how its makers sample from it.

use std::path::Path;

use gruff_gguf::Metadata;
use serde_json::Value;

use crate::Result;
use crate::json::Document;

/// Keys of generation_config.json, and those of GGUF behind `general.sampling.`; the first that is there counts.
const SAMPLING: &[(&[&str], &str, bool)] = &[
    (&["top_k"], "top_k", true),
    (&["top_p"], "top_p", false),
    (&["min_p"], "min_p", false),
    (&["xtc_probability"], "xtc_probability", false),
    (&["xtc_threshold"], "xtc_threshold", false),
    (&["temperature"], "temp", false),
    (&["penalty_last_n"], "penalty_last_n", true),
    (&["penalty_repeat", "repetition_penalty"], "penalty_repeat", false),
    (&["mirostat"], "mirostat", true),
    (&["mirostat_tau"], "mirostat_tau", false),
    (&["mirostat_eta"], "mirostat_eta", false),
];

/// Writes `general.sampling.*` from `generation_config.json`. A file that is damaged says nothing.
pub(super) fn sampling(folder: &Path, metadata: &mut Metadata) {
    let Ok(Some(config)) = Document::read_optional(&folder.join("generation_config.json")) else { return };
    if let Some(Value::String(sequence)) = config.get("sequence") {
        metadata.insert("general.sampling.sequence", sequence.as_str());
    }
    for (names, key, whole) in SAMPLING {
        let Some(value) = names.iter().find_map(|name| config.get(name)) else { continue };
        let key = format!("general.sampling.{key}");
        match (whole, value.as_i64(), value.as_f64()) {
            (true, Some(number), _) if i32::try_from(number).is_ok() => {
                metadata.insert(&key, number as i32);
            }
            (false, _, Some(number)) => {
                metadata.insert(&key, number as f32);
            }
            _ => tracing::warn!("{}: {} is {value}: left out", config.path().display(), names[0]),
        }
    }
}

/// `general.name` and what goes with it.
pub(super) fn authorship(
    folder: &Path,
    name: Option<&str>,
    parameters: &Parameters,
    metadata: &mut Metadata,
) -> Result<()> {
    let own = std::path::absolute(folder).ok();
    let own = own.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    let name = name.map_or_else(|| title(&own), str::to_owned);
    metadata.insert("general.name", name);
    metadata.insert("general.size_label", parameters.label());
    Ok(())
}

/// A name of a file as a title: words with capitals, versions and acronyms as they are.
fn title(id: &str) -> String {
    let word = |word: &str| {
        let is_version = word.strip_prefix('v').unwrap_or(word).starts_with(|c: char| c.is_ascii_digit());
        let is_lower = word.chars().any(char::is_lowercase) && !word.chars().any(char::is_uppercase);
        let mut characters = word.chars();
        match characters.next() {
            Some(first) if is_lower && !is_version => first.to_uppercase().chain(characters).collect(),
            _ => word.to_owned(),
        }
    };
    id.replace('-', " ").split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// How many parameters a model has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Those that every token uses.
    shared: u64,
    /// Those of one expert of each layer.
    expert: u64,
    experts: u64,
}

impl Parameters {
    /// Counts a tensor of this shape, row length first.
    pub(super) fn add(&mut self, name: &str, shape: &[u64]) {
        let values: u64 = shape.iter().product();
        match shape {
            [_, _, experts] if name.contains("_exps.") => {
                self.expert += values / experts.max(&1);
                self.experts = *experts;
            }
            _ => self.shared += values,
        }
    }

    /// `7B`, or `8x7B` for a mixture of experts.
    fn label(&self) -> String {
        let count = rounded(self.shared + self.expert);
        if self.experts > 0 { format!("{}x{count}", self.experts) } else { count }
    }
}

/// A count in thousands, millions, … with two digits at least.
fn rounded(count: u64) -> String {
    let count = count as f64;
    let (scaled, unit) = match count {
        c if c > 1e12 => (c * 1e-12, 'T'),
        c if c > 1e9 => (c * 1e-9, 'B'),
        c if c > 1e6 => (c * 1e-6, 'M'),
        c => (c * 1e-3, 'K'),
    };
    let whole = scaled.round_ties_even();
    let digits = if whole == 0.0 { 0 } else { whole.to_string().len() };
    format!("{scaled:.*}{unit}", 2_usize.saturating_sub(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_two_digits() {
        for (count, label) in [
            (7_241_732_096, "7.2B"),
            (135_000_000, "135M"),
            (752_000_000, "752M"),
            (34_000_000_000, "34B"),
            (999_999, "1000K"),
            (5_400, "5.4K"),
            (40, "0.04K"),
        ] {
            assert_eq!(rounded(count), label);
        }
        let mut parameters = Parameters::default();
        parameters.add("token_embd.weight", &[256, 1024]);
        parameters.add("blk.0.ffn_up_exps.weight", &[256, 256, 8]);
        assert_eq!(parameters.label(), "8x328K");
    }

    #[test]
    fn names_become_titles() {
        assert_eq!(title("tiny-random-qwen3.5"), "Tiny Random Qwen3.5");
        assert_eq!(title("SmolLM2-135M-Instruct-v0.2"), "SmolLM2 135M Instruct v0.2");
        assert_eq!(title("moe"), "Moe");
    }
}
