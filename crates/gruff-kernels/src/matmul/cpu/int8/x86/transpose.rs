//! Unpacked weights turned from lanes that are blocks to lanes that are rows.

use std::arch::x86_64::*;

use super::super::LANE_BLOCKS;
use super::each;

/// Rows that are turned together: as many as a group has blocks.
pub(super) const OCTET: usize = 8;

/// 256 unpacked weights of a row, in memory.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) quants: [__m256i; 8],
    pub(super) scales: [__m256; 2],
    pub(super) mins: [__m256; 2],
}

/// A block of 32 columns of a tile of R rows: four values of every row, eight times; then scales of the block (or of its
/// first and last half) of every row; then minima.
#[repr(C, align(64))]
pub(super) struct TileBlock<const R: usize> {
    pub(super) quants: [[[u8; 4]; R]; 8],
    pub(super) scales: [[f32; R]; 2],
    pub(super) mins: [[f32; R]; 2],
}

/// Column i of eight vectors of eight lanes.
#[inline(always)]
unsafe fn transpose(v: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: AVX2 is enabled where this is inlined.
    unsafe {
        let low = each!(|i: 4| _mm256_castps_pd(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1])));
        let high = each!(|i: 4| _mm256_castps_pd(_mm256_unpackhi_ps(v[2 * i], v[2 * i + 1])));
        // Columns 0 and 4, 1 and 5, 2 and 6, 3 and 7 of the first four vectors, then of the last four.
        let fours = each!(|i: 8| {
            let (pair, column) = (i / 4 * 2, i % 4);
            let (from, next) =
                if column < 2 { (low[pair], low[pair + 1]) } else { (high[pair], high[pair + 1]) };
            _mm256_castpd_ps(if column % 2 == 0 {
                _mm256_unpacklo_pd(from, next)
            } else {
                _mm256_unpackhi_pd(from, next)
            })
        });
        each!(|i: 8| {
            if i < 4 {
                _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4])
            } else {
                _mm256_permute2f128_ps::<0x31>(fours[i - 4], fours[i])
            }
        })
    }
}

/// Writes a group of eight rows, the `first` ones of a tile, into the group's eight blocks.
///
/// # Safety
/// AVX2; `blocks` points to eight blocks that nobody else uses.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn octet<const R: usize>(
    rows: &[Weights; OCTET],
    [halves, mins]: [bool; 2],
    blocks: *mut TileBlock<R>,
    first: usize,
) {
    assert!(first + OCTET <= R);
    // SAFETY: inside the blocks, as asserted.
    unsafe {
        for g in 0..8 {
            let lanes = transpose(each!(|r: 8| _mm256_castsi256_ps(rows[r].quants[g])));
            for p in 0..8 {
                let to = &raw mut (*blocks.add(LANE_BLOCKS[p])).quants[g][first];
                _mm256_storeu_ps(to.cast(), lanes[p]);
            }
        }
        for half in 0..=usize::from(halves) {
            let lanes = transpose(each!(|r: 8| rows[r].scales[half]));
            for p in 0..8 {
                let to = &raw mut (*blocks.add(LANE_BLOCKS[p])).scales[half][first];
                _mm256_storeu_ps(to, lanes[p]);
            }
            if mins {
                let lanes = transpose(each!(|r: 8| rows[r].mins[half]));
                for p in 0..8 {
                    let to = &raw mut (*blocks.add(LANE_BLOCKS[p])).mins[half][first];
                    _mm256_storeu_ps(to, lanes[p]);
                }
            }
        }
    }
}
