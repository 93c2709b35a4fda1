//! Split models whose parts do not fit together: the error names the part.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use gruff_gguf::Gguf;

const U16: u32 = 2;

/// Part `number` (from 0) of `count`, with one tensor, in a model of `tensors` tensors.
fn part(number: u16, count: u16, tensors: u32) -> Raw {
    part_with(Raw::new(), number, count, tensors, 0)
}

fn part_with(raw: Raw, number: u16, count: u16, tensors: u32, more_keys: u64) -> Raw {
    let [number_low, number_high] = number.to_le_bytes();
    let [count_low, count_high] = count.to_le_bytes();
    raw.counts(1, 3 + more_keys)
        .key("split.no", U16)
        .raw([number_low, number_high])
        .key("split.count", U16)
        .raw([count_low, count_high])
        .key("split.tensors.count", I32)
        .u32(tensors)
}

fn with_tensor(raw: Raw, name: &str) -> Vec<u8> {
    raw.tensor(name, &[4], T_I8, 0).data(4).bytes
}

fn whole_part(number: u16, count: u16) -> Vec<u8> {
    with_tensor(part(number, count, count.into()), &format!("tensor.{number}"))
}

fn name(number: u16, count: u16) -> String {
    format!("m-{:05}-of-{count:05}.gguf", number + 1)
}

/// A folder with the three parts of a model, some replaced or (when empty) taken away.
fn folder_with(replaced: &[(u16, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..3 {
        fs::write(folder.path().join(name(number, 3)), whole_part(number, 3)).unwrap();
    }
    for (number, bytes) in replaced {
        let path = folder.path().join(name(*number, 3));
        if bytes.is_empty() { fs::remove_file(path).unwrap() } else { fs::write(path, bytes).unwrap() }
    }
    folder
}

fn open_error(path: &Path) -> String {
    Gguf::open(path).map(|model| format!("{model:?}")).unwrap_err().to_string()
}

#[test]
fn sound_parts_open() {
    let folder = folder_with(&[]);
    for number in 0..3 {
        let model = Gguf::open(folder.path().join(name(number, 3))).unwrap();
        assert_eq!(model.tensors().len(), 3);
        assert_eq!(model.metadata().require_u32("split.no").unwrap(), 0);
        assert_eq!(model.data(model.require("tensor.2").unwrap()).unwrap().len(), 4);
    }
}

/// What is wrong, the parts that are replaced, and parts of the message.
type Misfit = (&'static str, Vec<(u16, Vec<u8>)>, &'static [&'static str]);

#[test]
fn every_misfit_is_named() {
    let other_key = part_with(Raw::new(), 1, 3, 3, 1).string_key("general.name", "other");
    let first_key = part_with(Raw::new(), 0, 3, 3, 1).string_key("general.name", "this");
    let cases: Vec<Misfit> = vec![
        ("missing", vec![(1, vec![])], &["m-00002-of-00003.gguf", "part 2 of 3 of the model is missing"]),
        (
            "the first twice",
            vec![(1, whole_part(0, 3))],
            &["00002-of", "is part 1 of 3", "part 2 of 3 belongs"],
        ),
        (
            "the last twice",
            vec![(1, whole_part(2, 3))],
            &["00002-of", "is part 3 of 3", "part 2 of 3 belongs"],
        ),
        ("of four", vec![(1, whole_part(1, 4))], &["00002-of", "is part 2 of 4"]),
        ("unsplit", vec![(1, sound(Raw::new()))], &["00002-of", "is a whole model"]),
        ("empty", vec![(1, b"\n".to_vec())], &["00002-of", "not a GGUF file"]),
        ("cut short", vec![(2, whole_part(2, 3)[..150].to_vec())], &["00003-of", "cut short"]),
        (
            "a tensor twice",
            vec![(2, with_tensor(part(2, 3, 3), "tensor.1"))],
            &["00003-of", "tensor \"tensor.1\"", "occurs twice"],
        ),
        (
            "another number of tensors",
            vec![
                (0, with_tensor(part(0, 3, 4), "tensor.0")),
                (1, with_tensor(part(1, 3, 4), "tensor.1")),
                (2, with_tensor(part(2, 3, 4), "tensor.2")),
            ],
            &["00001-of", "split.tensors.count is 4, but the parts have 3"],
        ),
        (
            "the parts disagree on it",
            vec![(1, with_tensor(part(1, 3, 9), "tensor.1"))],
            &["00002-of", "\"split.tensors.count\" differs"],
        ),
        (
            "another version",
            vec![(1, with_tensor(part_with(Raw::version(2), 1, 3, 3, 0), "tensor.1"))],
            &["00002-of", "another version"],
        ),
        (
            "of another model",
            vec![(0, with_tensor(first_key, "tensor.0")), (1, with_tensor(other_key, "tensor.1"))],
            &["00002-of", "\"general.name\" differs", "00001-of"],
        ),
    ];
    for (what, replaced, expected) in cases {
        let folder = folder_with(&replaced);
        let message = open_error(&folder.path().join(name(0, 3)));
        for part in expected {
            assert!(message.contains(part), "{what}: {message:?} lacks {part:?}");
        }
    }
}

fn alone(file_name: &str, bytes: Vec<u8>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file_name);
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn names_must_agree_with_keys() {
    let without_number = Raw::new().counts(0, 1).key("split.count", U16).raw([3, 0]).bytes;
    let count_in_words = Raw::new().counts(0, 1).string_key("split.count", "3").bytes;
    let far_beyond =
        Raw::new().counts(0, 2).key("split.no", U64).u64(u64::MAX).u32_key("split.count", 3).bytes;
    let huge_count =
        Raw::new().counts(0, 2).u32_key("split.no", 0).key("split.count", U64).u64(u64::MAX).bytes;
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("model.gguf", whole_part(1, 3), &["is part 2 of 3", "does not end in \"-00002-of-00003.gguf\""]),
        ("m-00003-of-00003.gguf", whole_part(1, 3), &["is part 2 of 3", "has the name of part 3 of 3"]),
        ("m-00002-of-00004.gguf", whole_part(1, 3), &["has the name of part 2 of 4"]),
        ("m-00004-of-00003.gguf", whole_part(3, 3), &["claims to be part 4 of 3, which does not exist"]),
        ("m-00001-of-00003.gguf", far_beyond, &["which does not exist"]),
        ("m-00001-of-00003.gguf", huge_count, &["claims 18446744073709551615 parts", "Limits::parts"]),
        ("m-00001-of-60000.gguf", whole_part(0, 60_000), &["claims 60000 parts", "at most 1024"]),
        ("m-00001-of-00003.gguf", without_number, &["\"split.no\" is missing"]),
        ("m-00001-of-00003.gguf", count_in_words, &["\"split.count\" should hold an integer"]),
    ];
    for (file_name, bytes, expected) in cases {
        let (_folder, path) = alone(file_name, bytes);
        let message = open_error(&path);
        for part in expected.iter().chain([&file_name]) {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_whole_model_may_have_the_name_of_a_part() {
    let (_folder, path) = alone("m-00001-of-00003.gguf", sound(Raw::new()));
    assert!(Gguf::open(&path).is_ok());
}

#[test]
fn a_part_in_memory_is_refused() {
    let message = Gguf::from_bytes(whole_part(0, 3)).unwrap_err().to_string();
    assert!(message.contains("is part 1 of 3 of a split model; open the files on disk"), "{message}");
}

#[cfg(unix)]
#[test]
fn links_in_a_circle_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name(0, 3)), whole_part(0, 3)).unwrap();
    // The second part leads back to the first, the third to itself.
    std::os::unix::fs::symlink(name(0, 3), folder.path().join(name(1, 3))).unwrap();
    std::os::unix::fs::symlink(name(2, 3), folder.path().join(name(2, 3))).unwrap();
    let message = open_error(&folder.path().join(name(0, 3)));
    assert!(message.contains("is part 1 of 3 of a model, where part 2 of 3 belongs"), "{message}");
    let message = open_error(&folder.path().join(name(2, 3)));
    assert!(message.contains("cannot open") && message.contains("00003-of"), "{message}");
}
