//! What the writer writes, the reader reads: values of every type, both versions and byte orders, splits.

use std::fs;
use std::path::Path;

use gruff_blocks::BlockType;
use gruff_gguf::{Array, Endian, Error, Gguf, Metadata, Split, Strings, Value, ValueType, Writer};

/// A value and an array of each type, and arrays of arrays.
fn every_value() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "test");
    metadata.insert("u8", u8::MAX);
    metadata.insert("i8", i8::MIN);
    metadata.insert("u16", 0x0102_u16);
    metadata.insert("i16", i16::MIN);
    metadata.insert("u32", 0x0102_0304_u32);
    metadata.insert("i32", i32::MIN);
    metadata.insert("u64", 0x0102_0304_0506_0708_u64);
    metadata.insert("i64", i64::MIN);
    metadata.insert("f32", 1.5e-30_f32);
    metadata.insert("f64", -1.5e300_f64);
    metadata.insert("yes", true);
    metadata.insert("no", false);
    metadata.insert("text", "déjà\0vu");
    metadata.insert("empty text", "");
    metadata.insert("bytes", Value::String(vec![0xff, 0x00, 0xc3]));
    metadata.insert("u8s", vec![1_u8, 2, 3]);
    metadata.insert("i8s", vec![-1_i8]);
    metadata.insert("u16s", vec![0x0102_u16, 0x0304]);
    metadata.insert("i16s", vec![-2_i16, 2]);
    metadata.insert("u32s", vec![0x0102_0304_u32]);
    metadata.insert("i32s", vec![-3_i32, 3]);
    metadata.insert("u64s", vec![u64::MAX]);
    metadata.insert("i64s", vec![i64::MIN, 0]);
    metadata.insert("f32s", vec![0.25_f32, f32::INFINITY]);
    metadata.insert("f64s", vec![0.1_f64]);
    metadata.insert("flags", vec![true, false, true]);
    metadata.insert("none", Vec::<u32>::new());
    metadata.insert("strings", ["", "a", "bc"].iter().collect::<Strings>());
    let nested = Array::Array(vec![Array::U16(vec![7, 8]), Array::Array(vec![]), Array::Bool(vec![true])]);
    metadata.insert("nested", nested);
    let types: Vec<ValueType> = metadata.iter().map(|(_, value)| value.value_type()).collect();
    assert!(ValueType::ALL.iter().all(|value_type| types.contains(value_type)));
    metadata
}

/// Bytes that differ from tensor to tensor and from place to place.
fn sample_data(name: &str, bytes: u64) -> Vec<u8> {
    let seed = name.bytes().fold(7_u8, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte));
    (0..bytes).map(|at| seed.wrapping_add((at % 251) as u8)).collect()
}

/// One tensor of each type, of two rows, and an odd one that needs padding behind it.
fn every_type() -> Vec<(String, Vec<u64>, BlockType)> {
    let mut tensors = vec![("odd".to_owned(), vec![3], BlockType::I8)];
    for &block_type in BlockType::ALL {
        tensors.push((format!("blk.0.{block_type}"), vec![block_type.values() as u64, 2], block_type));
    }
    tensors.push(("four".to_owned(), vec![32, 1, 2, 3], BlockType::Q8_0));
    tensors
}

fn assert_same(model: &Gguf, metadata: &Metadata, tensors: &[(String, Vec<u64>, BlockType)]) {
    for (key, value) in metadata.iter() {
        assert_eq!(model.metadata().get(key), Some(value), "{key}");
    }
    assert_eq!(model.tensors().len(), tensors.len());
    for ((name, shape, block_type), tensor) in tensors.iter().zip(model.tensors()) {
        assert_eq!(tensor.name(), name);
        assert_eq!(tensor.shape(), shape.as_slice());
        assert_eq!(tensor.block_type().unwrap(), *block_type);
        let data = model.data(tensor).unwrap();
        assert_eq!(*data, sample_data(name, tensor.bytes().unwrap()), "{name}");
    }
}

#[test]
fn every_version_and_byte_order() {
    for version in [2, 3] {
        for endian in [Endian::Little, Endian::Big] {
            let mut writer = Writer::new(every_value()).version(version).unwrap().endian(endian);
            let mut written = Vec::new();
            for (name, shape, block_type) in every_type() {
                match writer.add(name.clone(), &shape, block_type) {
                    Ok(()) => written.push((name, shape, block_type)),
                    Err(error) => assert!(
                        endian == Endian::Big && matches!(error, Error::ByteOrder { .. }),
                        "{name}: {error}"
                    ),
                }
            }
            let bytes: Vec<u8> = writer
                .to_bytes(|tensor| Ok::<_, Error>(sample_data(tensor.name(), tensor.bytes().unwrap())))
                .unwrap();
            let model = Gguf::from_bytes(bytes).unwrap();
            assert_eq!((model.version(), model.endian()), (version, endian));
            assert!(model.metadata().keys().eq(every_value().keys()));
            assert_same(&model, &every_value(), &written);
        }
    }
}

#[test]
fn big_endian_data_are_swapped_in_the_file() {
    let mut writer = Writer::new(Metadata::new()).endian(Endian::Big);
    writer.add("x", &[2], BlockType::F32).unwrap();
    let values: Vec<u8> = [1.0_f32, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let bytes = writer.to_bytes(|_| Ok::<_, Error>(values.clone())).unwrap();
    assert_eq!(bytes[4..8], [0, 0, 0, 3]);
    let model = Gguf::from_bytes(bytes.clone()).unwrap();
    let tensor = model.require("x").unwrap();
    let at = tensor.offset() as usize;
    assert_eq!(bytes[at..at + 8], [1.0_f32.to_be_bytes(), (-2.5_f32).to_be_bytes()].concat());
    assert_eq!(*model.data(tensor).unwrap(), values);
}

#[test]
fn alignment_is_obeyed() {
    for alignment in [8_u64, 64, 4096] {
        let mut metadata = Metadata::new();
        metadata.insert("general.alignment", alignment as u32);
        let mut writer = Writer::new(metadata);
        for name in ["a", "b", "c"] {
            writer.add(name, &[5], BlockType::I8).unwrap();
        }
        let bytes = writer.to_bytes(|tensor| Ok::<_, Error>(sample_data(tensor.name(), 5))).unwrap();
        assert!((bytes.len() as u64).is_multiple_of(alignment));
        let model = Gguf::from_bytes(bytes).unwrap();
        for tensor in model.tensors() {
            assert!(tensor.offset().is_multiple_of(alignment));
            assert_eq!(*model.data(tensor).unwrap(), sample_data(tensor.name(), 5));
        }
    }
}

fn write_model(path: &Path, split: Option<Split>) -> Vec<std::path::PathBuf> {
    let mut writer = Writer::new(every_value());
    if let Some(split) = split {
        writer = writer.split(split);
    }
    for (name, shape, block_type) in every_type() {
        writer.add(name, &shape, block_type).unwrap();
    }
    let mut file = writer.create(path).unwrap();
    // In another order than in the file, and in pieces.
    let tensors: Vec<(String, u64)> =
        file.tensors().iter().map(|tensor| (tensor.name().to_owned(), tensor.bytes().unwrap())).collect();
    for (name, bytes) in tensors.iter().rev() {
        for piece in sample_data(name, *bytes).chunks(50) {
            file.write(name, piece).unwrap();
        }
    }
    file.finish().unwrap()
}

#[test]
fn a_file_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    assert_eq!(write_model(&path, None), std::slice::from_ref(&path));
    let model = Gguf::open(&path).unwrap();
    assert_same(&model, &every_value(), &every_type());
    assert_eq!(model.paths(), std::slice::from_ref(&path));
    assert_eq!(model.file_size(), fs::metadata(&path).unwrap().len());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "temporary files are left");
    let data = model.data(model.require("odd").unwrap()).unwrap();
    drop(model);
    assert_eq!(*data, sample_data("odd", 3), "data outlive the model");
}

#[test]
fn a_split_model_opens_from_any_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let paths = write_model(&path, Some(Split::Tensors(10)));
    assert_eq!(paths.len(), every_type().len().div_ceil(10));
    assert!(paths[0].ends_with("model-00001-of-00004.gguf"));
    for part in &paths {
        let model = Gguf::open(part).unwrap();
        assert_eq!(model.paths(), paths);
        assert_same(&model, &every_value(), &every_type());
        assert_eq!(model.tensors().last().unwrap().part(), 3);
    }
}

#[test]
fn splitting_by_bytes_keeps_parts_small() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let paths = write_model(&path, Some(Split::Bytes(600)));
    let model = Gguf::open(&paths[0]).unwrap();
    assert_same(&model, &every_value(), &every_type());
    for part in 0..paths.len() {
        let own = model.tensors().filter(|tensor| tensor.part() == part);
        let bytes: u64 = own.clone().map(|tensor| tensor.bytes().unwrap()).sum();
        assert!(own.count() == 1 || bytes <= 600, "part {part} has {bytes} bytes");
    }
}

#[test]
fn an_abandoned_write_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let begin = || {
        let mut writer = Writer::new(Metadata::new());
        writer.add("a", &[4], BlockType::I8).unwrap();
        writer.create(&path).unwrap()
    };
    drop(begin());
    let mut file = begin();
    file.write("a", &[1, 2]).unwrap();
    let error = file.finish().unwrap_err().to_string();
    assert!(error.contains("\"a\" takes 4 bytes of data, but was given 2"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_the_reader_refuses_is_not_written() {
    let add = |name: &str, shape: &[u64], block_type| {
        let mut writer = Writer::new(Metadata::new());
        writer.add("first", &[1], BlockType::F32)?;
        writer.add(name, shape, block_type)?;
        writer.to_bytes(|tensor| Ok::<_, Error>(vec![0; tensor.bytes().unwrap() as usize]))
    };
    let cases: &[(&str, &[u64], BlockType, &str)] = &[
        ("first", &[1], BlockType::F32, "occurs twice"),
        ("", &[1], BlockType::F32, "the name is empty"),
        (&"n".repeat(128), &[1], BlockType::F32, "128 bytes of name"),
        ("x", &[31], BlockType::Q8_0, "rows of 31 values"),
        ("x", &[4, 0], BlockType::F32, "dimension 1 is zero"),
        ("x", &[1, 1, 1, 1, 1], BlockType::F32, "5 dimensions"),
        ("x", &[1 << 40, 1 << 40], BlockType::F32, "more values than can be counted"),
    ];
    for (name, shape, block_type, expected) in cases {
        let error = add(name, shape, *block_type).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
    let mut metadata = Metadata::new();
    metadata.insert("general.alignment", 3_u32);
    let error = Writer::new(metadata).to_bytes(|_| Ok::<_, Error>(Vec::new())).unwrap_err().to_string();
    assert!(error.contains("alignment of 3"), "{error}");
    assert!(matches!(Writer::new(Metadata::new()).version(1), Err(Error::WriteVersion { version: 1 })));
}

#[test]
fn misuse_of_a_writer_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(Metadata::new()).endian(Endian::Big);
    writer.add("blk.0.attn_q.weight", &[32], BlockType::Q8_0).unwrap();
    let mut file = writer.create(folder.path().join("m.gguf")).unwrap();
    let error = file.write("blk.0.attn_k.weight", &[0; 34]).unwrap_err().to_string();
    assert!(error.contains("similar names are \"blk.0.attn_q.weight\""), "{error}");
    assert!(matches!(file.write("blk.0.attn_q.weight", &[0; 33]), Err(Error::PartialBlock { .. })));
    assert!(matches!(file.write("blk.0.attn_q.weight", &[0; 68]), Err(Error::TensorSize { given: 68, .. })));
    let error = Writer::new(Metadata::new()).create(folder.path().join("none/m.gguf")).err().unwrap();
    assert!(matches!(error, Error::Io { action: "create", .. }), "{error}");
}
