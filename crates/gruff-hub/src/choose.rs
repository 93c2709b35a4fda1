//! Picks the model that an id means out of a list of files.

use std::collections::BTreeMap;

use crate::name::{Split, base_name, is_gguf};
use crate::{Error, Select};

/// A file of a repository or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoFile {
    /// Its `/`-separated path.
    pub path: String,
    /// Its size in bytes, where the listing tells it.
    pub size: Option<u64>,
}

/// One model: a file, or all parts of a split one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufSet {
    /// The paths in order; more than one if the model is split. The first one names the model.
    pub parts: Vec<String>,
    /// Parts that the listing lacks. A model with such cannot be loaded.
    pub missing: Vec<String>,
    /// The size of all parts in bytes, where the listing tells it.
    pub size: Option<u64>,
}

/// The quantization taken when nothing is asked for: the one that most people want.
const DEFAULT_QUANT: &str = "Q4_K_M";

/// Files that carry `.gguf` and are not language models: vision projectors, importance matrices, draft heads.
const COMPANIONS: [&str; 4] = ["mmproj", "imatrix", "mtp-", "draft-"];

impl GgufSet {
    /// All models in a list of files, in the order of their names. Companion files (`mmproj…`, `imatrix…`, …) are
    /// left out: they are taken only when named.
    pub fn group(files: &[RepoFile]) -> Vec<GgufSet> {
        let mut sets: BTreeMap<String, Vec<&RepoFile>> = BTreeMap::new();
        for file in files.iter().filter(|f| is_gguf(&f.path) && !is_companion(&f.path)) {
            let key = Split::parse(&file.path)
                .map_or(file.path.clone(), |split| split.names(&file.path)[0].clone());
            sets.entry(key).or_default().push(file);
        }
        sets.into_iter().map(|(first, found)| GgufSet::new(&first, &found)).collect()
    }

    fn new(name: &str, found: &[&RepoFile]) -> GgufSet {
        let names = part_names(name);
        let has = |name: &String| found.iter().any(|file| file.path == *name);
        let (parts, missing): (Vec<String>, Vec<String>) = names.into_iter().partition(has);
        let size = found.iter().map(|file| file.size).try_fold(0u64, |sum, size| sum.checked_add(size?));
        GgufSet { parts, missing, size }
    }

    /// The path that names the model: its only file, or the first part.
    pub fn name(&self) -> &str {
        self.parts.first().or(self.missing.first()).map_or("", String::as_str)
    }

    /// The quantization as the file name tells it: `Q4_K_M`, `UD-IQ2_XXS`, `BF16`.
    pub fn quant(&self) -> Option<&str> {
        let stem = stem(self.name());
        let mut start = None;
        // The last token that reads as a type wins: a model's own name may contain one ("…-F16-merged-Q4_0").
        for (at, _) in stem.char_indices() {
            let free = at == 0 || !stem[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
            if free && let Some(length) = quant_length(&stem[at..]) {
                start = Some((at, length));
            }
        }
        let (at, length) = start?;
        // "UD-" (unsloth's dynamic mixes) belongs to the label; the end of "CLOUD-" does not.
        let prefix = stem[..at].char_indices().rev().nth(2).map(|(from, _)| from).filter(|&from| {
            stem[from..at].eq_ignore_ascii_case("UD-")
                && !stem[..from].ends_with(|c: char| c.is_ascii_alphanumeric())
        });
        Some(&stem[prefix.unwrap_or(at)..at + length])
    }

    /// How well the model answers to a quantization asked for; smaller is better.
    fn rank(&self, tag: &str) -> Option<u32> {
        let name = self.name();
        let folder = name.rsplit_once('/').map(|(folders, _)| base_name(folders));
        let stem = stem(name).to_ascii_uppercase();
        let tag = tag.to_ascii_uppercase();
        if self.quant().is_some_and(|quant| quant.eq_ignore_ascii_case(&tag)) || stem == tag {
            return Some(0);
        }
        if self.quant().is_none() && folder.is_some_and(|folder| folder.eq_ignore_ascii_case(&tag)) {
            return Some(0);
        }
        if self.quant().is_some_and(|q| {
            q.len() > 3 && q[3..].eq_ignore_ascii_case(&tag) && q[..3].eq_ignore_ascii_case("UD-")
        }) {
            return Some(1);
        }
        // Labels that no table knows ("IQ4_NL_4_4", "latest"), or a label that stands in the middle of the name.
        let at = stem.rfind(&tag)?;
        let free_before = !stem[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let free_after = !stem[at + tag.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        (free_before && free_after).then_some(2)
    }
}

/// Chooses the files of one model.
///
/// `place` is the repository or folder as ids write it; `files` is what it holds.
///
/// # Errors
/// [`Error::NoGguf`], [`Error::NoMatch`], [`Error::Ambiguous`], [`Error::MissingParts`]: all list what is there.
pub(crate) fn choose(place: &str, files: &[RepoFile], select: &Select) -> Result<GgufSet, Error> {
    if let Select::File(name) = select {
        return choose_file(place, files, name);
    }
    let sets = GgufSet::group(files);
    if sets.is_empty() {
        return Err(Error::NoGguf { place: place.to_string() });
    }
    let choices = |sets: &[GgufSet]| sets.iter().map(|set| choice(place, set, sets)).collect::<Vec<_>>();
    let (tag, asked) = match select {
        Select::Quant(tag) => (tag.as_str(), true),
        _ => (DEFAULT_QUANT, false),
    };
    let best = sets.iter().filter_map(|set| set.rank(tag)).min();
    let fitting: Vec<GgufSet> =
        sets.iter().filter(|set| best.is_some() && set.rank(tag) == best).cloned().collect();
    let chosen = match (fitting.as_slice(), asked) {
        ([one], _) => one.clone(),
        ([], true) => {
            return Err(Error::NoMatch {
                place: place.to_string(),
                wanted: tag.to_string(),
                choices: choices(&sets),
            });
        }
        ([], false) if sets.len() == 1 => sets[0].clone(),
        ([], false) => {
            return Err(Error::Ambiguous {
                place: place.to_string(),
                wanted: "an id without a file name".to_string(),
                choices: choices(&sets),
            });
        }
        (several, _) => {
            return Err(Error::Ambiguous {
                place: place.to_string(),
                wanted: tag.to_string(),
                choices: several.iter().map(|set| format!("{place}:{}", set.name())).collect(),
            });
        }
    };
    whole(place, chosen)
}

/// A file named outright, companions included.
fn choose_file(place: &str, files: &[RepoFile], name: &str) -> Result<GgufSet, Error> {
    if !files.iter().any(|file| file.path == name) {
        let sets = GgufSet::group(files);
        let near: Vec<&GgufSet> =
            sets.iter().filter(|set| base_name(set.name()) == base_name(name)).collect();
        let all: Vec<&GgufSet> = if near.is_empty() { sets.iter().collect() } else { near };
        let choices = all.iter().map(|set| format!("{place}:{}", set.name())).collect();
        return Err(Error::NoMatch { place: place.to_string(), wanted: name.to_string(), choices });
    }
    let names = part_names(name);
    let found: Vec<&RepoFile> = files.iter().filter(|file| names.contains(&file.path)).collect();
    whole(place, GgufSet::new(name, &found))
}

fn whole(place: &str, set: GgufSet) -> Result<GgufSet, Error> {
    if set.missing.is_empty() {
        return Ok(set);
    }
    Err(Error::MissingParts { place: place.to_string(), name: set.name().to_string(), missing: set.missing })
}

/// The names of all parts of the model that `name` is, or is one part of.
pub(crate) fn part_names(name: &str) -> Vec<String> {
    Split::parse(name).map_or_else(|| vec![name.to_string()], |split| split.names(name))
}

/// The names most similar to `wanted`, best first, three at most.
pub(crate) fn near(wanted: &str, files: &[RepoFile]) -> Vec<String> {
    let wanted_base = base_name(wanted).to_ascii_lowercase();
    let mut scored: Vec<(usize, &str)> = files
        .iter()
        .filter(|file| is_gguf(&file.path) == is_gguf(wanted))
        .map(|file| (distance(&wanted_base, &base_name(&file.path).to_ascii_lowercase()), file.path.as_str()))
        .collect();
    scored.sort();
    scored.into_iter().take(3).map(|(_, path)| path.to_string()).collect()
}

/// How an id for this one of several models would be written: by quantization if that is enough.
fn choice(place: &str, set: &GgufSet, all: &[GgufSet]) -> String {
    let alone = |quant: &&str| all.iter().filter(|other| other.quant() == Some(*quant)).count() == 1;
    let id = format!("{place}:{}", set.quant().filter(alone).unwrap_or(set.name()));
    match set.size {
        Some(bytes) => format!("{id} ({:.2} GB)", bytes as f64 / 1e9),
        None => id,
    }
}

fn is_companion(path: &str) -> bool {
    let name = base_name(path).to_ascii_lowercase();
    COMPANIONS.iter().any(|prefix| name.starts_with(prefix))
        || name.contains(".mmproj")
        || name.contains("-mmproj")
}

/// The file's name without folders, extension and part number.
fn stem(path: &str) -> &str {
    let whole = Split::parse(path).map_or_else(|| &path[..path.len().saturating_sub(5)], |split| split.stem);
    base_name(whole)
}

/// The length of the ggml type name that `text` starts with: `Q4_K_M`, `IQ2_XXS`, `TQ1_0`, `MXFP4_MOE`, `BF16`.
fn quant_length(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let token = text[..end].trim_end_matches('_').to_ascii_uppercase();
    let mut words = token.split('_');
    let first = words.next()?;
    let plain = ["F16", "F32", "F64", "BF16", "FP16", "FP32", "MXFP4", "NVFP4"].contains(&first);
    let numbered = ["Q", "IQ", "TQ"].iter().any(|prefix| {
        first
            .strip_prefix(prefix)
            .is_some_and(|digit| digit.len() == 1 && digit.bytes().all(|b| b.is_ascii_digit()))
    });
    if !plain && !numbered {
        return None;
    }
    // What may follow a type's first word, so that "Q4_K_M_final" reads as Q4_K_M.
    let known = ["0", "1", "2", "4", "8", "K", "S", "M", "L", "XS", "XXS", "XL", "XXL", "NL", "MOE"];
    let length =
        words.take_while(|word| known.contains(word)).fold(first.len(), |sum, word| sum + 1 + word.len());
    (plain || length > first.len()).then_some(length)
}

/// Levenshtein's distance: insertions, deletions and replacements of bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let best = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn files(names: &[&str]) -> Vec<RepoFile> {
        names.iter().map(|name| RepoFile { path: name.to_string(), size: Some(10) }).collect()
    }

    fn pick(names: &[&str], select: &str) -> Result<Vec<String>, String> {
        let select = match select {
            "" => Select::Default,
            name if is_gguf(name) => Select::File(name.to_string()),
            tag => Select::Quant(tag.to_string()),
        };
        choose("o/r", &files(names), &select).map(|set| set.parts).map_err(|e| e.to_string())
    }

    #[test]
    fn quantizations_are_read_from_names() {
        let table = [
            ("Qwen3.5-4B-Q4_K_M.gguf", Some("Q4_K_M")),
            ("Qwen3.5-4B-UD-IQ2_XXS.gguf", Some("UD-IQ2_XXS")),
            ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", Some("q4_k_m")),
            ("SmolLM2-135M-Instruct.Q4_1.gguf", Some("Q4_1")),
            ("model_Q8_0.gguf", Some("Q8_0")),
            ("BF16/m-BF16-00001-of-00002.gguf", Some("BF16")),
            ("Model-F16-merged-Q5_K_S.gguf", Some("Q5_K_S")),
            ("gpt-oss-20b-MXFP4_MOE.gguf", Some("MXFP4_MOE")),
            ("m.i1-IQ3_XS.gguf", Some("IQ3_XS")),
            ("m-Q4_K_M_final.gguf", Some("Q4_K_M")),
            ("tiny.gguf", None),
            ("Q4/m.gguf", None),
            ("faq1_x.gguf", None),
            ("CLOUD-Q4_0.gguf", Some("Q4_0")),
            ("ud-q4_0.gguf", Some("ud-q4_0")),
        ];
        for (name, expected) in table {
            let set = GgufSet { parts: vec![name.to_string()], missing: vec![], size: None };
            assert_eq!(set.quant(), expected, "{name}");
        }
    }

    #[test]
    fn one_quantization_leads_to_one_model() {
        let repo = [
            "README.md",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-UD-Q4_K_M.gguf",
            "m-UD-Q4_K_XL.gguf",
            "m-IQ4_XS.gguf",
            "mmproj-BF16.gguf",
            "imatrix_m.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "BF16/m-BF16-00002-of-00002.gguf",
        ];
        let one = |name: &str| Ok(vec![name.to_string()]);
        assert_eq!(pick(&repo, "Q4_K_M"), one("m-Q4_K_M.gguf"));
        assert_eq!(pick(&repo, "q4_k_m"), one("m-Q4_K_M.gguf"));
        assert_eq!(pick(&repo, "UD-Q4_K_M"), one("m-UD-Q4_K_M.gguf"));
        assert_eq!(pick(&repo, "Q4_K_XL"), one("m-UD-Q4_K_XL.gguf"));
        assert_eq!(pick(&repo, "IQ4_XS"), one("m-IQ4_XS.gguf"));
        assert_eq!(pick(&repo, ""), one("m-Q4_K_M.gguf"));
        assert_eq!(pick(&repo, "mmproj-BF16.gguf"), one("mmproj-BF16.gguf"));
        let split = pick(&repo, "BF16").unwrap();
        assert_eq!(split, ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]);
        assert_eq!(pick(&repo, "BF16/m-BF16-00002-of-00002.gguf").unwrap(), split);
        for absent in ["Q4_K", "Q4", "K_M", "Q8_0", "XS"] {
            let message = pick(&repo, absent).unwrap_err();
            assert!(message.contains(&format!("no {absent} file")), "{message}");
            assert!(message.contains("o/r:UD-Q4_K_XL (0.00 GB)"), "{message}");
            assert!(!message.contains("mmproj"), "{message}");
        }
    }

    #[test]
    fn folders_can_carry_the_quantization() {
        let repo = ["Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf", "Q2_K/m.gguf"];
        assert_eq!(pick(&repo, "q8_0").unwrap().len(), 2);
        assert_eq!(pick(&repo, "Q2_K").unwrap(), ["Q2_K/m.gguf"]);
    }

    #[test]
    fn the_default_is_q4_k_m_or_the_only_one() {
        assert_eq!(pick(&["a.gguf", "README.md"], "").unwrap(), ["a.gguf"]);
        assert_eq!(pick(&["m-UD-Q4_K_M.gguf", "m-Q8_0.gguf"], "").unwrap(), ["m-UD-Q4_K_M.gguf"]);
        let message = pick(&["m-Q8_0.gguf", "m-Q6_K.gguf"], "").unwrap_err();
        assert!(message.contains("o/r:Q6_K") && message.contains("o/r:Q8_0"), "{message}");
        let message = pick(&["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "Q4_K_M").unwrap_err();
        assert!(message.contains("o/r:a-Q4_K_M.gguf, o/r:b-Q4_K_M.gguf"), "{message}");
        let message = pick(&["a-Q4_0.gguf", "b-Q4_0.gguf", "b-Q8_0.gguf"], "").unwrap_err();
        assert!(
            message.contains("o/r:a-Q4_0.gguf (0.00 GB), o/r:b-Q4_0.gguf (0.00 GB), o/r:Q8_0"),
            "{message}"
        );
        assert!(pick(&["model.safetensors"], "").unwrap_err().contains("holds no .gguf"));
    }

    #[test]
    fn incomplete_sets_are_refused() {
        let repo = ["m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"];
        for select in ["Q8_0", "", "m-Q8_0-00003-of-00003.gguf"] {
            let message = pick(&repo, select).unwrap_err();
            assert!(message.contains("m-Q8_0-00002-of-00003.gguf is missing"), "{message}");
        }
    }

    #[test]
    fn near_names_come_first() {
        let repo = files(&["m-Q4_K_S.gguf", "m-Q4_K_M.gguf", "README.md", "x/other.gguf", "m-BF16.gguf"]);
        assert_eq!(near("m-Q4_K_N.gguf", &repo)[..2], ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf"]);
        assert_eq!(distance("kitten", "sitting"), 3);
        let message = pick(&["sub/m.gguf", "n.gguf"], "m.gguf").unwrap_err();
        assert!(message.ends_with("it has o/r:sub/m.gguf"), "{message}");
    }

    proptest! {
        #[test]
        fn names_of_any_kind_do_not_panic(names in proptest::collection::vec("[qQ4_KMUDé/.0-9-]{0,16}\\.gguf", 0..6), tag in "[Q4_KMé-]{0,6}") {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let _ = choose("o/r", &files(&names), &Select::Quant(tag));
            let _ = choose("o/r", &files(&names), &Select::Default);
        }
    }
}
