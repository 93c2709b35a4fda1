//! Mixture of experts.

use gruff_blocks::{BlockType, synthetic};

use super::data::gaps;
use super::{Bar, Case, Output, Tolerance, Values};
use crate::matmul::Glu;
use crate::moe::{self, Routing};
use crate::{Activation, Activations, DType, Device, PackedTensor, Result, Tensor};

/// Experts of a stack, width of the model, width of an expert, experts taken.
const EXPERTS: usize = 7;
const WIDTH: usize = 256;
const HIDDEN: usize = 512;
const USED: usize = 3;

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (experts, used, tokens) in [(8, 1, 1), (60, 4, 5), (256, 8, 33), (3, 3, 2)] {
        for renormalize in [false, true] {
            cases.push(route(experts, Routing { used, renormalize, scale: 1.5 }, tokens));
        }
    }
    for block_type in [BlockType::Q4_K, BlockType::Q8_0, BlockType::IQ3_S, BlockType::F16, BlockType::BF16] {
        for tokens in [1, 2, 19] {
            cases.push(experts(block_type, tokens));
        }
    }
    cases.push(experts(BlockType::F32, 150));
    cases
}

fn route(experts: usize, routing: Routing, tokens: usize) -> Case {
    let label = format!("{} of {experts}, {tokens} tokens, {}", routing.used, routing.renormalize);
    Case::new("route", label, Tolerance::Absolute(1e-6), move |device| {
        let mut values = Values::new((experts + tokens) as u64);
        let logits = values.strided(device, &[tokens, experts], 3.0)?;
        let ids = device.zeros(DType::I32, &[tokens, routing.used])?;
        let weights = device.zeros(DType::F32, &[tokens, routing.used])?;
        moe::route(&logits, &routing, &ids, &weights)?;
        Ok(vec![Output::of("ids", &ids)?, Output::of("weights", &weights)?])
    })
}

struct Operands {
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    hidden: Tensor,
    out: Tensor,
    gate: PackedTensor,
    up: PackedTensor,
    down: PackedTensor,
}

fn operands(device: &Device, block_type: BlockType, tokens: usize) -> Result<Operands> {
    let mut values = Values::new(tokens as u64);
    let stack = |seed, rows: usize, cols: usize| {
        let blocks = EXPERTS * rows * cols / block_type.values();
        let packed = synthetic::random_blocks(block_type, blocks, seed);
        PackedTensor::from_bytes(device, &packed, block_type, [EXPERTS, rows, cols])
    };
    let fused = stack(1, 2 * HIDDEN, WIDTH)?;
    // Experts of a token differ, as a router's do.
    let ids: Vec<i32> = (0..tokens)
        .flat_map(|_| {
            let first = values.below(EXPERTS);
            (0..USED).map(move |j| ((first + 2 * j) % EXPERTS) as i32)
        })
        .collect();
    Ok(Operands {
        x: values.strided(device, &[tokens, WIDTH], 1.0)?,
        ids: device.tensor_i32(&ids, &[tokens, USED])?,
        weights: device.tensor_f32(&values.between(tokens * USED, 0.0, 1.0), &[tokens, USED])?,
        hidden: device.zeros(DType::F32, &[tokens * USED, HIDDEN])?,
        out: gaps(device, &[tokens, WIDTH])?,
        gate: fused.narrow_rows(0, HIDDEN)?,
        up: fused.narrow_rows(HIDDEN, HIDDEN)?,
        down: stack(2, WIDTH, HIDDEN)?,
    })
}

/// Both halves of a feed-forward, all tokens or those from `start` on, `count` of them.
fn feed_forward(o: &Operands, start: usize, count: usize) -> Result<()> {
    let (ids, weights) = (o.ids.narrow(0, start, count)?, o.weights.narrow(0, start, count)?);
    let hidden = o.hidden.narrow(0, start * USED, count * USED)?;
    let x = Activation::new(&o.x.narrow(0, start, count)?)?;
    moe::experts_glu(&x, &ids, &o.gate, &o.up, Glu::Silu, &hidden)?;
    let hidden = Activation::new(&hidden)?;
    moe::experts_combine(&hidden, &ids, &weights, &o.down, &o.out.narrow(0, start, count)?)
}

fn experts(block_type: BlockType, tokens: usize) -> Case {
    let outputs = |o: &Operands| Ok(vec![Output::of("hidden", &o.hidden)?, Output::of("out", &o.out)?]);
    let together = move |device: &Device| {
        let o = operands(device, block_type, tokens)?;
        feed_forward(&o, 0, tokens)?;
        outputs(&o)
    };
    let one_by_one = move |device: &Device| {
        let o = operands(device, block_type, tokens)?;
        (0..tokens).try_for_each(|t| feed_forward(&o, t, 1))?;
        outputs(&o)
    };
    // The second half rounds results of the first, which may round to the neighbour of what the twin's does.
    let rounded = |bound| if block_type.is_scalar() { 2e-10 } else { bound };
    let bars =
        [(Activations::Int8, rounded(1e-5)), (Activations::Bf16, rounded(4e-4)), (Activations::F32, 1e-10)]
            .map(|(a, bound)| Bar { device: a, reference: a, tolerance: Tolerance::Nmse(bound) });
    Case::new("experts", format!("{block_type}, {tokens} tokens"), Tolerance::Exact, together)
        .with_bars(&bars)
        .equals("one by one", one_by_one)
}
