//! Whatever the bytes: no panic, and never much more memory than the file is long.
//!
//! The only test of this program, because it watches the memory of the whole process.

mod common;

use std::cell::Cell;
use std::sync::Arc;

use common::*;
use gruff_gguf::{Error, Gguf, Metadata, Writer};
use peak_alloc::PeakAlloc;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Memory that an open may take beside the file itself. What grows most is a key of two letters with a byte
/// for a value: 11 bytes of a version 1 file become an entry of 56, its key on the heap and its place in an index.
fn allowed(file_bytes: usize) -> usize {
    10 * file_bytes + 4096
}

/// Opens the bytes and touches everything that can be reached. Says whether they were a model.
fn open(bytes: Vec<u8>) -> bool {
    let length = bytes.len();
    let bytes: Arc<[u8]> = bytes.into();
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let result = Gguf::from_bytes(bytes);
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken <= allowed(length), "{taken} bytes for a file of {length}");
    match result {
        Ok(model) => {
            for (key, value) in model.metadata().iter() {
                // The same value, not an equal one: a NaN equals nothing.
                assert!(model.metadata().get(key).is_some_and(|found| std::ptr::eq(found, value)), "{key}");
            }
            for tensor in model.tensors() {
                if let Ok(data) = model.data(tensor) {
                    assert_eq!(Some(data.len() as u64), tensor.bytes());
                }
            }
            true
        }
        Err(error) => {
            assert!(error.to_string().len() < 4 * length + 1000, "{error}");
            false
        }
    }
}

/// Sound files to start from, of every version and byte order, and one of the writer's.
fn seeds() -> Vec<Vec<u8>> {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "test");
    metadata.insert("tokens", vec![1_u32, 2, 3]);
    let mut writer = Writer::new(metadata);
    writer.add("t", &[256, 2], gruff_blocks::BlockType::Q4_K).unwrap();
    let written = writer.to_bytes(|t| Ok::<_, Error>(vec![7; t.bytes().unwrap() as usize])).unwrap();
    let mut seeds = vec![written];
    for version in 1..=3 {
        seeds.push(sound(Raw::version(version)));
        seeds.push(sound(Raw::big_endian(version)));
    }
    seeds
}

/// One change to a file.
#[derive(Clone, Debug)]
enum Change {
    Byte(usize, u8),
    /// A 32-bit or 64-bit number that is likely to hurt.
    Number(usize, u64, bool),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    /// A piece copied over another place.
    Copy(usize, usize, usize),
}

fn changes() -> impl Strategy<Value = Change> {
    let place = 0..2000_usize;
    let wild = prop_oneof![
        Just(u64::MAX),
        Just(1 << 63),
        Just(u64::from(u32::MAX)),
        Just(1 << 31),
        Just(0),
        0..100_u64,
        (0..64_u32).prop_map(|bit| 1 << bit),
        any::<u64>(),
    ];
    prop_oneof![
        (place.clone(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (place.clone(), wild, any::<bool>()).prop_map(|(at, v, wide)| Change::Number(at, v, wide)),
        place.clone().prop_map(Change::Cut),
        (place.clone(), vec(any::<u8>(), 0..20)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (place.clone(), 0..50_usize).prop_map(|(at, count)| Change::Remove(at, count)),
        (place.clone(), place, 0..100_usize).prop_map(|(from, to, count)| Change::Copy(from, to, count)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: Change) {
    let length = bytes.len();
    let within = |at: usize| if length == 0 { 0 } else { at % length };
    match change {
        Change::Byte(at, byte) if length > 0 => bytes[within(at)] = byte,
        Change::Number(at, value, wide) => {
            let at = within(at);
            let number = value.to_le_bytes();
            let count = if wide { 8 } else { 4 }.min(length - at);
            bytes[at..at + count].copy_from_slice(&number[..count]);
        }
        Change::Cut(at) => bytes.truncate(within(at)),
        Change::Insert(at, new) => {
            let at = within(at);
            bytes.splice(at..at, new);
        }
        Change::Remove(at, count) => {
            let at = within(at);
            bytes.drain(at..length.min(at + count));
        }
        Change::Copy(from, to, count) => {
            let (from, to) = (within(from), within(to));
            let count = count.min(length - from.max(to));
            bytes.copy_within(from..from + count, to);
        }
        Change::Byte(..) => {}
    }
}

/// A header whose counts are given, before bytes that may be anything.
fn headed(version: u32, tensors: u64, keys: u64, rest: Vec<u8>) -> Vec<u8> {
    Raw::version(version).counts(tensors, keys).raw(rest).bytes
}

/// The shortest records there are, as many as possible: what takes the most memory for its length.
fn dense(tensors: u64, keys: u64, strings: u64, arrays: u64) -> Vec<u8> {
    let name = |number: u64| [number % 128, number / 128].map(|digit| digit as u8);
    let mut raw = Raw::version(1).counts(tensors, keys + 2);
    for key in 0..keys {
        raw = raw.key(name(key), U8).u8(0);
    }
    raw = raw.array_key("strings", STRING, strings);
    for _ in 0..strings {
        raw = raw.size(0);
    }
    raw = raw.array_key("arrays", ARRAY, arrays);
    for _ in 0..arrays {
        raw = raw.u32(U8).size(0);
    }
    for tensor in 0..tensors {
        raw = raw.tensor(name(tensor), &[1, 1, 1, 1], T_I8, 32 * tensor);
    }
    raw.data(32 * tensors as usize).bytes
}

/// Runs `cases` files of a kind; at least `models` have to be models, so that the checks mean something.
fn run(cases: u32, models: u32, files: impl Strategy<Value = Vec<u8>>) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let opened = Cell::new(0);
    let result = runner.run(&files, |bytes| {
        opened.set(opened.get() + u32::from(open(bytes)));
        Ok(())
    });
    result.unwrap();
    assert!(opened.get() >= models, "only {} of {cases} opened", opened.get());
}

#[test]
fn any_bytes_are_survived() {
    let seeds = seeds();
    assert!(seeds.iter().all(|seed| open(seed.clone())));
    let mutated = (0..seeds.len(), vec(changes(), 1..6)).prop_map(|(seed, changes)| {
        let mut bytes = seeds[seed].clone();
        changes.into_iter().for_each(|change| apply(&mut bytes, change));
        bytes
    });
    run(4000, 100, mutated);
    run(1000, 0, vec(any::<u8>(), 0..400));
    let few = 0..20_u64;
    let headed_noise = (1..4_u32, few.clone(), few, vec(any::<u8>(), 0..1000))
        .prop_map(|(version, tensors, keys, rest)| headed(version, tensors, keys, rest));
    run(1000, 0, headed_noise);
    // Small numbers and huge ones get further than random bytes do.
    let words = vec(prop_oneof![0..14_u32, Just(u32::MAX), Just(0x6161_6161)], 0..200);
    let headed_words = (1..4_u32, 0..3_u64, 0..5_u64, words).prop_map(|(version, tensors, keys, words)| {
        headed(version, tensors, keys, words.into_iter().flat_map(u32::to_le_bytes).collect())
    });
    run(4000, 40, headed_words);
    for (tensors, keys, strings, arrays) in
        [(1000, 0, 0, 0), (0, 10_000, 0, 0), (0, 0, 10_000, 0), (0, 0, 0, 10_000), (100, 100, 100, 100)]
    {
        assert!(open(dense(tensors, keys, strings, arrays)));
    }
}
