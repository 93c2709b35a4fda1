//! Attention, the delta rule and small operations in the sizes of Qwen3.5's 4B: 16 heads of 256 over 4 key-value heads,
//! 32 value heads and 16 key heads of 128, rows of 2560 and 9216. Where every sequence has one token, times are those of a
//! replayed recording of [`REPEATS`] operations, else the host's with its launches.

use std::error::Error;

use gruff_kernels::attention::{
    AttentionSpec, HeadNorms, Prepare, attention_activation, prepare_qkv, write_kv,
};
use gruff_kernels::delta_net::{DeltaInputs, NetInputs, gated_delta, gated_delta_net};
use gruff_kernels::elementwise::glu;
use gruff_kernels::matmul::Glu;
use gruff_kernels::norm::{
    add_rms_norm, add_rms_norm_activation, gated_rms_norm_activation, rms_norm, rms_norm_activation,
};
use gruff_kernels::rope::RopeStyle;
use gruff_kernels::{
    DType, Device, KvDtype, KvLayer, PAGE_LEN, Recordings, StateLayer, StateShape, Step, StepSequence, Tensor,
};

use super::seconds;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Operations of a recording.
const REPEATS: usize = 20;

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Attention,
    Delta,
    Norms,
    Small,
}

/// Prints the times of a kind, a line each.
pub(crate) fn print(device: &Device, kind: Kind) -> Outcome<()> {
    match kind {
        Kind::Attention => {
            for dtype in [KvDtype::F16, KvDtype::Q8_0] {
                let cases = [(1, 0, 512), (1, 0, 4096), (1, 8192, 512), (1, 8192, 16)];
                let few = [(1, 99, 1), (1, 499, 1), (1, 3999, 1), (1, 31_999, 1), (8, 999, 1), (32, 999, 1)];
                for (sequences, past, len) in cases.into_iter().chain(few) {
                    let micros = 1e6 * attention_seconds(device, dtype, sequences, past, len)?;
                    println!(
                        "gated_attention for products {dtype} {sequences} x ({past} + {len}): {micros:.1} us"
                    );
                }
            }
            for (sequences, len) in [(1, 1), (32, 1), (1, 512)] {
                let micros = 1e6 * prepare_seconds(device, sequences, len)?;
                println!("prepare_qkv f16 {sequences} x (0 + {len}): {micros:.1} us");
            }
        }
        Kind::Delta => {
            let cases = [
                (1, 0, 64),
                (1, 0, 512),
                (1, 0, 4096),
                (4, 0, 1024),
                (1, 100, 4),
                (1, 100, 1),
                (8, 100, 1),
                (32, 100, 1),
            ];
            for (sequences, past, len) in cases {
                let micros = 1e6 * delta_seconds(device, sequences, past, len)?;
                println!("gated_delta {sequences} x ({past} + {len}): {micros:.1} us");
            }
            for (sequences, past) in [(1, 100), (1, 126), (1, 127), (8, 100), (32, 100)] {
                let micros = 1e6 * net_seconds(device, sequences, past)?;
                println!("gated_delta_net {sequences} x ({past} + 1): {micros:.1} us");
            }
        }
        Kind::Norms => norms(device)?,
        Kind::Small => small(device)?,
    }
    Ok(())
}

pub(crate) fn tensor(device: &Device, shape: &[usize], deviation: f32) -> Outcome<Tensor> {
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.7391).sin() * deviation).collect();
    Ok(device.tensor_f32(&values, shape)?)
}

pub(crate) fn step(sequences: usize, past: usize, len: usize) -> Outcome<Step> {
    let pages = (past + len).div_ceil(PAGE_LEN);
    let all = (0..sequences)
        .map(|slot| StepSequence {
            len,
            past,
            slot,
            pages: (slot * pages..(slot + 1) * pages).map(|page| page as u32).collect(),
        })
        .collect();
    Ok(Step::text(vec![0; sequences * len], all)?)
}

fn attention_seconds(
    device: &Device,
    dtype: KvDtype,
    sequences: usize,
    past: usize,
    len: usize,
) -> Outcome<f64> {
    const HEADS: [usize; 3] = [16, 4, 256];
    let [heads, kv, dim] = HEADS;
    let pages = sequences * (past + len).div_ceil(PAGE_LEN);
    let layer = KvLayer::new(device, dtype, pages, kv, dim, dim)?;
    // Pages hold what a prompt leaves.
    for first in (0..past).step_by(2048) {
        let part = 2048.min(past - first);
        let whole = step(sequences, past, len)?;
        let all =
            whole.sequences().iter().map(|s| StepSequence { len: part, past: first, ..s.clone() }).collect();
        let values = tensor(device, &[sequences * part, kv, dim], 1.0)?;
        write_kv(&Step::text(vec![0; sequences * part], all)?, &values, &values, &layer)?;
    }
    let step = step(sequences, past, len)?;
    let values = tensor(device, &[step.len(), kv, dim], 1.0)?;
    write_kv(&step, &values, &values, &layer)?;
    let queries = tensor(device, &[step.len(), heads, dim], 1.0)?;
    let gate = tensor(device, &[step.len(), heads, dim], 1.0)?;
    let spec = AttentionSpec { scale: 0.0625, window: None, softcap: None };
    step_seconds(device, &step, || {
        let out = device.scratch(DType::F32, &[step.len(), heads * dim])?;
        attention_activation(&step, &queries, &layer, &spec, Some(&gate), &out)?;
        Ok(out)
    })
}

/// Seconds of an operation on a step, which returns a tensor `[.., .., ..]` or `[.., ..]`.
fn step_seconds(device: &Device, step: &Step, operation: impl Fn() -> Outcome<Tensor>) -> Outcome<f64> {
    let single = step.sequences().iter().all(|sequence| sequence.len == 1);
    let repeats = if single { REPEATS } else { 1 };
    let recordings = Recordings::default();
    let read = device.zeros(DType::F32, &[1, 1])?;
    let pass = || -> Outcome<Tensor> {
        let mut last = operation()?;
        for _ in 1..repeats {
            last = operation()?;
        }
        Ok(last)
    };
    let all = seconds(&read, || recordings.run(&[device], step, 0, pass).map(|_| ()))?;
    Ok(all / repeats as f64)
}

fn prepare_seconds(device: &Device, sequences: usize, len: usize) -> Outcome<f64> {
    const HEADS: [usize; 3] = [16, 4, 256];
    let [heads, kv, dim] = HEADS;
    let step = step(sequences, 0, len)?;
    let tokens = step.len();
    let layer = KvLayer::new(device, KvDtype::F16, sequences * len.div_ceil(PAGE_LEN), kv, dim, dim)?;
    let queries = tensor(device, &[tokens, heads, dim], 1.0)?;
    let keys = tensor(device, &[tokens, kv, dim], 1.0)?;
    let weight = tensor(device, &[dim], 1.0)?;
    let table = tensor(device, &[tokens, 2, 32], 0.7)?;
    let norms = HeadNorms { queries: &weight, keys: &weight, eps: 1e-6 };
    let prepare = Prepare { norms: Some(norms), table: &table, style: RopeStyle::NeoX };
    step_seconds(device, &step, || {
        let result = device.scratch(DType::F32, &[1, 1])?;
        prepare_qkv(&step, &queries, &keys, &keys, &prepare, &layer)?;
        Ok(result)
    })
}

fn net_seconds(device: &Device, sequences: usize, past: usize) -> Outcome<f64> {
    let shape = StateShape {
        key_heads: 16,
        value_heads: 32,
        key_dim: 128,
        value_dim: 128,
        conv_kernel: 4,
        conv_channels: 8192,
        rollback: 0,
    };
    let layer = StateLayer::new(device, sequences, shape)?;
    let step = step(sequences, past, 1)?;
    let tokens = step.len();
    let heads = tensor(device, &[32], 0.5)?;
    let inputs = NetInputs {
        qkv: &tensor(device, &[tokens, 8192], 1.0)?,
        z: &tensor(device, &[tokens, 32, 128], 1.0)?,
        a: &tensor(device, &[tokens, 32], 1.0)?,
        b: &tensor(device, &[tokens, 32], 1.0)?,
        conv: &tensor(device, &[8192, 4], 0.5)?,
        dt_bias: &heads,
        a_neg: &device.tensor_f32(&[-0.05; 32], &[32])?,
        norm: &tensor(device, &[128], 1.0)?,
        l2_eps: 1e-6,
        norm_eps: 1e-6,
    };
    step_seconds(device, &step, || Ok(gated_delta_net(&step, &inputs, &layer)?.tensor().clone()))
}

fn delta_seconds(device: &Device, sequences: usize, past: usize, len: usize) -> Outcome<f64> {
    let shape = StateShape {
        key_heads: 16,
        value_heads: 32,
        key_dim: 128,
        value_dim: 128,
        conv_kernel: 4,
        conv_channels: 64,
        rollback: 0,
    };
    let layer = StateLayer::new(device, sequences, shape)?;
    let step = step(sequences, past, len)?;
    let tokens = step.len();
    let keys = tensor(device, &[tokens, 16, 128], 0.125)?;
    let values = tensor(device, &[tokens, 32, 128], 1.0)?;
    let decay = device.tensor_f32(&vec![-0.05; tokens * 32], &[tokens, 32])?;
    let beta = device.tensor_f32(&vec![0.5; tokens * 32], &[tokens, 32])?;
    let inputs = DeltaInputs { queries: &keys, keys: &keys, values: &values, decay: &decay, beta: &beta };
    step_seconds(device, &step, || {
        let out = device.scratch(DType::F32, &[tokens, 32, 128])?;
        gated_delta(&step, &inputs, &layer, &out)?;
        Ok(out)
    })
}

/// Norms in front of products, with what they read and write a second: f32 rows, and the result in bfloat16 besides.
fn norms(device: &Device) -> Outcome<()> {
    const WIDTH: usize = 2560;
    const HEADS: [usize; 2] = [32, 128];
    let [heads, dim] = HEADS;
    let weight = tensor(device, &[WIDTH], 1.0)?;
    let head_weight = tensor(device, &[dim], 1.0)?;
    for tokens in [1, 32, 512, 4096] {
        let print = |name: &str, seconds: f64, width: usize, rows: f64| {
            let bytes = (tokens * width) as f64 * (4.0 * rows + 2.0);
            let (micros, rate) = (1e6 * seconds, bytes / seconds / 1e9);
            println!("{name} for products [{tokens}, {width}]: {micros:.1} us {rate:.0} GB/s");
        };
        let [x, delta, out] = [(); 3].map(|()| tensor(device, &[tokens, WIDTH], 1.0));
        let (x, delta, out) = (x?, delta?, out?);
        let time = seconds(&out, || {
            rms_norm_activation(&x, &weight, 1e-6, &out)?;
            Ok(())
        })?;
        print("rms_norm", time, WIDTH, 2.0);
        let time = seconds(&out, || {
            add_rms_norm_activation(&x, &delta, &weight, 1e-6, &out)?;
            Ok(())
        })?;
        print("add_rms_norm", time, WIDTH, 4.0);
        let [x, gate] = [(); 2].map(|()| tensor(device, &[tokens, heads, dim], 1.0));
        let (x, gate, out) = (x?, gate?, tensor(device, &[tokens, heads * dim], 1.0)?);
        let time = seconds(&out, || {
            gated_rms_norm_activation(&x, &head_weight, &gate, 1e-6, &out)?;
            Ok(())
        })?;
        print("gated_rms_norm", time, heads * dim, 3.0);
    }
    Ok(())
}

fn small(device: &Device) -> Outcome<()> {
    for tokens in [1, 32, 512] {
        let x = tensor(device, &[tokens, 2560], 1.0)?;
        let weight = tensor(device, &[2560], 1.0)?;
        let out = device.zeros(DType::F32, &[tokens, 2560])?;
        let micros = 1e6 * seconds(&out, || Ok(rms_norm(&x, &weight, 1e-6, &out)?))?;
        println!("rms_norm [{tokens}, 2560]: {micros:.1} us");
        let micros = 1e6 * seconds(&out, || Ok(add_rms_norm(&x, &out, &weight, 1e-6, &out)?))?;
        println!("add_rms_norm [{tokens}, 2560]: {micros:.1} us");
        let gate = tensor(device, &[tokens, 9216], 1.0)?;
        let up = tensor(device, &[tokens, 9216], 1.0)?;
        let out = device.zeros(DType::F32, &[tokens, 9216])?;
        let micros = 1e6 * seconds(&out, || Ok(glu(&gate, &up, Glu::Silu, &out)?))?;
        println!("glu [{tokens}, 9216]: {micros:.1} us");
    }
    Ok(())
}
