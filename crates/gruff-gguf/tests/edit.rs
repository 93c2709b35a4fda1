//! Replacing key-value pairs of files that exist.

use std::path::{Path, PathBuf};

use gruff_blocks::BlockType;
use gruff_gguf::{Endian, Error, Gguf, Metadata, Replaced, Split, Value, Writer, replace_metadata};
use proptest::prelude::*;

fn write(folder: &Path, endian: Endian, split: Option<Split>) -> Vec<PathBuf> {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "test");
    metadata.insert("general.name", "a name of some length");
    let mut writer = Writer::new(metadata).endian(endian);
    if let Some(split) = split {
        writer = writer.split(split);
    }
    for name in ["a", "b", "c"] {
        writer.add(name, &[32], BlockType::Q8_0).unwrap();
    }
    let mut file = writer.create(folder.join("model.gguf")).unwrap();
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        file.write(name, &[at as u8 + 1; 34]).unwrap();
    }
    file.finish().unwrap()
}

fn data(gguf: &Gguf) -> Vec<Vec<u8>> {
    gguf.tensors().map(|tensor| gguf.data(tensor).unwrap().to_vec()).collect()
}

/// Replaces the name and compares everything else.
fn rename(path: &Path, name: &str) -> Replaced {
    let before = Gguf::open(path).unwrap();
    let mut metadata = before.metadata().clone();
    metadata.insert("general.name", name);
    let replaced = replace_metadata(path, None, &metadata).unwrap();
    let after = Gguf::open(path).unwrap();
    assert_eq!(after.metadata().str("general.name").unwrap(), Some(name));
    assert_eq!(after.metadata().str("general.architecture").unwrap(), Some("test"));
    assert_eq!(data(&after), data(&before));
    assert_eq!(after.endian(), before.endian());
    replaced
}

#[test]
fn shorter_pairs_are_written_in_place_and_longer_ones_not() {
    for endian in [Endian::Little, Endian::Big] {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), endian, None).remove(0);
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!(rename(&path, "A NAME OF SOME LENGTH"), Replaced::InPlace);
        assert_eq!(rename(&path, "short"), Replaced::InPlace);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
        let long = "long ".repeat(100);
        assert_eq!(rename(&path, &long), Replaced::Rewritten);
        // What was freed can be used again.
        assert_eq!(rename(&path, "s"), Replaced::InPlace);
        assert_eq!(rename(&path, &long), Replaced::InPlace);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn parts_of_a_split_model_keep_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let paths = write(folder.path(), Endian::Little, Some(Split::Tensors(1)));
    assert_eq!(paths.len(), 3);
    rename(&paths[0], "x");
    rename(&paths[0], &"y".repeat(500));
    assert_eq!(Gguf::open(&paths[2]).unwrap().tensors().len(), 3);
}

#[test]
fn another_file_leaves_the_first_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), Endian::Little, None).remove(0);
    let before = std::fs::read(&path).unwrap();
    let mut metadata = Gguf::open(&path).unwrap().metadata().clone();
    metadata.insert("general.tags", Value::from("new"));
    let out = folder.path().join("out.gguf");
    assert_eq!(replace_metadata(&path, Some(&out), &metadata).unwrap(), Replaced::Rewritten);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(Gguf::open(&out).unwrap().metadata().str("general.tags").unwrap(), Some("new"));
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), Endian::Little, None).remove(0);
    let before = std::fs::read(&path).unwrap();
    let mut metadata = Gguf::open(&path).unwrap().metadata().clone();
    metadata.insert("general.alignment", 64_u32);
    let error = replace_metadata(&path, None, &metadata).unwrap_err();
    assert!(matches!(error, Error::Alignment { .. }), "{error}");
    let mut metadata = Gguf::open(&path).unwrap().metadata().clone();
    metadata.insert("", 1_u32);
    replace_metadata(&path, None, &metadata).unwrap_err();
    let absent = folder.path().join("no/folder.gguf");
    let metadata = Gguf::open(&path).unwrap().metadata().clone();
    replace_metadata(&path, Some(&absent), &metadata).unwrap_err();
    replace_metadata(&absent, None, &metadata).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn names_of_every_length_come_back(lengths in prop::collection::vec(0_usize..300, 1..8)) {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), Endian::Little, None).remove(0);
        for length in lengths {
            rename(&path, &"n".repeat(length));
        }
    }
}
