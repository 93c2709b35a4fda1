//! Integer kernels: activations rounded to int8 in blocks of 32, weights unpacked to bytes.
//!
//! A row of either is a sequence of [`Group`]s of 256 values: eight blocks, interleaved so that one vector
//! register holds four values of each. A row whose blocks do not fill the last group is completed with blocks of
//! scale 0. Behind the groups of all rows lie as many others: the second terms of those that have loud blocks.

mod portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod simd;

use gruff_blocks::BlockType;

use super::super::quantize::{Q8_BLOCK, Q8_GROUP, is_loud, loud_bar, magnitude, remainder, round_block};
use super::kernel::Kernel;
use crate::Isa;

/// Values of a group.
pub(super) const GROUP: usize = Q8_GROUP;

/// Columns up to which weights are unpacked in registers, for a few rows at a time, instead of in tiles, whose many rows
/// memory delivers slower.
pub(super) const FEW: usize = 8;

/// Blocks of a group.
const BLOCKS: usize = GROUP / Q8_BLOCK;

/// The block of a group that each lane of a vector belongs to: the order in which transposing registers is
/// cheapest.
pub(super) const LANE_BLOCKS: [usize; BLOCKS] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The lane of each block of a group.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const LANES_OF: [usize; BLOCKS] = [0, 4, 1, 5, 2, 6, 3, 7];

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
    /// The lanes whose blocks are loud, a bit each.
    loud: u32,
    /// How many groups further its second term lies, if any is.
    second: u32,
    /// Of a row's first group: how many cache lines further the row's cohort begins, if it has one, and its place there.
    cohort: u32,
    place: u32,
}

/// Groups that hold `cols` values.
pub(super) fn groups(cols: usize) -> usize {
    cols.div_ceil(GROUP)
}

impl Group {
    /// Whether a block has a second term.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    fn is_loud(&self) -> bool {
        self.loud != 0
    }

    /// The second term of a group that has one.
    ///
    /// # Safety
    /// `group` points to a group among those that [`quantize`] wrote.
    #[inline(always)]
    unsafe fn second(group: *const Self) -> *const Self {
        // SAFETY: promised by the caller.
        unsafe { group.add((*group).second as usize) }
    }
}

/// Bytes of a row of `cols` activations, second terms apart.
pub(super) fn row_bytes(cols: usize) -> usize {
    groups(cols) * size_of::<Group>()
}

/// Rows of activations that the kernels for many columns of an instruction set read side by side, where they do.
pub(super) fn cohort(isa: Isa) -> Option<usize> {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    match isa {
        Isa::AmxInt8 | Isa::NeonI8mm => return Some(simd::cohort::COHORT),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => return Some(simd::fours::COHORT),
        _ => {}
    }
    let _ = isa;
    None
}

/// Bytes of a cohort of `count` rows of `cols` activations.
pub(super) fn cohort_bytes(isa: Isa, count: usize, cols: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512Vnni {
        return simd::fours::bytes(count, groups(cols));
    }
    let _ = (isa, count);
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    return simd::cohort::blocks(groups(cols)) * size_of::<simd::cohort::CohortBlock>();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    0
}

/// Parts of a cohort of `count` rows that several threads can form, by [`form_part`], before [`finish_cohort`] does the rest.
pub(super) fn cohort_parts(isa: Isa, count: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512Vnni {
        return count.div_ceil(simd::fours::FOUR);
    }
    let _ = (isa, count);
    0
}

/// Forms one of the [`cohort_parts`] of a cohort of `count` rows.
///
/// # Safety
/// As for [`finish_cohort`], but that others may read the rows and form other parts meanwhile.
pub(super) unsafe fn form_part(
    isa: Isa,
    rows: *const Group,
    count: usize,
    cols: usize,
    out: *mut u8,
    part: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512Vnni {
        // SAFETY: promised by the caller; the instruction set includes AVX2.
        return unsafe { simd::fours::form_four(rows, count, groups(cols), out, part) };
    }
    let _ = (isa, rows, count, cols, out, part);
}

/// Puts `count` rows, at most as many as a cohort has, side by side, what [`form_part`] did apart.
///
/// # Safety
/// The instruction set has cohorts, whose parts are formed; `rows` points to as many rows that [`quantize`] wrote, `out` to
/// [`cohort_bytes`] behind them in the same buffer, aligned for a [`Group`]; nobody else reads or writes either
/// meanwhile.
pub(super) unsafe fn finish_cohort(isa: Isa, rows: *mut Group, count: usize, cols: usize, out: *mut u8) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: promised by the caller; instruction sets with cohorts include AVX2.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => simd::fours::finish(rows, count, groups(cols), out),
            _ => simd::cohort::form(rows, count, groups(cols), out.cast()),
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (isa, rows, count, cols, out);
}

/// The kernel for a block type, where the instruction set has one.
pub(super) fn kernel(isa: Isa, block_type: BlockType) -> Option<Kernel> {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if isa != Isa::Scalar {
        return simd::product::kernel(isa, block_type);
    }
    let _ = isa;
    portable::kernel(block_type)
}

/// Rounds a row of activations into its groups and, `second` groups further, the second terms of those that have loud
/// blocks; the other blocks are zeros there.
///
/// # Safety
/// `out` and `out` plus `second` point to [`row_bytes`]`(row.len())` bytes each, aligned for a [`Group`], that nobody
/// else reads or writes meanwhile.
pub(super) unsafe fn quantize(isa: Isa, row: &[f32], out: *mut Group, second: u32) {
    let bar = loud_bar(row);
    for (index, values) in row.chunks(GROUP).enumerate() {
        // SAFETY: promised by the caller; any bytes are a group.
        let (first, rest) = unsafe { (&mut *out.add(index), &mut *out.add(index + second as usize)) };
        let mut padded = [0.0; GROUP];
        let whole = values.as_array().unwrap_or_else(|| {
            padded[..values.len()].copy_from_slice(values);
            &padded
        });
        let largest = quantize_group(isa, whole, first);
        let is_loud = largest.map(|largest| is_loud(largest, bar));
        first.second = second;
        (first.cohort, first.place) = (0, 0);
        first.loud = (0..BLOCKS).map(|lane| u32::from(is_loud[LANE_BLOCKS[lane]]) << lane).sum();
        if first.loud != 0 {
            let mut remainders = remainders(isa, whole, &largest);
            for (block, is_loud) in remainders.as_chunks_mut::<Q8_BLOCK>().0.iter_mut().zip(is_loud) {
                if !is_loud {
                    block.fill(0.0);
                }
            }
            quantize_group(isa, &remainders, rest);
        }
    }
}

/// Rounds a group; returns the largest magnitudes of its blocks.
fn quantize_group(isa: Isa, values: &[f32; GROUP], out: &mut Group) -> [f32; BLOCKS] {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if isa != Isa::Scalar {
        // SAFETY: every x86 instruction set but the scalar one includes AVX2, FMA and F16C, and a device is only
        // made for one that the machine has.
        return unsafe { simd::quantize::group(values, out) };
    }
    let _ = isa;
    quantize_group_portably(values, out)
}

/// What rounding left of a group.
fn remainders(isa: Isa, values: &[f32; GROUP], largest: &[f32; BLOCKS]) -> [f32; GROUP] {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if isa != Isa::Scalar {
        // SAFETY: as above.
        return unsafe { simd::quantize::remainders(values, largest) };
    }
    let _ = isa;
    remainders_portably(values, largest)
}

#[inline(always)]
fn remainders_portably(values: &[f32; GROUP], largest: &[f32; BLOCKS]) -> [f32; GROUP] {
    let mut out = [0.0; GROUP];
    let blocks = values.as_chunks::<Q8_BLOCK>().0.iter().zip(out.as_chunks_mut::<Q8_BLOCK>().0);
    for ((values, out), largest) in blocks.zip(largest) {
        remainder(values, *largest, out);
    }
    out
}

/// The definition of a group, by [`round_block`].
fn quantize_group_portably(values: &[f32; GROUP], out: &mut Group) -> [f32; BLOCKS] {
    let (blocks, _) = values.as_chunks::<Q8_BLOCK>();
    for (lane, block) in LANE_BLOCKS.into_iter().enumerate() {
        let mut quants = [0; Q8_BLOCK];
        let scale = round_block(&blocks[block], &mut quants);
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
    std::array::from_fn(|block| magnitude(&blocks[block]))
}
