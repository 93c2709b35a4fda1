//! The choices against recorded lists of llama.cpp.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::*;

/// One preset's part of a list: the base type, and every tensor that has another.
struct Section {
    preset: Preset,
    base: BlockType,
    exceptions: BTreeMap<String, BlockType>,
}

/// A list in the form of llama.cpp's test snapshots: `[PRESET] type` and lines of `name type`.
struct Schema {
    traits: Traits,
    /// Row lengths of matrices that take the residual stream, and of those that take the feed-forward's middle.
    rows: (u64, u64),
    sections: Vec<Section>,
}

impl Schema {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let number = |key: &str| -> u32 {
            let at = text.find(&format!("{key}=")).map(|at| at + key.len() + 1);
            at.map_or(0, |at| {
                let digits = text[at..].split(|c: char| !c.is_ascii_digit()).next().unwrap();
                digits.parse().unwrap()
            })
        };
        let architecture = if text.contains("Llama") { "llama" } else { "qwen3" };
        let traits = Traits {
            architecture: architecture.to_owned(),
            layers: number("n_layer"),
            experts: number("n_expert"),
            heads: number("n_head"),
            kv_heads: number("n_head_kv"),
        };
        let rows = (u64::from(number("n_embd")), u64::from(number("n_ff")));
        let mut sections: Vec<Section> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, block_type) = line.rsplit_once(' ').unwrap();
            let block_type = block_type.parse().unwrap();
            match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
                Some(preset) => sections.push(Section {
                    preset: preset.parse().unwrap(),
                    base: block_type,
                    exceptions: BTreeMap::new(),
                }),
                None => {
                    sections.last_mut().unwrap().exceptions.insert(name.to_owned(), block_type);
                }
            }
        }
        Schema { traits, rows, sections }
    }

    /// Every tensor of the model. In dense models each is an exception of `MXFP4_MOE`; expert matrices, which are not,
    /// are known from the layers where another preset makes an exception of one of them.
    fn names(&self) -> Vec<String> {
        let mut names: BTreeSet<String> =
            self.sections.iter().flat_map(|section| section.exceptions.keys().cloned()).collect();
        let kinds = ["ffn_up_exps", "ffn_gate_exps", "ffn_down_exps"];
        let known = |kind: &str| names.iter().any(|name| name.contains(kind));
        let kinds: Vec<&str> = kinds.into_iter().filter(|kind| known(kind)).collect();
        let prefixes: Vec<String> =
            names.iter().filter_map(|name| Some(name.split_once("ffn_down_exps")?.0.to_owned())).collect();
        for prefix in prefixes {
            names.extend(kinds.iter().map(|kind| format!("{prefix}{kind}.weight")));
        }
        let mut names: Vec<String> = names.into_iter().collect();
        names.sort_by(|a, b| order(a, b));
        names
    }

    /// Compares every choice; gives the number of choices.
    fn check(&self, label: &str) -> usize {
        let names = self.names();
        let mut choices = 0;
        for section in &self.sections {
            assert_eq!(section.preset.base(), Some(section.base), "{label} {}", section.preset);
            let options = MixOptions::default();
            let mut mix = Mix::new(section.preset, &self.traits, &options, names.iter().map(String::as_str));
            for name in &names {
                let row = match Role::of(name) {
                    Role::Down => self.rows.1,
                    // The width of all heads, which the lists do not have.
                    Role::AttentionOutput => 4096,
                    _ => self.rows.0,
                };
                let shape = [row, 256, if name.contains("_exps") { 4 } else { 1 }];
                let tensor = Described { name, shape: &shape, block_type: BlockType::F32 };
                let chosen = mix.choose(tensor, None).unwrap().block_type;
                let expected = section.exceptions.get(name).copied().unwrap_or(section.base);
                assert_eq!(chosen, expected, "{label}: {name} under {}", section.preset);
                choices += 1;
            }
        }
        choices
    }
}

#[test]
fn choices_equal_the_shared_lists() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/quant-mix");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("{} is absent: its lists of types are not compared", folder.display());
        return;
    };
    let mut compared = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "schema") {
            compared += Schema::read(&path).check(&path.file_name().unwrap().to_string_lossy());
        }
    }
    assert!(compared > 10_000, "{compared}");
}
