//! Random Qwen3.5 files with transformers' logits. They lie beside the workspace, in `../shared/data/golden`;
//! where they are absent the tests say so and pass.

mod common;

use std::path::PathBuf;

use common::{File, Sequence, caches, cpu, nmse, step};
use gruff_blocks::BlockType;
use gruff_gguf::Gguf;
use gruff_kernels::{Activations, Device, KvDtype};
use gruff_models::Model;

/// A file of the golden folder.
fn golden(name: &str) -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("../shared/data/golden").join(name);
    if !path.exists() {
        println!("{name}: ../shared/data/golden is absent");
        return None;
    }
    Some(path)
}

fn open(path: &PathBuf) -> Gguf {
    Gguf::open(path).expect("the golden file opens")
}

/// What transformers gave: token ids, logits of each, and 32 ids continued greedily.
struct Reference {
    ids: Vec<u32>,
    logits: Vec<Vec<f32>>,
    greedy_from_32: Vec<u32>,
}

impl Reference {
    fn read(kind: &str) -> Option<Self> {
        let json = std::fs::read_to_string(golden(&format!("{kind}-ref.json"))?).expect("readable");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let ids = |key: &str| -> Vec<u32> {
            json[key]
                .as_array()
                .expect("a list")
                .iter()
                .map(|id| id.as_u64().expect("an id") as u32)
                .collect()
        };
        let logits = read_npy(&golden(&format!("{kind}-logits.npy"))?);
        Some(Self { ids: ids("ids"), logits, greedy_from_32: ids("greedy_from_32") })
    }
}

/// A two-dimensional f32 array in NumPy's format, version 1.
fn read_npy(path: &PathBuf) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).expect("readable");
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let header_len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + header_len]).expect("ASCII");
    assert!(header.contains("'descr': '<f4'") && header.contains("'fortran_order': False"), "{header}");
    let shape = header.split(['(', ')']).nth(1).expect("a shape");
    let columns: usize = shape.split(',').nth(1).expect("two dimensions").trim().parse().expect("a number");
    let values: Vec<f32> = bytes[10 + header_len..]
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    values.chunks_exact(columns).map(<[f32]>::to_vec).collect()
}

fn distance(actual: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    nmse(actual.iter().map(|row| &**row), expected[..actual.len()].iter().map(|row| &**row))
}

/// The same model with every tensor unpacked to F32.
fn dequantized(gguf: &Gguf) -> File {
    let mut file = File { metadata: gguf.metadata().clone(), tensors: Vec::new(), width: 0 };
    for tensor in gguf.tensors() {
        let data = gguf.data(tensor).expect("data");
        let values = tensor.block_type().expect("known").unpack_to_vec(&data).expect("whole blocks");
        file.push(tensor.name(), tensor.shape(), BlockType::F32, values);
    }
    file
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(id, _)| id as u32)
}

/// Continues `prompt` greedily up to `len` ids.
fn greedy(model: &dyn Model, kv_dtype: KvDtype, prompt: &[u32], len: usize) -> Vec<u32> {
    let mut caches = caches(model, kv_dtype, 1, len, 0);
    let mut sequences = [Sequence::new(vec![0; len], 0, 1)];
    sequences[0].ids[..prompt.len()].copy_from_slice(prompt);
    step(model, &mut caches, &mut sequences, &[prompt.len()]);
    for at in prompt.len()..len {
        sequences[0].ids[at] = argmax(&sequences[0].logits[at - 1]);
        if at + 1 < len {
            step(model, &mut caches, &mut sequences, &[1]);
        }
    }
    let [sequence] = sequences;
    sequence.ids
}

#[test]
fn the_exact_path_equals_transformers() {
    for kind in ["dense", "moe"] {
        let (Some(path), Some(reference)) = (golden(&format!("{kind}-f32.gguf")), Reference::read(kind))
        else {
            return;
        };
        let model = gruff_models::load(&open(&path), &cpu(Activations::F32)).expect("loads");
        let logits = common::logits(&*model, KvDtype::F32, &reference.ids);
        let nmse = distance(&logits, &reference.logits);
        println!("{kind}: NMSE {nmse:.1e} over {} positions", logits.len());
        assert!(logits.len() == reference.logits.len() && nmse < 1e-8, "{kind}: NMSE {nmse:.1e}");

        let continued = greedy(&*model, KvDtype::F32, &reference.ids[..32], reference.greedy_from_32.len());
        assert_eq!(continued, reference.greedy_from_32, "{kind}");

        let mut caches = caches(&*model, KvDtype::F32, 1, reference.ids.len(), 0);
        let mut sequences = [Sequence::new(reference.ids.clone(), 0, 1)];
        for len in [100, 1, 1, 27, 100] {
            step(&*model, &mut caches, &mut sequences, &[len]);
        }
        assert!(sequences[0].logits == logits, "{kind}: split steps differ");
    }
}

#[test]
fn packed_weights_equal_their_unpacked_values() {
    for name in ["dense-Q8_0", "dense-Q4_K_M", "dense-Q2_K", "dense-IQ4_XS", "moe-Q4_K_M"] {
        let kind = if name.starts_with("moe") { "moe" } else { "dense" };
        let (Some(path), Some(reference)) = (golden(&format!("{name}.gguf")), Reference::read(kind)) else {
            return;
        };
        let gguf = open(&path);
        let device = cpu(Activations::F32);
        let packed = gruff_models::load(&gguf, &device).expect("loads");
        let unpacked = dequantized(&gguf).load(&device);
        let ids = &reference.ids[..70];
        let expected = common::logits(&*unpacked, KvDtype::F32, ids);
        let nmse = distance(&common::logits(&*packed, KvDtype::F32, ids), &expected);
        println!("{name}: exact path NMSE {nmse:.1e}");
        assert!(nmse < 1e-8, "{name}: NMSE {nmse:.1e}");
    }
}

#[test]
fn the_default_path_stays_near_its_twin() {
    for name in ["dense-Q8_0", "dense-Q4_K_M", "dense-Q2_K", "dense-IQ4_XS", "moe-Q4_K_M"] {
        let kind = if name.starts_with("moe") { "moe" } else { "dense" };
        let (Some(path), Some(reference)) = (golden(&format!("{name}.gguf")), Reference::read(kind)) else {
            return;
        };
        let gguf = open(&path);
        let ids = &reference.ids[..16];
        let run = |device: &Device, kv_dtype| {
            common::logits(&*gruff_models::load(&gguf, device).expect("loads"), kv_dtype, ids)
        };
        let fast = run(&cpu(Activations::Int8), KvDtype::F16);
        let twin = run(&Device::reference(Activations::Int8), KvDtype::F16);
        let exact = run(&cpu(Activations::F32), KvDtype::F32);
        let apart = distance(&fast, &twin);
        let (fast_error, twin_error) = (distance(&fast, &exact), distance(&twin, &exact));
        println!(
            "{name}: NMSE {apart:.1e} to the twin; to the exact path {fast_error:.1e}, the twin's {twin_error:.1e}"
        );
        // Where sums differ in their last bit, a rounding to int8 may fall the other way: a small part of what
        // the rounding does in all.
        assert!(
            apart < 0.25 * twin_error,
            "{name}: NMSE {apart:.1e} to the twin, whose own is {twin_error:.1e}"
        );
        assert!(fast_error < 1.2 * twin_error, "{name}: NMSE {fast_error:.1e}, the twin's {twin_error:.1e}");
    }
}
