//! Products with packed weights, and lookups in packed tables.

use gruff_blocks::{BlockType, synthetic};

use super::data::gaps;
use super::{Bar, Case, Output, Tolerance, Values};
use crate::elementwise;
use crate::matmul::{self, Glu, Projection};
use crate::{Activation, Activations, Device, PackedTensor, Result, Tensor, embedding};

/// Rows of weights and of activations: odd ones, on both sides of every tile.
const SHAPES: [(usize, usize); 6] = [(7, 1), (5, 2), (13, 5), (33, 8), (45, 13), (9, 67)];

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for block_type in BlockType::ALL.iter().copied() {
        for cols in columns(block_type) {
            for (rows, tokens) in SHAPES {
                cases.push(linear(block_type, [rows, cols, tokens]));
            }
        }
        cases.push(fused(block_type, [21, whole_groups(block_type), 3]));
        cases.push(embed(block_type));
    }
    cases.push(linear(BlockType::Q4_1, [70, 2592, 200]));
    cases.push(linear(BlockType::Q6_K, [129, 2560, 1]));
    // Enough rows for the ways to cut the work that large matrices have on cards: a tile of rows for each warp, warps that share
    // columns, large tiles.
    for (block_type, shape) in [
        (BlockType::Q4_K, [33_800, 256, 3]),
        (BlockType::Q4_K, [10_608, 256, 20]),
        (BlockType::Q8_0, [10_565, 288, 40]),
        (BlockType::Q4_K, [6_500, 256, 130]),
        (BlockType::Q8_0, [1_000, 288, 200]),
        (BlockType::Q6_K, [1_000, 512, 130]),
        // Plain floats: each tile that `floats.rs` knows, on cards of few multiprocessors and of many; few columns side by side.
        (BlockType::F32, [1_100, 264, 200]),
        (BlockType::F16, [1_100, 264, 200]),
        (BlockType::BF16, [2_100, 128, 64]),
        (BlockType::F32, [1_000, 520, 40]),
        (BlockType::F16, [1_000, 520, 20]),
        (BlockType::F32, [24, 1_544, 40]),
        (BlockType::BF16, [24, 1_544, 40]),
        (BlockType::F16, [24, 1_544, 9]),
    ] {
        cases.push(linear(block_type, shape));
    }
    // Groups of 256 values that end within a block's share of a lane, and rows that many warps share by groups.
    for (block_type, shape) in [
        (BlockType::Q8_0, [45, 224, 13]),
        (BlockType::MXFP4, [33, 480, 5]),
        (BlockType::Q5_0, [13, 192, 40]),
        (BlockType::Q4_K, [340, 2_048, 20]),
        (BlockType::Q8_0, [290, 1_504, 40]),
        (BlockType::Q6_K, [72, 1_280, 60]),
    ] {
        cases.push(linear(block_type, shape));
    }
    // Views that begin at a strip of eight rows, and tiles of several matrices, of single columns and of shared groups.
    cases.push(fused(BlockType::Q4_K, [24, 1_024, 2]));
    cases.push(fused(BlockType::Q4_K, [24, 1_280, 13]));
    cases.push(fused(BlockType::Q8_0, [40, 1_120, 33]));
    for (block_type, shape) in [
        (BlockType::Q4_K, [256, 768, 3]),
        (BlockType::Q6_K, [256, 768, 40]),
        (BlockType::Q8_0, [256, 768, 130]),
        (BlockType::Q4_K, [1_024, 1_280, 20]),
        (BlockType::F16, [256, 768, 40]),
        (BlockType::F32, [256, 768, 130]),
    ] {
        cases.push(feed_forward(block_type, shape));
    }
    cases
}

/// Widths: whole groups of the kernels, parts of them, and more than one tile of them.
fn columns(block_type: BlockType) -> Vec<usize> {
    let all = [32, 64, 96, 256, 512, 576, 896, 2304];
    let odd = [1, 7, 100, 1031];
    let whole = |cols: &usize| cols.is_multiple_of(block_type.values());
    if block_type.is_scalar() { odd.to_vec() } else { all.into_iter().filter(whole).collect() }
}

/// Held to the twin of the same rounding, and exact activations to the f64 reference; so are plain floats and integers, which
/// nobody rounds. The twin in bfloat16 does not round weights, whose scales and minima cancel each other in some types.
fn bars(block_type: BlockType) -> [Bar; 3] {
    let bf16 = if block_type.is_scalar() { 1e-10 } else { 2e-4 };
    [(Activations::Int8, 1e-10), (Activations::Bf16, bf16), (Activations::F32, 1e-10)].map(|(a, bound)| Bar {
        device: a,
        reference: a,
        tolerance: Tolerance::Nmse(bound),
    })
}

fn weight(device: &Device, block_type: BlockType, rows: usize, cols: usize) -> Result<PackedTensor> {
    let blocks = rows * cols / block_type.values();
    let packed = synthetic::random_blocks(block_type, blocks, (rows * cols) as u64);
    PackedTensor::from_bytes(device, &packed, block_type, [1, rows, cols])
}

/// Normal values; in some of the rows one value stands far above the others, so that its block is loud.
fn activations(values: &mut Values, tokens: usize, cols: usize) -> Vec<f32> {
    let mut x = values.normal(tokens * cols, 1.0);
    for row in x.chunks_exact_mut(cols) {
        if values.below(2) == 1 {
            row[values.below(cols)] = 40.0;
        }
    }
    x
}

fn linear(block_type: BlockType, [rows, cols, tokens]: [usize; 3]) -> Case {
    let label = format!("{block_type} [{rows}, {cols}] x {tokens}");
    let operands = move |device: &Device| -> Result<(Tensor, PackedTensor, Tensor, Tensor)> {
        let mut values = Values::new((rows + cols + tokens) as u64);
        let x = gaps(device, &[tokens, cols])?;
        x.write_f32(&activations(&mut values, tokens, cols))?;
        let bias = values.tensor(device, &[rows], 1.0)?;
        Ok((x, weight(device, block_type, rows, cols)?, bias, gaps(device, &[tokens, rows])?))
    };
    let together = move |device: &Device| {
        let (x, weight, bias, out) = operands(device)?;
        matmul::linear(&Activation::new(&x)?, &weight, Some(&bias), &out)?;
        Ok(vec![Output::of("out", &out)?])
    };
    // Of large ones the first row alone and the others together.
    let (way, parts) =
        if rows >= 1_000 { ("in parts", vec![1, tokens - 1]) } else { ("one by one", vec![1; tokens]) };
    let in_parts = move |device: &Device| {
        let (x, weight, bias, out) = operands(device)?;
        let mut first = 0;
        for count in &parts {
            let x = Activation::new(&x.narrow(0, first, *count)?)?;
            matmul::linear(&x, &weight, Some(&bias), &out.narrow(0, first, *count)?)?;
            first += count;
        }
        Ok(vec![Output::of("out", &out)?])
    };
    Case::new("linear", label, Tolerance::Exact, together).with_bars(&bars(block_type)).equals(way, in_parts)
}

/// 256 values, or the block's.
fn whole_groups(block_type: BlockType) -> usize {
    block_type.values() * 256_usize.div_ceil(block_type.values())
}

fn fused(block_type: BlockType, [rows, cols, tokens]: [usize; 3]) -> Case {
    let operands = move |device: &Device| -> Result<(Activation, [PackedTensor; 2], [Tensor; 4])> {
        let mut values = Values::new(u64::from(block_type.id()));
        let x = device.tensor_f32(&activations(&mut values, tokens, cols), &[tokens, cols])?;
        let x = Activation::new(&x)?;
        let both = weight(device, block_type, 2 * rows, cols)?;
        let weights = [both.narrow_rows(0, rows)?, both.narrow_rows(rows, rows)?.with_scale(&[0.5])?];
        let out = || gaps(device, &[tokens, rows]);
        let residual = values.strided(device, &[tokens, rows], 1.0)?;
        Ok((x, weights, [out()?, out()?, out()?, residual]))
    };
    let outputs = |[a, b, c, d]: &[Tensor; 4]| {
        [("first", a), ("second", b), ("glu", c), ("residual", d)]
            .into_iter()
            .map(|(name, tensor)| Output::of(name, tensor))
            .collect::<Result<Vec<_>>>()
    };
    let fused = move |device: &Device| {
        let (x, [gate, up], out) = operands(device)?;
        matmul::linear_many(
            &x,
            &[
                Projection { weight: &gate, bias: None, out: &out[0] },
                Projection { weight: &up, bias: None, out: &out[1] },
            ],
        )?;
        matmul::linear_glu(&x, &gate, &up, Glu::Silu, &out[2])?;
        matmul::linear_add(&x, &up, &out[3])?;
        outputs(&out)
    };
    let plain = move |device: &Device| {
        let (x, [gate, up], out) = operands(device)?;
        matmul::linear(&x, &gate, None, &out[0])?;
        matmul::linear(&x, &up, None, &out[1])?;
        elementwise::glu(&out[0], &out[1], Glu::Silu, &out[2])?;
        elementwise::add(&out[3], &out[1])?;
        outputs(&out)
    };
    Case::new("linear fused", format!("{block_type} [{rows}, {cols}] x {tokens}"), Tolerance::Exact, fused)
        .with_bars(&bars(block_type))
        .equals("unfused", plain)
}

/// A gated unit and the product behind it, which may find its input in another form than the unit's result has.
fn feed_forward(block_type: BlockType, [cols, hidden_cols, tokens]: [usize; 3]) -> Case {
    let rows = 24;
    let by = move |apart: bool| {
        move |device: &Device| {
            let mut values = Values::new(tokens as u64);
            let x = device.tensor_f32(&activations(&mut values, tokens, cols), &[tokens, cols])?;
            let both = weight(device, block_type, 2 * hidden_cols, cols)?;
            let [gate, up] =
                [0, hidden_cols].map(|first| both.narrow_rows(first, hidden_cols)?.with_scale(&[0.01]));
            let down = weight(device, block_type, rows, hidden_cols)?;
            let [hidden, out] = [gaps(device, &[tokens, hidden_cols])?, gaps(device, &[tokens, rows])?];
            let x = Activation::new(&x)?;
            let mut activation = matmul::linear_glu(&x, &gate?, &up?, Glu::GeluTanh, &hidden)?;
            if apart {
                activation = Activation::new(&hidden)?;
            }
            matmul::linear(&activation, &down, None, &out)?;
            Ok(vec![Output::of("out", &out)?])
        }
    };
    // The second product rounds results of the first, which may round to the neighbour of what the twin's does.
    let rounded = |bound| if block_type.is_scalar() { 1e-9 } else { bound };
    let bars =
        [(Activations::Int8, rounded(1e-4)), (Activations::Bf16, rounded(1e-3)), (Activations::F32, 1e-9)]
            .map(|(a, bound)| Bar { device: a, reference: a, tolerance: Tolerance::Nmse(bound) });
    Case::new(
        "linear behind glu",
        format!("{block_type} [{hidden_cols}, {cols}] x {tokens}"),
        Tolerance::Exact,
        by(false),
    )
    .with_bars(&bars)
    .equals("apart", by(true))
}

fn embed(block_type: BlockType) -> Case {
    let cols = block_type.values() * 3;
    Case::new("embed", format!("{block_type}"), Tolerance::Exact, move |device| {
        let table = weight(device, block_type, 11, cols)?;
        let out = gaps(device, &[4, cols])?;
        embedding::embed(&[3, 0, 10, 3], &table, 1.5, &out)?;
        Ok(vec![Output::of("out", &out)?])
    })
}
