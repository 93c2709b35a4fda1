//! The integer kernels in portable Rust: the same integers and the same f32 operations in the same order, so the
//! same bits as those with SIMD.

use gruff_blocks::iq::{IQ4_NL, IQ4_NL_VALUES, IQ4_XS};
use gruff_blocks::k_quants::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, q3_k_scales, scale_min_k4};
use gruff_blocks::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use gruff_blocks::microscaling::{E2M1_DOUBLED, MXFP4, e8m0_half};
use gruff_blocks::{Block, BlockType};

use super::super::kernel::{COLUMNS, Kernel, Panel};
use super::{Group, LANE_BLOCKS};
use crate::cpu::scratch::Scratch;

/// 32 values of a row.
struct Unpacked {
    quants: [i32; 32],
    /// Of the first and the last 16 values, or of all.
    scales: Parts,
    /// What is added: `value = scale * quant + min`.
    mins: Option<Parts>,
}

/// One number for 32 values, or one for each 16.
enum Parts {
    Whole(f32),
    Halves([f32; 2]),
}

/// A block type, as the portable kernel sees it: its blocks of 32 values.
trait Unpack: Block {
    /// The block of 32 values at `index`.
    fn block(&self, index: usize) -> Unpacked;
}

/// The kernel of a block type.
pub(super) fn kernel(block_type: BlockType) -> Option<Kernel> {
    macro_rules! by_type {
        ($($name:ident)*) => {
            match block_type {
                $(BlockType::$name => Some(Kernel { name: "scalar int8", compute: compute::<$name>, rereads: true, together: 4, columns: COLUMNS }),)*
                _ => None,
            }
        };
    }
    by_type!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4)
}

/// # Safety
/// As for [`Kernel::compute`].
unsafe fn compute<B: Unpack>(panel: &Panel, columns: &[*const u8], out: &mut [f32], _: &mut Scratch) {
    for (c, column) in columns.iter().enumerate() {
        for row in 0..panel.rows {
            // SAFETY: promised by the caller.
            let packed = unsafe {
                std::slice::from_raw_parts(panel.first.add(row * panel.row_bytes), panel.row_bytes)
            };
            // SAFETY: as above.
            out[c * panel.rows + row] = unsafe { dot(bytemuck::cast_slice::<u8, B>(packed), column.cast()) };
        }
    }
}

/// # Safety
/// `x` points to the groups of a row of activations of the same length.
unsafe fn dot<B: Unpack>(row: &[B], x: *const Group) -> f32 {
    let blocks_of = B::TYPE.values() / 32;
    let mut acc = [[0f32; 8]; 2];
    let mut loud = false;
    for index in 0..row.len() * blocks_of {
        // SAFETY: promised by the caller.
        let (at, lane) = (unsafe { x.add(index / 8) }, lane_of(index % 8));
        // SAFETY: as above.
        let group = unsafe { &*at };
        let weights = row[index / blocks_of].block(index % blocks_of);
        add(&mut acc[0][lane], &weights, group, lane);
        if group.loud >> lane & 1 != 0 {
            loud = true;
            // SAFETY: promised by the caller.
            add(&mut acc[1][lane], &weights, unsafe { &*Group::second(at) }, lane);
        }
    }
    let [first, second] = acc.map(|[a, b, c, d, e, f, g, h]| ((a + e) + (c + g)) + ((b + f) + (d + h)));
    if loud { first + second } else { first }
}

fn lane_of(block: usize) -> usize {
    LANE_BLOCKS.iter().position(|b| *b == block).unwrap_or(0)
}

fn add(acc: &mut f32, w: &Unpacked, x: &Group, lane: usize) {
    let sum = |half: usize| -> i32 {
        let values =
            (16 * half..16 * half + 16).map(|i| w.quants[i] * i32::from(x.quants[i / 4][lane][i % 4]));
        values.sum()
    };
    let x_scale = x.scales[lane];
    match w.scales {
        Parts::Whole(scale) => *acc = (scale * x_scale).mul_add((sum(0) + sum(1)) as f32, *acc),
        Parts::Halves(scales) => {
            for (half, scale) in scales.into_iter().enumerate() {
                *acc = (scale * x_scale).mul_add(sum(half) as f32, *acc);
            }
        }
    }
    match w.mins {
        None => {}
        Some(Parts::Whole(min)) => *acc = min.mul_add(x.whole_sums[lane], *acc),
        Some(Parts::Halves(mins)) => {
            for (min, sums) in mins.into_iter().zip(&x.sums) {
                *acc = min.mul_add(sums[lane], *acc);
            }
        }
    }
}

/// The quants of a block whose byte j holds value j low and value j + 16 high.
fn nibbles(qs: &[u8]) -> [i32; 32] {
    std::array::from_fn(|i| i32::from(qs[i % 16] >> (4 * (i / 16)) & 15))
}

fn with_fifth(low: [i32; 32], high: [u8; 4]) -> [i32; 32] {
    let high = u32::from_le_bytes(high);
    std::array::from_fn(|i| low[i] | ((high >> i & 1) as i32) << 4)
}

macro_rules! unpack {
    ($name:ty, |$block:ident, $index:ident| $quants:expr, $scales:expr, $mins:expr) => {
        impl Unpack for $name {
            fn block(&self, $index: usize) -> Unpacked {
                let ($block, _) = (self, $index);
                Unpacked { quants: $quants, scales: $scales, mins: $mins }
            }
        }
    };
}

use Parts::{Halves, Whole};

unpack!(Q4_0, |b, _i| nibbles(&b.qs).map(|q| q - 8), Whole(b.d.get()), None);
unpack!(Q4_1, |b, _i| nibbles(&b.qs), Whole(b.d.get()), Some(Whole(b.m.get())));
unpack!(Q5_0, |b, _i| with_fifth(nibbles(&b.qs), b.qh).map(|q| q - 16), Whole(b.d.get()), None);
unpack!(Q5_1, |b, _i| with_fifth(nibbles(&b.qs), b.qh), Whole(b.d.get()), Some(Whole(b.m.get())));
unpack!(Q8_0, |b, _i| b.qs.map(i32::from), Whole(b.d.get()), None);
unpack!(IQ4_NL, |b, _i| nibbles(&b.qs).map(|q| i32::from(IQ4_NL_VALUES[q as usize])), Whole(b.d.get()), None);
unpack!(
    IQ4_XS,
    |b, i| nibbles(&b.qs[16 * i..][..16]).map(|q| i32::from(IQ4_NL_VALUES[q as usize])),
    Whole(b.d.get() * f32::from(b.scale(i))),
    None
);
unpack!(
    MXFP4,
    |b, _i| nibbles(&b.qs).map(|q| i32::from(E2M1_DOUBLED[q as usize])),
    Whole(e8m0_half(b.e)),
    None
);

/// The bits of 32 consecutive bytes, `shift` up, as many as `mask` has.
fn field(bytes: &[u8], shift: usize, mask: u8) -> [i32; 32] {
    std::array::from_fn(|i| i32::from(bytes[i] >> shift & mask))
}

/// Two sets of bits, the second `shift` above the first.
fn both(low: [i32; 32], high: [i32; 32], shift: usize) -> [i32; 32] {
    std::array::from_fn(|i| low[i] | high[i] << shift)
}

unpack!(
    Q4_K,
    |b, i| field(&b.qs[32 * (i / 2)..], 4 * (i % 2), 15),
    Whole(b.d.get() * f32::from(scale_min_k4(&b.scales, i).0)),
    Some(Whole(-(b.dmin.get() * f32::from(scale_min_k4(&b.scales, i).1))))
);
unpack!(
    Q5_K,
    |b, i| both(field(&b.qs[32 * (i / 2)..], 4 * (i % 2), 15), field(&b.qh, i, 1), 4),
    Whole(b.d.get() * f32::from(scale_min_k4(&b.scales, i).0)),
    Some(Whole(-(b.dmin.get() * f32::from(scale_min_k4(&b.scales, i).1))))
);
unpack!(
    Q6_K,
    |b, i| {
        let low = field(&b.ql[64 * (i / 4) + 32 * (i % 2)..], 4 * (i % 4 / 2), 15);
        both(low, field(&b.qh[32 * (i / 4)..], 2 * (i % 4), 3), 4).map(|q| q - 32)
    },
    Halves([0, 1].map(|half| b.d.get() * f32::from(b.scales[2 * i + half]))),
    None
);
unpack!(
    Q2_K,
    |b, i| field(&b.qs[32 * (i / 4)..], 2 * (i % 4), 3),
    Halves([0, 1].map(|half| b.d.get() * f32::from(b.scales[2 * i + half] & 15))),
    Some(Halves([0, 1].map(|half| -(b.dmin.get() * f32::from(b.scales[2 * i + half] >> 4)))))
);
unpack!(
    Q3_K,
    |b, i| both(field(&b.qs[32 * (i / 4)..], 2 * (i % 4), 3), field(&b.hmask, i, 1), 2).map(|q| q - 4),
    {
        let scales = q3_k_scales(&b.scales);
        Halves([0, 1].map(|half| b.d.get() * f32::from(scales[2 * i + half])))
    },
    None
);
