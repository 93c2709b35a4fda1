//! `general.*`: what the model is called, and how its makers sample from it.

mod card;
mod name;

use std::path::Path;

use gruff_gguf::{Metadata, Strings};
use serde_json::Value;

use crate::json::Document;
use card::Card;
use name::{NameParts, title};

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

/// Writes `general.sampling.*` from `generation_config.json`. From a file that is damaged, nothing is taken.
pub(super) fn sampling(folder: &Path, metadata: &mut Metadata) {
    let config = match Document::read_optional(&folder.join("generation_config.json")) {
        Ok(Some(config)) => config,
        Ok(None) => return,
        Err(error) => return tracing::warn!("{error}; its advice on sampling is left out"),
    };
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

/// Keys of a model card, the first that is there counts, and of GGUF.
const CARD: &[(&[&str], &str)] = &[
    (&["description", "model_description"], "general.description"),
    (&["author", "model_author", "model_creator"], "general.author"),
    (&["license"], "general.license"),
    (&["license_name"], "general.license.name"),
    (&["license_link"], "general.license.link"),
    (&["url", "model_url"], "general.source.url"),
    (&["doi", "model_doi"], "general.source.doi"),
    (&["uuid", "model_uuid"], "general.source.uuid"),
    (&["repo_url", "model_repo_url"], "general.source.repo_url"),
];

/// `general.name` and what else the model card, the name in config.json and the folder's name tell.
pub(super) fn authorship(
    folder: &Path,
    config: &Document,
    name: Option<&str>,
    parameters: &Parameters,
    metadata: &mut Metadata,
) {
    let card = Card::read(folder);
    let own = std::path::absolute(folder).ok();
    let own = own.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    // A path of somebody's computer is no name.
    let in_config = config.get("_name_or_path").and_then(Value::as_str);
    let in_config = in_config.filter(|id| !id.is_empty() && id.matches('/').count() <= 1);
    let ids: Vec<NameParts> =
        in_config.into_iter().chain([own.as_str()]).map(|id| NameParts::new(id, parameters.total)).collect();
    let told = |part: fn(&NameParts) -> &Option<String>| ids.iter().find_map(|id| part(id).clone());
    let said = |keys: &[&str]| card.text(keys).map(str::to_owned);

    let full = said(&["name", "model_name"]).or_else(|| told(|id| &id.full).map(|full| title(&full)));
    metadata.insert("general.name", name.map(str::to_owned).or(full).unwrap_or(own));
    let organization = told(|id| &id.organization).map(|organization| title(&organization));
    for (key, value) in [
        ("general.version", said(&["version", "model_version"]).or_else(|| told(|id| &id.version))),
        ("general.organization", said(&["organization", "model_organization"]).or(organization)),
        ("general.finetune", said(&["finetune", "model_finetune"]).or_else(|| told(|id| &id.finetune))),
        (
            "general.basename",
            said(&["basename", "model_basename", "model_type"]).or_else(|| told(|id| &id.basename)),
        ),
        (
            "general.size_label",
            said(&["size_label", "model_size_label"]).or_else(|| told(|id| &id.size_label)),
        ),
    ] {
        if let Some(value) = value {
            metadata.insert(key, value);
        }
    }
    if !metadata.contains("general.size_label") {
        metadata.insert("general.size_label", parameters.label());
    }
    for (keys, key) in CARD {
        if let Some(value) = card.text(keys) {
            metadata.insert(key, value);
        }
    }
    if let Some(several) = card.first_list(&["license"]).filter(|_| !metadata.contains("general.license")) {
        metadata.insert("general.license", several.join(","));
    }
    let models = card.first_list(&["base_model", "base_models", "base_model_sources"]);
    relatives("base_model", models, parameters, metadata);
    relatives("dataset", card.first_list(&["datasets", "dataset", "dataset_sources"]), parameters, metadata);
    for (keys, key) in
        [(["tags", "pipeline_tag"], "general.tags"), (["languages", "language"], "general.languages")]
    {
        let items = card.list(&keys);
        if !items.is_empty() {
            let mut strings = Strings::new();
            items.iter().for_each(|item| strings.push(item));
            metadata.insert(key, strings);
        }
    }
}

/// Models that this one was made of, or data that it was trained on.
fn relatives(kind: &str, ids: Option<Vec<String>>, parameters: &Parameters, metadata: &mut Metadata) {
    let Some(ids) = ids else { return };
    metadata.insert(&format!("general.{kind}.count"), ids.len() as u32);
    for (number, id) in ids.iter().enumerate() {
        let hub = "huggingface.co/";
        let is_link = ["http://", "https://", "ssh://"].iter().any(|scheme| id.starts_with(scheme));
        let on_hub = id.split_once(hub).map(|(_, id)| id).filter(|id| id.matches('/').count() == 1);
        let parts = match (is_link, on_hub) {
            (false, _) => NameParts::new(id, parameters.total),
            (true, Some(id)) => NameParts::new(id, parameters.total),
            (true, None) => NameParts::default(),
        };
        let link = match (&parts.organization, &parts.full) {
            _ if is_link => Some(id.clone()),
            (Some(organization), Some(full)) => Some(format!("https://{hub}{organization}/{full}")),
            _ => None,
        };
        for (key, value) in [
            ("name", parts.full.as_deref().map(title)),
            ("version", parts.version),
            ("organization", parts.organization.as_deref().map(title)),
            ("repo_url", link),
        ] {
            if let Some(value) = value {
                metadata.insert(&format!("general.{kind}.{number}.{key}"), value);
            }
        }
    }
}

/// How many parameters a model has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Those that every token uses.
    shared: u64,
    /// Those of one expert of each layer.
    expert: u64,
    experts: u64,
    /// All.
    total: u64,
}

impl Parameters {
    /// Counts a tensor of this shape, row length first.
    pub(super) fn add(&mut self, name: &str, shape: &[u64]) {
        let values: u64 = shape.iter().product();
        self.total += values;
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
}
