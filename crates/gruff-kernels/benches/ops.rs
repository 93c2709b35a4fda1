//! Operations other than products, in the shapes of Qwen3.5-0.8B and SmolLM2-135M, on all cores, beside what the machine
//! could do at most: `cargo bench -p gruff-kernels --bench ops`.
//!
//! One layer's memory may stay in the caches, so more than 100 % of what memory gives is no mistake.

mod ceilings;

use std::time::Duration;

use ceilings::{Ceilings, Work};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gruff_kernels::attention::{AttentionSpec, attention, write_kv};
use gruff_kernels::conformance::Values;
use gruff_kernels::delta_net::{DeltaInputs, causal_conv, gated_delta};
use gruff_kernels::matmul::Glu;
use gruff_kernels::sampling::{SampleSpec, argmax, sample};
use gruff_kernels::{
    CpuOptions, DType, Device, KvDtype, KvLayer, PAGE_LEN, Result, StateLayer, StateShape, Step,
    StepSequence, Tensor,
};
use gruff_kernels::{elementwise, norm};

fn device() -> Device {
    Device::cpu(CpuOptions::default()).expect("the CPU")
}

fn tensor(device: &Device, shape: &[usize]) -> Tensor {
    Values::new(1).tensor(device, shape, 1.0).expect("memory")
}

fn step(past: usize, len: usize) -> Step {
    let pages = (0..(past + len).div_ceil(PAGE_LEN) as u32).collect();
    Step::text(vec![0; len], vec![StepSequence { len, past, slot: 0, pages }]).expect("a step")
}

fn attention_case(device: &Device, heads: [usize; 3], past: usize, len: usize) -> impl FnMut() -> Result<()> {
    let [all, kv, dim] = heads;
    let pages = (past + len).div_ceil(PAGE_LEN);
    let layer = KvLayer::new(device, KvDtype::F16, pages, kv, dim, dim).expect("memory");
    let filled = past + len;
    let keys = tensor(device, &[filled, kv, dim]);
    write_kv(&step(0, filled), &keys, &keys, &layer).expect("written");
    let (queries, out) = (tensor(device, &[len, all, dim]), tensor(device, &[len, all, dim]));
    let spec = AttentionSpec { scale: 1.0 / (dim as f32).sqrt(), window: None, softcap: None };
    let step = step(past, len);
    move || attention(&step, &queries, &layer, &spec, &out)
}

fn all_benches(c: &mut Criterion) {
    let ceilings = Ceilings::measure();
    attention_benches(c, &ceilings);
    delta_benches(c, &ceilings);
    row_benches(c, &ceilings);
}

fn attention_benches(c: &mut Criterion, ceilings: &Ceilings) {
    let device = device();
    for heads in [[8, 2, 256], [9, 3, 64]] {
        let [all, kv, dim] = heads;
        let mut group = c.benchmark_group(format!("attention {all}/{kv}x{dim}"));
        for depth in [512, 4096, 32768] {
            // Keys and values in half precision.
            let work = Work { bytes: 4 * depth * kv * dim, products: 2 * depth * all * dim, int8: false };
            let run = attention_case(&device, heads, depth - 1, 1);
            ceilings.bench(&mut group, BenchmarkId::new("decode at", depth), work, run);
        }
        let work = Work { products: 512 * 513 / 2 * all * dim * 2, ..Work::default() };
        let run = attention_case(&device, heads, 0, 512);
        ceilings.bench(&mut group, BenchmarkId::new("prefill of", 512), work, run);
        group.finish();
    }
}

/// Qwen3.5-0.8B has 16 value heads, 4B 32.
fn state(value_heads: usize) -> StateShape {
    let conv_channels = 2 * 16 * 128 + value_heads * 128;
    StateShape {
        key_heads: 16,
        value_heads,
        key_dim: 128,
        value_dim: 128,
        conv_kernel: 4,
        conv_channels,
        rollback: 0,
    }
}

struct Delta {
    layers: Vec<StateLayer>,
    operands: [Tensor; 5],
    out: Tensor,
}

impl Delta {
    fn new(device: &Device, value_heads: usize, layers: usize, len: usize) -> Self {
        let unit = |heads: usize| {
            let x = tensor(device, &[len, heads, 128]);
            norm::l2_norm(&x, 1e-6, 1.0, &x).expect("normalised");
            x
        };
        let scalars = |low: f32, high: f32| {
            let values = Values::new(3).between(len * value_heads, low, high);
            device.tensor_f32(&values, &[len, value_heads]).expect("memory")
        };
        let layers =
            (0..layers).map(|_| StateLayer::new(device, 1, state(value_heads)).expect("memory")).collect();
        let operands = [
            unit(16),
            unit(16),
            tensor(device, &[len, value_heads, 128]),
            scalars(-0.5, 0.0),
            scalars(0.0, 1.0),
        ];
        Self { layers, operands, out: tensor(device, &[len, value_heads, 128]) }
    }

    fn run(&self, layer: usize, step: &Step) -> Result<()> {
        let [queries, keys, values, decay, beta] = &self.operands;
        let inputs = DeltaInputs { queries, keys, values, decay, beta };
        gated_delta(step, &inputs, &self.layers[layer], &self.out)
    }
}

fn delta_benches(c: &mut Criterion, ceilings: &Ceilings) {
    let device = device();
    for value_heads in [16, 32] {
        let mut group = c.benchmark_group(format!("gated_delta 16/{value_heads}x128"));
        // As many layers as a model has, so that the state comes from as far away as in a model.
        let layers = 18;
        let delta = Delta::new(&device, value_heads, layers, 1);
        let state = value_heads * 128 * 128;
        // S, and half a chunk's keys and updates.
        let bytes = 4 * layers * (state + 32 * 128 * (16 + value_heads));
        let work = Work { bytes, products: 2 * layers * state, int8: false };
        let mut past = CHUNKS;
        ceilings.bench(&mut group, BenchmarkId::new("decode, layers", layers), work, || {
            let step = step(past, 1);
            past += 1;
            (0..layers).try_for_each(|layer| delta.run(layer, &step))
        });
        let delta = Delta::new(&device, value_heads, 1, 512);
        let prefill = step(CHUNKS, 512);
        let work = Work { products: 3 * 512 * state, ..Work::default() };
        ceilings
            .bench(&mut group, BenchmarkId::new("a layer, prefill of", 512), work, || delta.run(0, &prefill));
        let mut plain = Recurrence::new(value_heads);
        let work = Work { bytes: 2 * 4 * state, products: 3 * state, int8: false };
        ceilings.bench(&mut group, BenchmarkId::new("a layer, plain recurrence, tokens", 1), work, || {
            plain.token();
            Ok(())
        });
        group.finish();
    }
}

/// A position on the grid of chunks, so that there is a state.
const CHUNKS: usize = 6400;

/// The recurrence as it is written in the paper, on one thread: what the chunked form is measured against.
struct Recurrence {
    states: Vec<Vec<f32>>,
    key: Vec<f32>,
    value: Vec<f32>,
    out: Vec<f32>,
}

impl Recurrence {
    fn new(heads: usize) -> Self {
        let mut values = Values::new(1);
        let states = (0..heads).map(|_| values.normal(128 * 128, 1.0)).collect();
        Self { states, key: values.normal(128, 0.1), value: values.normal(128, 1.0), out: vec![0.0; 128] }
    }

    fn token(&mut self) {
        for state in &mut self.states {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                // SAFETY: the features are there.
                unsafe { recur_avx2(state, &self.key, &self.value, &mut self.out) };
                continue;
            }
            recur(state, &self.key, &self.value, &mut self.out);
        }
        std::hint::black_box(&self.out);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn recur_avx2(state: &mut [f32], key: &[f32], value: &[f32], out: &mut [f32]) {
    recur(state, key, value, out);
}

#[inline(always)]
fn recur(state: &mut [f32], key: &[f32], value: &[f32], out: &mut [f32]) {
    const DECAY: f32 = 0.9;
    let mut update = [0f32; 128];
    for (row, k) in state.as_chunks_mut::<128>().0.iter_mut().zip(key) {
        for d in 0..128 {
            row[d] *= DECAY;
            update[d] = row[d].mul_add(*k, update[d]);
        }
    }
    for d in 0..128 {
        update[d] = 0.5 * (value[d] - update[d]);
        out[d] = 0.0;
    }
    let mut sums = [0f32; 128];
    for (row, k) in state.as_chunks_mut::<128>().0.iter_mut().zip(key) {
        for d in 0..128 {
            row[d] = update[d].mul_add(*k, row[d]);
            sums[d] = row[d].mul_add(*k, sums[d]);
        }
    }
    out.copy_from_slice(&sums);
}

fn row_benches(c: &mut Criterion, ceilings: &Ceilings) {
    let device = device();
    let mut group = c.benchmark_group("rows");
    for tokens in [1, 512] {
        let (x, delta, out) = {
            let of = || tensor(&device, &[tokens, 1024]);
            (of(), of(), of())
        };
        let weight = tensor(&device, &[1024]);
        let through = |values: usize| Work { bytes: 4 * values, ..Work::default() };
        let work = through(4 * tokens * 1024 + 1024);
        ceilings.bench(&mut group, BenchmarkId::new("add_rms_norm 1024", tokens), work, || {
            norm::add_rms_norm(&x, &delta, &weight, 1e-6, &out)
        });
        let (gate, up) = (tensor(&device, &[tokens, 3584]), tensor(&device, &[tokens, 3584]));
        let hidden = tensor(&device, &[tokens, 3584]);
        let work = through(3 * tokens * 3584);
        ceilings.bench(&mut group, BenchmarkId::new("glu 3584", tokens), work, || {
            elementwise::glu(&gate, &up, Glu::Silu, &hidden)
        });
        let layer = StateLayer::new(&device, 1, state(16)).expect("memory");
        let channels = layer.shape().conv_channels;
        let (x, weight) = (tensor(&device, &[tokens, channels]), tensor(&device, &[channels, 4]));
        let (out, step) = (tensor(&device, &[tokens, channels]), step(CHUNKS, tokens));
        let work = through((2 * tokens + 4) * channels);
        ceilings.bench(&mut group, BenchmarkId::new("causal_conv 6144", tokens), work, || {
            causal_conv(&step, &x, &weight, &layer, &out)
        });
    }
    let logits = tensor(&device, &[1, 248_320]);
    let ids = device.zeros(DType::I32, &[1]).expect("memory");
    let work = Work { bytes: 4 * 248_320, ..Work::default() };
    ceilings.bench(&mut group, BenchmarkId::new("argmax", 248_320), work, || argmax(&logits, &ids));
    let spec = SampleSpec {
        temperature: 0.7,
        top_k: 20,
        top_p: 0.8,
        min_p: 0.0,
        repetition_penalty: 1.0,
        penalized: Vec::new(),
        seed: 1,
        position: 1,
    };
    let specs =
        [("top-k 20, top-p 0.8", spec.clone()), ("top-p 0.95", SampleSpec { top_k: 0, top_p: 0.95, ..spec })];
    for (label, spec) in specs {
        let specs = [spec];
        let id = BenchmarkId::new(format!("sample, {label}"), 248_320);
        ceilings.bench(&mut group, id, work, || sample(&logits, &specs, &ids));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = all_benches
}
criterion_main!(benches);
