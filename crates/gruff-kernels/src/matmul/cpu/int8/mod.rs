//! Integer kernels: activations rounded to int8 in blocks of 32, weights unpacked to bytes.
//!
//! A row of either is a sequence of [`Group`]s of 256 values: eight blocks, interleaved so that one vector
//! register holds four values of each. A row whose blocks do not fill the last group is completed with blocks of
//! scale 0.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use gruff_blocks::BlockType;

use super::kernel::Kernel;
use crate::Isa;

/// Values of a group.
pub(super) const GROUP: usize = 256;

/// The block of a group that each lane of a vector belongs to: the order in which transposing registers is
/// cheapest.
pub(super) const LANE_BLOCKS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// 256 activations of a row.
#[repr(C, align(64))]
pub(super) struct Group {
    /// `quants[g][p]` are values `4 g .. 4 g + 4` of the block of lane p.
    quants: [[[i8; 4]; 8]; 8],
    /// Scales, by lane.
    scales: [f32; 8],
    /// What a minimum is multiplied by: scale times the sum of the quants, and of their first and last 16.
    whole_sums: [f32; 8],
    sums: [[f32; 8]; 2],
    /// What an offset of the weights is multiplied by: the negated sums of the quants.
    whole_offsets: [i32; 8],
    offsets: [[i32; 8]; 2],
}

/// Groups that hold `cols` values.
pub(super) fn groups(cols: usize) -> usize {
    cols.div_ceil(GROUP)
}

/// The kernel for a block type, where the instruction set has one.
pub(super) fn kernel(isa: Isa, block_type: BlockType) -> Option<Kernel> {
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Scalar {
        return x86::product::kernel(isa, block_type);
    }
    let _ = isa;
    portable::kernel(block_type)
}

/// Rounds a row of activations into its groups.
///
/// # Panics
/// Unless `out` holds [`groups`]`(row.len())` groups.
pub(super) fn quantize(isa: Isa, row: &[f32], out: &mut [Group]) {
    assert_eq!(out.len(), groups(row.len()));
    let (whole, rest) = row.as_chunks::<GROUP>();
    for (values, group) in whole.iter().zip(out.iter_mut()) {
        quantize_group(isa, values, group);
    }
    if let (false, Some(group)) = (rest.is_empty(), out.last_mut()) {
        let mut values = [0.0; GROUP];
        values[..rest.len()].copy_from_slice(rest);
        quantize_group(isa, &values, group);
    }
}

fn quantize_group(isa: Isa, values: &[f32; GROUP], out: &mut Group) {
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Scalar {
        // SAFETY: every x86 instruction set but the scalar one includes AVX2, FMA and F16C, and a device is only
        // made for one that the machine has.
        unsafe { x86::quantize::group(values, out) };
        return;
    }
    let _ = isa;
    quantize_group_portably(values, out);
}

/// The definition of a group, by [`round_block`](super::super::round_block).
fn quantize_group_portably(values: &[f32; GROUP], out: &mut Group) {
    let (blocks, _) = values.as_chunks::<32>();
    for (lane, block) in LANE_BLOCKS.into_iter().enumerate() {
        let mut quants = [0; 32];
        let scale = super::super::round_block(&blocks[block], &mut quants);
        out.scales[lane] = scale;
        for (g, four) in quants.as_chunks::<4>().0.iter().enumerate() {
            out.quants[g][lane] = *four;
        }
        let sums = [0, 1].map(|half| quants[16 * half..][..16].iter().map(|q| i32::from(*q)).sum::<i32>());
        out.whole_sums[lane] = scale * (sums[0] + sums[1]) as f32;
        out.whole_offsets[lane] = -(sums[0] + sums[1]);
        for (half, sum) in sums.into_iter().enumerate() {
            out.sums[half][lane] = scale * sum as f32;
            out.offsets[half][lane] = -sum;
        }
    }
}
