//! Files with one defect each, and what the error says about it.

mod common;

use common::*;
use gruff_gguf::Gguf;

/// What is wrong, the file, and parts of the message, which tell the place and the fault.
type Case = (&'static str, Raw, &'static [&'static str]);

fn raw_file(bytes: &[u8]) -> Raw {
    let mut raw = Raw::new();
    raw.bytes = bytes.to_vec();
    raw
}

fn keys(count: u64) -> Raw {
    Raw::new().counts(0, count)
}

fn tensors(count: u64) -> Raw {
    Raw::new().counts(count, 0)
}

fn other_formats() -> Vec<Case> {
    vec![
        ("empty", raw_file(b""), &["not a GGUF file", "it is empty"]),
        ("one byte", raw_file(b"G"), &["begins with \"G\""]),
        ("lower case", raw_file(b"gguf\x03\0\0\0"), &["begins with \"gguf\" instead of \"GGUF\""]),
        ("control characters", raw_file(b"\x1b[2Jabc"), &["begins with \"\\x1b[2J\""]),
        ("GGML", raw_file(b"lmgg\x01\0\0\0"), &["older GGML format"]),
        ("GGMF", raw_file(b"fmgg\x01\0\0\0"), &["older GGMF format"]),
        ("GGJT", raw_file(b"tjgg\x03\0\0\0"), &["older GGJT format"]),
        ("LFS pointer", raw_file(b"version https://git-lfs.github.com/spec/v1\n"), &["Git LFS pointer"]),
        ("zip", raw_file(b"PK\x03\x04\0\0"), &["zip archive or a PyTorch checkpoint"]),
        ("gzip", raw_file(b"\x1f\x8b\x08"), &["gzip"]),
        ("safetensors", raw_file(b"\x40\0\0\0\0\0\0\0{\"a\":"), &["safetensors"]),
        ("web page", raw_file(b"<!DOCTYPE html>"), &["web page"]),
        ("JSON", raw_file(b"{ \"error\""), &["JSON"]),
    ]
}

fn headers() -> Vec<Case> {
    vec![
        ("magic only", raw_file(b"GGUF"), &["header", "needs 4 bytes at offset 4", "0 left"]),
        ("half a version", raw_file(b"GGUF\x03\0"), &["needs 4 bytes at offset 4", "2 left"]),
        ("version 0", Raw::version(0), &["GGUF version 0", "reads 1, 2 and 3"]),
        ("version 4", Raw::version(4), &["GGUF version 4"]),
        ("version 4, big-endian", Raw::big_endian(4), &["GGUF version 4"]),
        ("no counts", Raw::new(), &["header", "needs 8 bytes at offset 8"]),
        ("half a count", Raw::new().u32(0), &["needs 8 bytes at offset 8", "4 left"]),
        ("one count", Raw::new().u64(0), &["needs 8 bytes at offset 16"]),
        ("one count, version 1", Raw::version(1).u32(0), &["needs 4 bytes at offset 12"]),
        ("2^64 - 1 tensors", tensors(u64::MAX), &["claims 18446744073709551615 tensors", "Limits::tensors"]),
        ("2^63 tensors", tensors(1 << 63), &["9223372036854775808 tensors", "at most 262144"]),
        ("more tensors than bytes", tensors(1000).raw([0; 999]), &["claims 1000 tensors", "999 bytes left"]),
        ("2^64 - 1 keys", keys(u64::MAX), &["18446744073709551615 key-value pairs", "Limits::keys"]),
        ("more keys than bytes", keys(100).raw([0; 50]), &["100 key-value pairs", "50 bytes left"]),
        ("2^32 - 1 keys, version 1", Raw::version(1).counts(0, u32::MAX.into()), &["4294967295 key-value"]),
        (
            "counts in the other byte order",
            Raw::version(3).raw(1_u64.to_be_bytes()).u64(0),
            &["72057594037927936 tensors"],
        ),
    ]
}

fn keys_and_values() -> Vec<Case> {
    let filler = [0; 64];
    vec![
        ("one key too few", keys(2).u32_key("a.b", 1).raw([0; 6]), &["header", "claims 2 key-value pairs"]),
        ("key cut short", keys(1).size(20).raw("general.archit"), &["key 0", "20 bytes of name"]),
        ("key of 2^64 - 1 bytes", keys(1).size(u64::MAX).raw(filler), &["key 0", "Limits::key_bytes"]),
        ("key of 65,536 bytes", keys(1).key("k".repeat(65_536), U8).u8(0), &["at most 65535"]),
        ("empty key", keys(1).key("", U32).raw(filler), &["key 0", "the name is empty"]),
        ("key not UTF-8", keys(1).key(b"a\xff", U32).raw(filler), &["key 0", "not valid UTF-8"]),
        ("key twice", keys(2).u32_key("a.b", 1).u32_key("a.b", 1), &["key \"a.b\"", "occurs twice"]),
        (
            "value type 13",
            keys(1).key("a.b", 13).raw(filler),
            &["key \"a.b\"", "value type 13 does not exist"],
        ),
        ("value type 2^32 - 1", keys(1).key("a.b", u32::MAX).raw(filler), &["value type 4294967295"]),
        ("no value type", keys(1).string("a.bcdefgh").raw([0; 3]), &["key \"a.bcdefgh\"", "needs 4 bytes"]),
        ("number cut short", keys(1).key("a.b", U64).u32(0), &["key \"a.b\"", "needs 8 bytes", "4 left"]),
        ("bool of 2", keys(1).key("a.b", BOOL).u8(2), &["key \"a.b\"", "stored as 2"]),
        (
            "bool of 7 in an array",
            keys(1).array_key("a.b", BOOL, 2).raw([1, 7]),
            &["key \"a.b\"", "stored as 7"],
        ),
        (
            "string cut short",
            keys(1).key("a.b", STRING).size(9).raw("12345678"),
            &["key \"a.b\"", "9 bytes of string"],
        ),
        ("string of 2^64 - 1 bytes", keys(1).key("a.b", STRING).size(u64::MAX), &["Limits::string_bytes"]),
        ("string of 2 GiB", keys(1).key("a.b", STRING).size(1 << 31), &["2147483648 bytes of string"]),
        (
            "string cut short, version 1",
            Raw::version(1).counts(0, 1).key("a.b", STRING).size(9),
            &["9 bytes of string"],
        ),
    ]
}

fn arrays() -> Vec<Case> {
    let deep = |depth: usize| {
        let mut raw = keys(1).key("a.b", ARRAY);
        for _ in 0..depth {
            raw = raw.u32(ARRAY).size(1);
        }
        raw.u32(U8).size(0)
    };
    vec![
        ("no element type", keys(1).key("a.bcd", ARRAY).raw([4, 0]), &["key \"a.bcd\"", "needs 4 bytes"]),
        ("element type 99", keys(1).array_key("a.b", 99, 1).u64(0), &["key \"a.b\"", "value type 99"]),
        ("2^64 - 1 elements", keys(1).array_key("a.b", U64, u64::MAX), &["Limits::array_len"]),
        (
            "2^61 + 1 elements of 8 bytes",
            keys(1).array_key("a.b", U64, (1 << 61) + 1).u64(0),
            &["array elements"],
        ),
        (
            "2^26 elements",
            keys(1).array_key("a.b", U64, 1 << 26).u64(0),
            &["67108864 array elements", "8 bytes left"],
        ),
        (
            "one element missing",
            keys(1).array_key("a.b", U32, 3).u64(0),
            &["3 array elements", "8 bytes left"],
        ),
        ("more strings than bytes", keys(1).array_key("a.b", STRING, 9).raw([0; 71]), &["9 array elements"]),
        (
            "a string past the end",
            keys(1).array_key("a.b", STRING, 2).string("x").size(5).raw("yyyy"),
            &["5 bytes of string", "4 bytes left"],
        ),
        (
            "a string of 2^64 - 1 bytes",
            keys(1).array_key("a.b", STRING, 2).string("").size(u64::MAX),
            &["key \"a.b\"", "Limits::string_bytes"],
        ),
        ("4 arrays deep", deep(3), &["key \"a.b\"", "nested more than 3 deep"]),
        ("10,000 arrays deep", deep(10_000), &["nested more than 3 deep"]),
        (
            "2^26 arrays in an array",
            keys(1).array_key("a.b", ARRAY, 1 << 26).raw([0; 64]),
            &["67108864 array elements"],
        ),
        (
            "an array in an array past the end",
            keys(1).array_key("a.b", ARRAY, 1).u32(U32).size(2).u32(0),
            &["2 array elements"],
        ),
    ]
}

fn alignments() -> Vec<Case> {
    let align = |value| keys(1).u32_key("general.alignment", value);
    vec![
        ("alignment 0", align(0), &["\"general.alignment\"", "alignment of 0 is not a power of two"]),
        ("alignment 3", align(3), &["alignment of 3"]),
        ("alignment 4", align(4), &["alignment of 4", "from 8"]),
        ("alignment 48", align(48), &["alignment of 48"]),
        ("alignment 2^31", align(1 << 31), &["alignment of 2147483648", "Limits::alignment"]),
        (
            "alignment 2^40",
            keys(1).key("general.alignment", U64).u64(1 << 40),
            &["alignment of 1099511627776"],
        ),
        ("alignment -32", keys(1).key("general.alignment", I32).u32(-32_i32 as u32), &["not a power of two"]),
        (
            "alignment in words",
            keys(1).string_key("general.alignment", "32"),
            &["should be a uint32, but is string"],
        ),
        (
            "alignment an array",
            keys(1).array_key("general.alignment", U32, 1).u32(32),
            &["is array of 1 uint32"],
        ),
    ]
}

fn tensor_tables() -> Vec<Case> {
    let one = |name: &str, shape: &[u64], type_id| tensors(1).tensor(name, shape, type_id, 0).data(64);
    vec![
        ("no table", tensors(1).raw([0; 24]), &["header", "claims 1 tensors", "24 bytes left"]),
        ("empty name", one("", &[4], T_F32), &["tensor 0", "the name is empty"]),
        (
            "name of 128 bytes",
            one(&"n".repeat(128), &[4], T_F32),
            &["128 bytes of name", "Limits::tensor_name_bytes"],
        ),
        ("name past the end", tensors(1).size(100).raw([b'n'; 50]), &["tensor 0", "100 bytes of name"]),
        ("name not UTF-8", tensors(1).tensor(b"\xc3", &[4], T_F32, 0).data(64), &["tensor 0", "UTF-8"]),
        (
            "name twice",
            tensors(2).tensor("x", &[4], T_F32, 0).tensor("x", &[4], T_F32, 32).data(64),
            &["tensor \"x\"", "occurs twice"],
        ),
        (
            "5 dimensions",
            one("x", &[1, 1, 1, 1, 1], T_F32),
            &["tensor \"x\"", "5 dimensions, where at most 4"],
        ),
        (
            "2^32 - 1 dimensions",
            tensors(1).string("x").u32(u32::MAX).raw([0; 64]),
            &["4294967295 dimensions"],
        ),
        ("no rows", one("x", &[4, 0], T_F32), &["tensor \"x\"", "dimension 1 is zero"]),
        ("no columns", one("x", &[0, 4], T_F32), &["dimension 0 is zero"]),
        (
            "2^80 values",
            one("x", &[1 << 40, 1 << 40], T_F32),
            &["tensor \"x\"", "more values than can be counted"],
        ),
        ("2^64 values", one("x", &[1 << 32, 1 << 32], T_F32), &["more values than can be counted"]),
        ("2^63 values", one("x", &[1 << 63], T_I8), &["more values than can be counted"]),
        (
            "2^64 values of an unknown type",
            one("x", &[1 << 32, 1 << 32], 1000),
            &["more values than can be counted"],
        ),
        ("2^64 bytes", one("x", &[1 << 61], T_I64), &["more values than can be counted"]),
        (
            "a row of 33 in blocks of 32",
            one("x", &[33], T_Q8_0),
            &["rows of 33 values are not whole Q8_0 blocks of 32"],
        ),
        ("blocks across rows", one("x", &[16, 2], T_Q8_0), &["rows of 16 values"]),
        (
            "table cut short",
            tensors(1).string("a.name").u32(2).u64(4).raw([0; 5]),
            &["tensor \"a.name\"", "needs 8 bytes"],
        ),
    ]
}

fn layouts() -> Vec<Case> {
    let at = |offset, bytes| tensors(1).tensor("x", &[8], T_F32, offset).data(bytes);
    let two = |first, second| {
        tensors(2).tensor("x", &[16], T_F32, first).tensor("y", &[16], T_F32, second).data(512)
    };
    vec![
        ("offset 4", at(4, 64), &["tensor \"x\"", "offset 4 is not a multiple of the alignment 32"]),
        ("offset past the end", at(64, 64), &["tensor \"x\"", "32 bytes from offset 64", "cut short"]),
        ("one byte missing", at(0, 31), &["tensor \"x\"", "end past the file's"]),
        ("no data", tensors(1).tensor("x", &[8], T_F32, 0), &["end past the file's"]),
        ("offset near 2^64", at(u64::MAX - 31, 64), &["end past the file's"]),
        ("offset of 2^63", at(1 << 63, 64), &["end past the file's"]),
        ("2^62 bytes", tensors(1).tensor("x", &[1 << 62], T_I8, 0).data(64), &["4611686018427387904 bytes"]),
        ("the same place", two(0, 0), &["tensor \"y\"", "overlap those of tensor \"x\""]),
        ("half over", two(0, 32), &["tensor \"y\"", "overlap those of tensor \"x\""]),
        ("over from behind", two(64, 32), &["tensor \"x\"", "overlap those of tensor \"y\""]),
        (
            "an unknown type past the end",
            tensors(1).tensor("x", &[8], 1000, 64).data(64),
            &["tensor \"x\"", "end past the file's"],
        ),
        (
            "an alignment that the offsets ignore",
            Raw::new().counts(1, 1).u32_key("general.alignment", 64).tensor("x", &[8], T_F32, 32).data(256),
            &["offset 32 is not a multiple of the alignment 64"],
        ),
    ]
}

#[test]
fn every_defect_is_named() {
    let tables =
        [other_formats(), headers(), keys_and_values(), arrays(), alignments(), tensor_tables(), layouts()];
    let cases: Vec<Case> = tables.into_iter().flatten().collect();
    assert!(cases.len() >= 90);
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (number, (what, raw, expected)) in cases.into_iter().enumerate() {
        let path = folder.path().join(format!("case-{number}.gguf"));
        std::fs::write(&path, &raw.bytes).unwrap();
        let from_disk = Gguf::open(&path).map(|_| ()).map_err(|error| error.to_string());
        let from_memory = Gguf::from_bytes(raw.bytes).map(|_| ()).map_err(|error| error.to_string());
        let name = path.display().to_string();
        for (result, name) in [(from_disk, name.as_str()), (from_memory, "GGUF in memory")] {
            match result {
                Ok(()) => wrong.push(format!("{what}: was accepted")),
                Err(message) => {
                    let lacking = expected.iter().find(|part| !message.contains(**part));
                    let lacking = lacking.copied().or((!message.contains(name)).then_some(name));
                    if let Some(lacking) = lacking {
                        wrong.push(format!("{what}: {message:?} lacks {lacking:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for raw in [Raw::version(1), Raw::version(2), Raw::version(3), Raw::big_endian(3)] {
        let bytes = sound(raw);
        assert!(Gguf::from_bytes(bytes.clone()).is_ok());
        for length in 0..bytes.len() {
            assert!(Gguf::from_bytes(&bytes[..length]).is_err(), "cut at {length} of {}", bytes.len());
        }
    }
}

#[test]
fn what_is_not_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = Gguf::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("it is a folder"), "{error}");
    let error = Gguf::open(folder.path().join("none.gguf")).unwrap_err().to_string();
    assert!(error.contains("cannot open") && error.contains("none.gguf"), "{error}");
    if cfg!(unix) {
        let error = Gguf::open("/dev/null").unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}

#[test]
fn a_header_beyond_its_limit_is_refused() {
    let mut limits = gruff_gguf::Limits::default();
    limits.header_bytes = 64;
    let bytes = sound(Raw::new());
    let error = Gguf::from_bytes_with(bytes, &limits).unwrap_err().to_string();
    assert!(error.contains("does not end within 64 bytes (Limits::header_bytes)"), "{error}");
}
