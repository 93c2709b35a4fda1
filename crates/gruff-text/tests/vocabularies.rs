//! Token ids against those that the models' own tokenizers give, for the vocabularies in `../shared/data/vocab`.
//!
//! Beside each `NAME.gguf` lie `NAME.gguf.inp`, texts with a line `__ggml_vocab_test__` after each, and
//! `NAME.gguf.out`, their ids, a line a text: plain text, nothing added, nothing parsed.

use std::fs;
use std::path::{Path, PathBuf};

use gruff_gguf::Gguf;
use gruff_text::{EncodeOptions, Tokenizer, TokenizerOptions};

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// The folder, or `None` after saying that it is absent. `GRUFF_VOCAB_DIR` names another one.
fn folder() -> Option<PathBuf> {
    let folder = match std::env::var_os("GRUFF_VOCAB_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/vocab"),
    };
    if !folder.is_dir() {
        eprintln!("{} is absent: nothing to compare with", folder.display());
        return None;
    }
    Some(folder)
}

fn vocabularies(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
        .collect();
    files.sort();
    files
}

fn open(path: &Path) -> Tokenizer {
    let gguf = Gguf::open(path).unwrap();
    Tokenizer::from_gguf(gguf.metadata(), &TokenizerOptions::new())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn beside(path: &Path, extension: &str) -> Option<String> {
    fs::read_to_string(format!("{}.{extension}", path.display())).ok()
}

#[test]
fn ids_equal_the_expected_ones() {
    let Some(folder) = folder() else { return };
    let mut failures = Vec::new();
    let mut compared = 0;
    for path in vocabularies(&folder) {
        let tokenizer = open(&path);
        let (Some(input), Some(output)) = (beside(&path, "inp"), beside(&path, "out")) else { continue };
        let mut texts: Vec<&str> = input.split(SEPARATOR).collect();
        let mut expected: Vec<&str> = output.lines().collect();
        // Both files end after the last text, so the last part is what follows the final separator.
        if texts.last().is_some_and(|text| text.is_empty()) {
            texts.pop();
        }
        expected.truncate(texts.len());
        assert_eq!(texts.len(), expected.len(), "{}: as many texts as lines of ids", path.display());
        for (text, line) in texts.iter().zip(expected) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let ids = tokenizer.encode(text, EncodeOptions::default()).unwrap();
            compared += 1;
            if ids != expected {
                failures.push(format!(
                    "{}: {text:?}\n  expected {expected:?}\n  got      {ids:?}",
                    path.display()
                ));
            }
        }
    }
    assert!(compared > 0, "no texts in {}", folder.display());
    assert!(failures.is_empty(), "{} of {compared} differ:\n{}", failures.len(), failures.join("\n"));
}
