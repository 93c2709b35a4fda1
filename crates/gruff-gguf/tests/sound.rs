//! Unusual files that are right: old versions, big-endian, no tensors, gaps, unknown tensor types, huge files.

mod common;

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use common::*;
use gruff_gguf::{Array, Endian, Error, Gguf, Limits, Value};

#[test]
fn hand_written_files_of_every_version_and_byte_order() {
    for version in 1..=3 {
        for (raw, endian) in
            [(Raw::version(version), Endian::Little), (Raw::big_endian(version), Endian::Big)]
        {
            let model = Gguf::from_bytes(sound(raw)).unwrap();
            assert_eq!((model.version(), model.endian()), (version, endian));
            let metadata = model.metadata();
            assert_eq!(metadata.len(), 9);
            assert_eq!(metadata.require_str("general.architecture").unwrap(), "test");
            assert!(metadata.require_bool("a.bool").unwrap());
            assert_eq!(metadata.require_u64("a.u64").unwrap(), 1 << 40);
            assert_eq!(metadata.require_f32("a.f32").unwrap(), 0.5);
            let strings = metadata.require_str_array("a.strings").unwrap();
            assert!(strings.iter().eq([b"x".as_slice(), b"", b"yz"]));
            assert_eq!(metadata.require_i32_array("a.ints").unwrap(), [1, -1].as_slice());
            assert_eq!(metadata.require_bool_array("a.flags").unwrap(), [false, true]);
            let nested = Array::Array(vec![Array::U8(vec![1, 2]), Array::String(Default::default())]);
            assert_eq!(metadata.get("a.nested"), Some(&Value::Array(nested)));
            assert_eq!(model.tensors().len(), 3);
            let tensor = model.require("a.weight").unwrap();
            assert_eq!((tensor.row_len(), tensor.rows(), tensor.values()), (2, 2, 4));
            let data = model.data(tensor).unwrap();
            let first = if endian == Endian::Big { [3, 2, 1, 0] } else { [0, 1, 2, 3] };
            assert_eq!(data[..4], first);
            assert_eq!(model.data(model.require("c.weight").unwrap()).unwrap()[..], [96, 97, 98, 99, 100]);
        }
    }
}

#[test]
fn a_vocabulary_has_no_tensors() {
    let model = Gguf::from_bytes(Raw::new().counts(0, 1).string_key("a", "b").bytes).unwrap();
    assert_eq!(model.tensors().len(), 0);
    assert_eq!(Gguf::from_bytes(Raw::new().counts(0, 0).bytes).unwrap().metadata().len(), 0);
}

#[test]
fn gaps_trailing_bytes_and_any_order_of_offsets_are_allowed() {
    let raw = Raw::new().counts(2, 0).tensor("b", &[4], T_I8, 128).tensor("a", &[4], T_I8, 32);
    let model = Gguf::from_bytes(raw.data(200).bytes).unwrap();
    assert_eq!(model.data(model.require("b").unwrap()).unwrap()[..], [128, 129, 130, 131]);
}

#[test]
fn a_scalar_has_the_shape_of_one_value() {
    let model = Gguf::from_bytes(Raw::new().counts(1, 0).tensor("s", &[], T_F32, 0).data(4).bytes).unwrap();
    assert_eq!(model.require("s").unwrap().shape(), [1]);
    assert_eq!(model.require("s").unwrap().bytes(), Some(4));
}

#[test]
fn unknown_and_retired_types_refuse_only_their_tensor() {
    let raw = Raw::new().counts(3, 0).tensor("new", &[64], 1000, 0).tensor("old", &[64], 4, 32).tensor(
        "known",
        &[4],
        T_I8,
        64,
    );
    let model = Gguf::from_bytes(raw.data(68).bytes).unwrap();
    assert_eq!(model.require("new").unwrap().bytes(), None);
    for (name, expected) in [("new", "tensor type 1000 is unknown"), ("old", "4 (Q4_2) was retired")] {
        let error = model.data(model.require(name).unwrap()).unwrap_err();
        assert!(matches!(error, Error::TensorType { .. }));
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains(name), "{text}");
    }
    assert_eq!(model.data(model.require("known").unwrap()).unwrap()[..], [64, 65, 66, 67]);
}

#[test]
fn a_missing_tensor_is_named_with_the_closest() {
    let model = Gguf::from_bytes(sound(Raw::new())).unwrap();
    let error = model.require("a.wieght").unwrap_err().to_string();
    assert!(error.contains("no tensor \"a.wieght\"; similar names are \"a.weight\""), "{error}");
}

#[test]
fn a_tensor_of_another_model_is_refused() {
    let model = Gguf::from_bytes(sound(Raw::new())).unwrap();
    let other = Raw::new().counts(1, 0).tensor("a.weight", &[8], T_F32, 0).data(32).bytes;
    let other = Gguf::from_bytes(other).unwrap();
    let error = model.data(other.require("a.weight").unwrap()).unwrap_err();
    assert!(matches!(error, Error::ForeignTensor { .. }), "{error}");
}

#[test]
fn a_large_file_opens_by_its_header() {
    let bytes: u64 = 20 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    let row = bytes / 2;
    let raw = Raw::new().counts(2, 0).tensor("a", &[row], T_I8, 0).tensor("b", &[row], T_I8, row);
    let mut file = File::create(&path).unwrap();
    file.write_all(&raw.data(0).bytes).unwrap();
    // A hole: takes no space on disk, and reading all of it would take long.
    file.set_len(raw_len(&path) + bytes).unwrap();
    let start = Instant::now();
    let model = Gguf::open(&path).unwrap();
    let last = model.data(model.require("b").unwrap()).unwrap();
    assert!(start.elapsed() < Duration::from_millis(500), "took {:?}", start.elapsed());
    assert_eq!(last.len() as u64, row);
    assert_eq!(last[last.len() - 1], 0);
    assert!(last.is_mapped());
}

fn raw_len(path: &std::path::Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn a_file_that_shrinks_while_open_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, sound(Raw::new())).unwrap();
    let model = Gguf::open(&path).unwrap();
    let tensor = model.require("c.weight").unwrap();
    assert!(model.data(tensor).is_ok());
    File::options().write(true).open(&path).unwrap().set_len(300).unwrap();
    let error = model.data(tensor).unwrap_err();
    assert!(matches!(error, Error::Changed { now: 300, .. }), "{error}");
}

#[test]
fn limits_can_be_raised() {
    let bytes = Raw::new().counts(1, 0).tensor("n".repeat(200), &[4], T_I8, 0).data(4).bytes;
    assert!(Gguf::from_bytes(bytes.clone()).is_err());
    let mut limits = Limits::default();
    limits.tensor_name_bytes = 200;
    assert!(Gguf::from_bytes_with(bytes, &limits).is_ok());
}

/// The size of Qwen3.5's: 248 thousand tokens and merges.
#[test]
fn a_large_vocabulary_opens_quickly() {
    let count = 248_320;
    let mut raw = Raw::new().counts(0, 3).array_key("tokenizer.ggml.tokens", STRING, count);
    for token in 0..count {
        raw = raw.string(format!("token {token}"));
    }
    raw = raw.array_key("tokenizer.ggml.merges", STRING, count);
    for token in 0..count {
        raw = raw.string(format!("to ken{token}"));
    }
    raw = raw.array_key("tokenizer.ggml.token_type", I32, count);
    for token in 0..count {
        raw = raw.u32(token as u32 % 6);
    }
    let start = Instant::now();
    let model = Gguf::from_bytes(raw.bytes).unwrap();
    // 20 ms in a debug build on an idle machine; the bound only catches work that is not linear.
    assert!(start.elapsed() < Duration::from_secs(2), "took {:?}", start.elapsed());
    let tokens = model.metadata().require_str_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.str(248_000), Some("token 248000"));
}
