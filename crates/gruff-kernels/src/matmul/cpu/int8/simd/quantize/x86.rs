//! Rounding of activations, eight blocks at a time.

use std::arch::x86_64::*;

use super::super::super::{BLOCKS, GROUP, Group, LANE_BLOCKS, remainders_portably};
use super::super::lines::transpose8;
use super::super::vector::OneRow;

/// The bits of the least f32 that is not finite.
const INFINITY: i32 = 0x7f80_0000;

/// What rounding 256 values left of them; exactly as the portable definition.
///
/// # Safety
/// AVX2.
#[target_feature(enable = "avx2")]
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
/// AVX2 and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super::super) unsafe fn group(values: &[f32; GROUP], out: &mut Group) -> [f32; BLOCKS] {
    // SAFETY: loads and stores are inside the arrays.
    unsafe {
        let load = |block: usize, i: usize| _mm256_loadu_ps(values.as_ptr().add(32 * block + 8 * i));
        let magnitude = |v: __m256| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fff_ffff));
        // Magnitudes order as integers, NaN above infinity, so one maximum finds both the largest and any fault.
        let mut maxima = [0i32; 8];
        for (lane, block) in LANE_BLOCKS.into_iter().enumerate() {
            let a = _mm256_max_epi32(magnitude(load(block, 0)), magnitude(load(block, 1)));
            let b = _mm256_max_epi32(magnitude(load(block, 2)), magnitude(load(block, 3)));
            let v = _mm256_max_epi32(a, b);
            let v = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0x4e>(v));
            let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0xb1>(v));
            maxima[lane] = _mm_cvtsi128_si32(v);
        }
        let bits = _mm256_loadu_si256(maxima.as_ptr().cast());
        let largest = _mm256_castsi256_ps(bits);
        let faulty = _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(INFINITY - 1)));
        let inverse = _mm256_div_ps(_mm256_set1_ps(127.0), largest);
        // Zeros and subnormals, whose inverse overflows, become zeros; so do faulty blocks.
        let overflow = _mm256_cmp_ps::<_CMP_EQ_OQ>(inverse, _mm256_set1_ps(f32::INFINITY));
        let usable = |v| _mm256_andnot_ps(_mm256_or_ps(overflow, faulty), v);
        let scale = usable(_mm256_div_ps(largest, _mm256_set1_ps(127.0)));
        let scale = _mm256_blendv_ps(scale, _mm256_set1_ps(f32::NAN), faulty);
        let mut inverses = [0f32; 8];
        _mm256_storeu_ps(inverses.as_mut_ptr(), usable(inverse));

        let mut blocks = [_mm256_setzero_si256(); 8];
        for (lane, block) in LANE_BLOCKS.into_iter().enumerate() {
            let usable = inverses[lane] != 0.0;
            let inverse = _mm256_set1_ps(inverses[lane]);
            // A faulty block's values must not be multiplied: infinity times 0 would not convert to 0.
            let round = |i| {
                let v = if usable { load(block, i) } else { _mm256_setzero_ps() };
                _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse))
            };
            let (a, b) = (_mm256_packs_epi32(round(0), round(1)), _mm256_packs_epi32(round(2), round(3)));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            blocks[block] = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
        }
        let quants = transpose8::<OneRow>(blocks);
        let ones = _mm256_set1_epi8(1);
        let mut halves = [_mm256_setzero_si256(); 2];
        for (g, v) in quants.into_iter().enumerate() {
            _mm256_storeu_si256((&raw mut out.quants[g]).cast(), v);
            let fours = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, v), _mm256_set1_epi16(1));
            halves[g / 4] = _mm256_add_epi32(halves[g / 4], fours);
        }
        let whole = _mm256_add_epi32(halves[0], halves[1]);
        _mm256_storeu_ps(out.scales.as_mut_ptr(), scale);
        let store = |sum: __m256i, sums: &mut [f32; 8], offsets: &mut [i32; 8]| {
            _mm256_storeu_ps(sums.as_mut_ptr(), _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sum)));
            let negated = _mm256_sub_epi32(_mm256_setzero_si256(), sum);
            _mm256_storeu_si256(offsets.as_mut_ptr().cast(), negated);
        };
        store(whole, &mut out.whole_sums, &mut out.whole_offsets);
        for half in 0..2 {
            store(halves[half], &mut out.sums[half], &mut out.offsets[half]);
        }
        let mut by_block = [0f32; BLOCKS];
        for (lane, block) in LANE_BLOCKS.into_iter().enumerate() {
            by_block[block] = f32::from_bits(maxima[lane] as u32);
        }
        by_block
    }
}
