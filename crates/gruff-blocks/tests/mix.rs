//! The types that presets give, against recordings of llama-quantize (tests/peers/quantize, written by
//! tools/peers/quantize_types.py): real models and shapes that reach every rule, without and with importance.

use std::path::PathBuf;

use gruff_blocks::BlockType;
use gruff_blocks::mix::{Described, Mix, MixOptions, Preset, Traits, order};
use serde_json::Value;

struct Recording {
    name: String,
    traits: Traits,
    tensors: Vec<(String, Vec<u64>, BlockType)>,
    json: Value,
}

fn recordings() -> Vec<Recording> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/quantize");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .map(|path| {
            let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let number = |key: &str| u32::try_from(json[key].as_u64().unwrap()).unwrap();
            let traits = Traits {
                architecture: json["architecture"].as_str().unwrap().to_owned(),
                layers: number("layers"),
                experts: number("experts"),
                heads: number("heads"),
                kv_heads: number("kv_heads"),
            };
            let tensor = |tensor: &Value| {
                let shape = tensor[1].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect();
                let name = tensor[0].as_str().unwrap().to_owned();
                (name, shape, tensor[2].as_str().unwrap().parse().unwrap())
            };
            let tensors = json["tensors"].as_array().unwrap().iter().map(tensor).collect();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            Recording { name, traits, tensors, json }
        })
        .collect()
}

impl Recording {
    /// The types that `preset` gave, in the order of the tensors; none where it was refused.
    fn types(&self, preset: &str) -> Option<Vec<BlockType>> {
        let letters = self.json["letters"].as_array().unwrap();
        let type_of = |letter: u8| {
            let at = if letter.is_ascii_lowercase() { letter - b'a' } else { letter - b'A' + 26 };
            letters[usize::from(at)].as_str().unwrap().parse().unwrap()
        };
        Some(self.json["types"][preset].as_str()?.bytes().map(type_of).collect())
    }

    /// The types that `preset` gives here; none where a tensor has none.
    fn chosen(&self, preset: Preset, importance: bool) -> Option<Vec<BlockType>> {
        let options = MixOptions { importance, ..MixOptions::default() };
        let names = self.tensors.iter().map(|tensor| tensor.0.as_str());
        let mut mix = Mix::new(preset, &self.traits, &options, names);
        let mut sequence: Vec<usize> = (0..self.tensors.len()).collect();
        sequence.sort_by(|a, b| order(&self.tensors[*a].0, &self.tensors[*b].0));
        let mut types = vec![BlockType::F32; self.tensors.len()];
        for at in sequence {
            let (name, shape, block_type) = &self.tensors[at];
            let tensor = Described { name, shape, block_type: *block_type };
            types[at] = mix.choose(tensor, None).ok()?.block_type;
        }
        Some(types)
    }
}

#[test]
fn every_choice_is_that_of_llama_quantize() {
    let (mut compared, mut refused) = (0, 0);
    for recording in recordings() {
        for preset in Preset::ALL.iter().filter(|preset| preset.base().is_some()) {
            for (suffix, importance) in [("", false), ("+imatrix", true)] {
                let label = format!("{preset}{suffix}");
                match (recording.types(&label), recording.chosen(*preset, importance)) {
                    (Some(expected), Some(chosen)) => {
                        for (tensor, (expected, chosen)) in
                            recording.tensors.iter().zip(expected.into_iter().zip(chosen))
                        {
                            assert_eq!(chosen, expected, "{} {label}: {}", recording.name, tensor.0);
                            compared += 1;
                        }
                    }
                    (None, None) => refused += 1,
                    (expected, _) => {
                        panic!("{} {label}: llama-quantize refuses: {}", recording.name, expected.is_none());
                    }
                }
            }
        }
    }
    assert!(compared > 150_000 && refused > 0, "{compared} {refused}");
}

#[test]
fn names_and_numbers_lead_back() {
    for preset in Preset::ALL {
        assert_eq!(preset.name().to_lowercase().parse(), Ok(*preset));
        if let Some(number) = preset.file_type() {
            assert_eq!(Preset::from_file_type(number), Some(*preset));
        }
    }
    assert_eq!("q4_k".parse(), Ok(Preset::Q4_K_M));
    assert!("Q4_K_X".parse::<Preset>().unwrap_err().to_string().contains("Q4_K_M"));
}
