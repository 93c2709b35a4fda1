//! The family on the CPU.
//!
//! The delta rule is worked through chunk by chunk on the grid of positions ([`crate::delta_net`] has the
//! algebra): a decode step is one row of a chunk, a prefill many, and every value is the same sum in the same
//! order either way. Pieces of work are a sequence and a key head with the value heads that read it.

mod chunk;
mod conv;
mod piece;

use std::ops::Range;

use super::{DeltaInputs, DeltaNetOps};
use crate::cpu::CpuDevice;
use crate::cpu::ahead::ask_for;
use crate::cpu::scratch::with_scratch;
use crate::cpu::simd::{Simd, sigmoid, softplus};
use crate::cpu::view::{Input, Output, Shared};
use crate::elementwise::cpu::map::{Map, map};
use crate::{Result, StateLayer, Step, Tensor};

use chunk::advance;
use conv::{Taps, convolve_token, transpose_taps};
use piece::{Operands, Piece, Rings, Sizes};

/// Channels of the convolution that one piece takes.
const CHANNELS: usize = 256;

/// `a_neg * softplus(a + dt_bias)`.
#[derive(Clone, Copy)]
struct Decay;

impl Map<3> for Decay {
    const COST: usize = 8;

    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, [a, dt_bias, a_neg]: [S::F32; 3]) -> S::F32 {
        s.mul(a_neg, softplus(s, s.add(a, dt_bias)))
    }
}

/// `sigmoid(b)`.
#[derive(Clone, Copy)]
struct Beta;

impl Map<1> for Beta {
    const COST: usize = 4;

    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, [b]: [S::F32; 1]) -> S::F32 {
        sigmoid(s, b)
    }
}

/// Tokens from which a piece turns its taps in memory, once, instead of in registers for each token.
const WORTH_TURNING: usize = 3;

/// What the convolution reads and writes.
struct Conv<'a> {
    step: &'a Step,
    x: Input<'a, f32>,
    /// Inputs of a slot, `[slots, rows, channels]`, and their number a slot.
    ring: Output<'a, f32>,
    ring_rows: usize,
    out: Output<'a, f32>,
}

impl Conv<'_> {
    /// Asks for what the step's sequences have of some channels in their rings, where that is not much.
    fn ask_for_ring(&self, columns: Range<usize>) {
        if let [sequence] = self.step.sequences() {
            for row in 0..self.ring_rows {
                // SAFETY: only asked for: nothing is read.
                let row = unsafe { self.ring.part(sequence.slot * self.ring_rows + row, columns.clone()) };
                ask_for(row);
            }
        }
    }
}

impl DeltaNetOps for CpuDevice {
    fn causal_conv(
        &self,
        step: &Step,
        x: &Tensor,
        weight: &Tensor,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()> {
        let (channels, taps) = (layer.shape().conv_channels, layer.shape().conv_kernel);
        let weight = weight.reshape(&[1, channels * taps])?;
        // SAFETY: x was checked to be disjoint from the output; the state's memory is its own.
        let (x, weight) = unsafe { (Input::<f32>::of(x), Input::<f32>::of(&weight)) };
        let weight = weight.row(0);
        let (ring, out) = (Output::of(layer.conv()), Output::of(out));
        let conv = Conv { step, x, ring, ring_rows: layer.shape().conv_rows(), out };
        // Inputs and outputs of a token, and as much again for the SiLU.
        let cost = (step.len() + 1) * CHANNELS * 2 * taps;
        self.share(channels.div_ceil(CHANNELS), cost, |blocks| {
            let columns_of = |block: usize| block * CHANNELS..((block + 1) * CHANNELS).min(channels);
            let end = blocks.end;
            for block in blocks {
                let columns = columns_of(block);
                let of_block = &weight[columns.start * taps..columns.end * taps];
                if block + 1 < end {
                    let next = columns_of(block + 1);
                    ask_for(&weight[next.start * taps..next.end * taps]);
                    conv.ask_for_ring(next);
                }
                with_scratch((taps + 1) * columns.len(), |scratch| {
                    let (turned, zeros) = scratch.split_at_mut(of_block.len());
                    zeros.fill(0.0);
                    if step.len() < WORTH_TURNING {
                        return self.convolve(&conv, columns, Taps::Stored(of_block), taps, zeros);
                    }
                    transpose_taps(self.isa(), of_block, taps, turned);
                    self.convolve(&conv, columns, Taps::Turned(turned), taps, zeros);
                });
            }
        });
        Ok(())
    }

    fn delta_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        dt_bias: &Tensor,
        a_neg: &Tensor,
        decay: &Tensor,
        beta: &Tensor,
    ) -> Result<()> {
        let [a, b, dt_bias, a_neg] = [a, b, dt_bias, a_neg].map(Shared::<f32>::of);
        let (decay, beta) = (Output::<f32>::of(decay), Output::<f32>::of(beta));
        let cost = (<Decay as Map<3>>::COST + <Beta as Map<1>>::COST) * decay.width();
        self.share(decay.rows(), cost, |rows| {
            for row in rows {
                // SAFETY: within the operation, only this piece touches this row of a, b, decay and beta,
                // through cells; dt_bias and a_neg are only read, by all pieces.
                unsafe {
                    let inputs = [a.cells(row), dt_bias.cells(0), a_neg.cells(0)];
                    map(self.isa(), Decay, inputs, decay.cells(row));
                    map(self.isa(), Beta, [b.cells(row)], beta.cells(row));
                }
            }
        });
        Ok(())
    }

    fn gated_delta(&self, step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()> {
        let shape = *layer.shape();
        let sizes = Sizes::of(&shape);
        let (matrices, heads) = (layer.matrix().shape()[0], shape.value_heads);
        let matrix = layer.matrix().reshape(&[matrices, heads, shape.key_dim * shape.value_dim])?;
        // SAFETY: all inputs were checked to be disjoint from the output; the state's memory is its own, and
        // the ring of keys is written only when all pieces are done.
        let operands = unsafe {
            Operands {
                queries: Input::of(inputs.queries),
                keys: Input::of(inputs.keys),
                values: Input::of(inputs.values),
                decay: Input::of(inputs.decay),
                beta: Input::of(inputs.beta),
                kept_keys: Input::of(layer.keys()),
            }
        };
        let rings = Rings {
            matrix: Output::of(&matrix),
            updates: Output::of(layer.updates()),
            decays: Output::of(layer.decays()),
            out: Output::of(out),
        };
        // Value heads of a key head share its products, unless there are threads for each of them.
        let groups = heads / shape.key_heads;
        let shared = step.sequences().len() * shape.key_heads >= 2 * self.pool().threads();
        let parts = if shared { 1 } else { groups };
        let pieces = step.sequences().len() * shape.key_heads * parts;
        let tokens = step.len().div_ceil(step.sequences().len());
        let cost = tokens * shape.key_dim * shape.value_dim * (groups / parts);
        self.share(pieces, cost, |range| {
            let end = range.end;
            for piece in range {
                let (rest, part) = (piece / parts, piece % parts);
                let (sequence, key_head) = (rest / shape.key_heads, rest % shape.key_heads);
                let next = (piece + 1) / parts;
                let same = piece + 1 < end && next / shape.key_heads == sequence;
                let piece = Piece {
                    sizes: &sizes,
                    operands: &operands,
                    rings: &rings,
                    sequence: &step.sequences()[sequence],
                    first_token: step.starts()[sequence],
                    key_head,
                    groups: part * (groups / parts)..(part + 1) * (groups / parts),
                    following: same.then_some(next % shape.key_heads),
                };
                with_scratch(sizes.scratch(), |scratch| {
                    advance(self.isa(), &piece, scratch);
                });
            }
        });
        self.keep_keys(step, inputs.keys, layer);
        Ok(())
    }
}

impl CpuDevice {
    /// The convolution of some channels.
    fn convolve(&self, conv: &Conv, columns: Range<usize>, weight: Taps, taps: usize, zeros: &[f32]) {
        let Conv { step, x, ring, ring_rows, out } = conv;
        let mut rows: Vec<&[f32]> = Vec::with_capacity(taps);
        for (sequence, start) in step.sequences().iter().zip(step.starts()) {
            let ring_row = |position: usize| sequence.slot * ring_rows + position % ring_rows;
            for i in 0..sequence.len {
                rows.clear();
                rows.extend((0..taps).map(|tap| {
                    // Position + 1 of the tap's input, so that the ones before the start are not negative.
                    match (sequence.past + i + tap + 2).checked_sub(taps) {
                        None | Some(0) => zeros,
                        Some(next) if next > sequence.past => {
                            &x.row(start + next - 1 - sequence.past)[columns.clone()]
                        }
                        // SAFETY: within the operation, only this piece touches these channels of the ring,
                        // and it writes them when the sequence's outputs are done.
                        Some(next) => unsafe { &*ring.part(ring_row(next - 1), columns.clone()) },
                    }
                }));
                // SAFETY: within the operation, only this piece touches these channels of the output.
                let out = unsafe { out.part(start + i, columns.clone()) };
                convolve_token(self.isa(), weight, &rows, out);
            }
            rows.clear();
            for i in sequence.len.saturating_sub(*ring_rows)..sequence.len {
                // SAFETY: as above; the rows borrowed for the outputs are gone.
                let row = unsafe { ring.part(ring_row(sequence.past + i), columns.clone()) };
                row.copy_from_slice(&x.row(start + i)[columns.clone()]);
            }
        }
    }

    /// The step's keys into the rings: once for all value heads, when none reads older keys any more.
    fn keep_keys(&self, step: &Step, keys: &Tensor, layer: &StateLayer) {
        let (rows, heads) = (layer.shape().rows(), layer.shape().key_heads);
        // SAFETY: the state's memory is its own.
        let keys = unsafe { Input::<f32>::of(keys) };
        let kept = Output::<f32>::of(layer.keys());
        let width = heads * keys.width();
        let cost = step.len().div_ceil(step.sequences().len()).min(rows) * width;
        self.share(step.sequences().len(), cost, |range| {
            for index in range {
                let (sequence, start) = (&step.sequences()[index], step.starts()[index]);
                for i in sequence.len.saturating_sub(rows)..sequence.len {
                    for head in 0..heads {
                        let ring = (sequence.slot * heads + head) * rows + (sequence.past + i) % rows;
                        // SAFETY: a slot belongs to one sequence, and that to one piece.
                        let row = unsafe { kept.row(ring) };
                        row.copy_from_slice(keys.row((start + i) * heads + head));
                    }
                }
            }
        });
    }
}
