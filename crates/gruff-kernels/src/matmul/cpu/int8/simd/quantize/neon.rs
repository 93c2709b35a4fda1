//! Rounding of activations, a block at a time.

use std::arch::aarch64::*;

use super::super::super::{BLOCKS, GROUP, Group, LANES_OF, remainders_portably};
use super::super::each;
use crate::matmul::Q8_BLOCK;

/// The bits of the least f32 that is not finite.
const INFINITY: u32 = 0x7f80_0000;

/// What rounding 256 values left of them; exactly as the portable definition.
///
/// # Safety
/// None that AArch64 does not give.
pub(in super::super::super) unsafe fn remainders(
    values: &[f32; GROUP],
    largest: &[f32; BLOCKS],
) -> [f32; GROUP] {
    remainders_portably(values, largest)
}

/// Rounds 256 values exactly as [`round_block`](crate::matmul::round_block) does each 32; returns the
/// largest magnitudes of the blocks.
///
/// # Safety
/// None that AArch64 does not give.
pub(in super::super::super) unsafe fn group(values: &[f32; GROUP], out: &mut Group) -> [f32; BLOCKS] {
    let mut largest = [0f32; BLOCKS];
    for (block, values) in values.as_chunks::<Q8_BLOCK>().0.iter().enumerate() {
        // SAFETY: always there.
        largest[block] = unsafe { round(values, LANES_OF[block], out) };
    }
    largest
}

/// Rounds a block into its lane of a group.
#[inline(always)]
unsafe fn round(values: &[f32; Q8_BLOCK], lane: usize, out: &mut Group) -> f32 {
    // SAFETY: loads and stores are inside the arrays.
    unsafe {
        let v = each!(|i: 8| vld1q_f32(values.as_ptr().add(4 * i)));
        // Magnitudes order as integers, NaN above infinity, so one maximum finds both the largest and any fault.
        let magnitudes = each!(|i: 8| vreinterpretq_u32_f32(vabsq_f32(v[i])));
        let pairs = each!(|i: 4| vmaxq_u32(magnitudes[i], magnitudes[i + 4]));
        let bits = vmaxvq_u32(vmaxq_u32(vmaxq_u32(pairs[0], pairs[2]), vmaxq_u32(pairs[1], pairs[3])));
        let largest = f32::from_bits(bits);
        let inverse = 127.0 / largest;
        // Zeros and subnormals, whose inverse overflows, become zeros; so do faulty blocks.
        let faulty = bits >= INFINITY;
        let usable = !faulty && inverse.is_finite();
        let scale = match (faulty, usable) {
            (true, _) => f32::NAN,
            (_, true) => largest / 127.0,
            _ => 0.0,
        };
        let mut sums = [0i32; 2];
        if usable {
            let by = vdupq_n_f32(inverse);
            for half in 0..2 {
                let whole = each!(|i: 4| vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(v[4 * half + i], by))));
                let low = vqmovn_s16(vcombine_s16(whole[0], whole[1]));
                let bytes = vqmovn_high_s16(low, vcombine_s16(whole[2], whole[3]));
                sums[half] = i32::from(vaddlvq_s8(bytes));
                let mut quants = [[0i8; 4]; 4];
                vst1q_s8(quants.as_mut_ptr().cast(), bytes);
                for (i, four) in quants.into_iter().enumerate() {
                    out.quants[4 * half + i][lane] = four;
                }
            }
        } else {
            out.quants.iter_mut().for_each(|fours| fours[lane] = [0; 4]);
        }
        out.scales[lane] = scale;
        out.whole_sums[lane] = scale * (sums[0] + sums[1]) as f32;
        out.whole_offsets[lane] = -(sums[0] + sums[1]);
        for (half, sum) in sums.into_iter().enumerate() {
            out.sums[half][lane] = scale * sum as f32;
            out.offsets[half][lane] = -sum;
        }
        largest
    }
}
