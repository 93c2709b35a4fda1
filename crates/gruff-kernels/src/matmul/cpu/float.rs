//! Products in f32: for float weights, for exact activations, and for block types without an integer kernel.
//!
//! Float weights are read where they lie; of other types a tile of rows is unpacked at a time. Value k of a row
//! contributes to lane `k mod 8`, in order of k, by fused multiply-adds; the lanes are added as the family's contract
//! says. Columns are rows of f32, completed with zeros to a multiple of eight.

// Loops over rows and columns index several arrays at once.
#![allow(clippy::needless_range_loop)]

use gruff_blocks::BlockType;
use half::f16;

use super::super::round_row;
use super::kernel::{self, Kernel, Panel};
use crate::Isa;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::{LANES, Simd, Token};

/// Rows, and columns at most, that are kept in registers: twelve sums, three values of activations and one of weights
/// are all that AVX2 has.
const ROWS: usize = 4;
const COLUMNS: usize = 3;

/// Columns up to which F16 is widened anew for each few of them.
const WIDENED: usize = 32;

/// Values of a row that are unpacked together: whole blocks of every type.
const TILE_COLS: usize = 1024;

type Tile = [[f32; TILE_COLS]; ROWS];
type Sums = [[f32; LANES]; ROWS];

/// The length of a column in memory.
pub(super) fn padded(cols: usize) -> usize {
    cols.next_multiple_of(LANES)
}

/// The kernel for every block type.
pub(super) fn kernel(isa: Isa) -> Kernel {
    match Token::of(isa) {
        #[cfg(target_arch = "x86_64")]
        Token::Avx2(_) => {
            Kernel { name: "avx2 f32", compute: avx2, rereads: true, together: 4, columns: kernel::COLUMNS }
        }
        #[cfg(target_arch = "aarch64")]
        Token::Neon(_) => {
            Kernel { name: "neon f32", compute: neon, rereads: true, together: 4, columns: kernel::COLUMNS }
        }
        Token::Scalar(_) => Kernel {
            name: "scalar f32",
            compute: scalar,
            rereads: true,
            together: 4,
            columns: kernel::COLUMNS,
        },
    }
}

/// # Safety
/// As for [`Kernel::compute`].
#[cfg(target_arch = "aarch64")]
unsafe fn neon(panel: &Panel, columns: &[*const u8], out: &mut [f32], scratch: &mut Scratch) {
    // SAFETY: promised by the caller.
    unsafe { compute(crate::cpu::simd::Neon, panel, columns, out, scratch) }
}

/// # Safety
/// As for [`Kernel::compute`].
unsafe fn scalar(panel: &Panel, columns: &[*const u8], out: &mut [f32], scratch: &mut Scratch) {
    // SAFETY: promised by the caller.
    unsafe { compute(crate::cpu::simd::Scalar, panel, columns, out, scratch) }
}

/// # Safety
/// AVX2, FMA and F16C; and as for [`Kernel::compute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(panel: &Panel, columns: &[*const u8], out: &mut [f32], scratch: &mut Scratch) {
    let Some(token) = crate::cpu::simd::Avx2::detect() else {
        unreachable!("chosen only where it was found");
    };
    // SAFETY: promised by the caller.
    unsafe { compute(token, panel, columns, out, scratch) }
}

#[inline(always)]
unsafe fn compute<S: Simd>(
    s: S,
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    if panel.cols == 0 {
        out.fill(0.0);
        return;
    }
    // SAFETY: promised by the caller.
    unsafe {
        match panel.block_type {
            BlockType::F32 => direct::<S, f32>(s, panel, columns, out),
            BlockType::F16 if columns.len() <= WIDENED => direct::<S, f16>(s, panel, columns, out),
            BlockType::BF16 => direct::<S, Bf16>(s, panel, columns, out),
            _ => unpacked(s, panel, columns, out, scratch),
        }
    }
}

/// A float type of weights.
trait Value: Copy {
    /// Zero bits are the number zero.
    const ZERO: Self;

    fn widen<S: Simd>(s: S, values: [Self; LANES]) -> S::F32;
}

impl Value for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen<S: Simd>(s: S, values: [f32; LANES]) -> S::F32 {
        s.load(&values)
    }
}

impl Value for f16 {
    const ZERO: Self = f16::ZERO;

    #[inline(always)]
    fn widen<S: Simd>(s: S, values: [f16; LANES]) -> S::F32 {
        s.load_f16(&values)
    }
}

/// The upper half of an f32.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Bf16(u16);

impl Value for Bf16 {
    const ZERO: Self = Bf16(0);

    #[inline(always)]
    fn widen<S: Simd>(s: S, values: [Bf16; LANES]) -> S::F32 {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = f32::from_bits(u32::from(values[i].0) << 16);
        }
        s.load(&out)
    }
}

/// Products with rows of floats.
///
/// # Safety
/// As for [`Kernel::compute`].
#[inline(always)]
unsafe fn direct<S: Simd, W: Value>(s: S, panel: &Panel, columns: &[*const u8], out: &mut [f32]) {
    for row in (0..panel.rows).step_by(ROWS) {
        let mut w = [std::ptr::null(); ROWS];
        for (r, w) in w.iter_mut().enumerate() {
            // SAFETY: a row of the panel.
            *w = unsafe { panel.first.add((row + r).min(panel.rows - 1) * panel.row_bytes) }.cast::<W>();
        }
        for (at, columns) in columns.chunks(COLUMNS).enumerate() {
            let out = &mut out[at * COLUMNS * panel.rows..];
            // SAFETY: promised by the caller.
            unsafe {
                match columns.len() {
                    3 => whole_rows::<S, W, 3>(s, w, columns, panel, row, out),
                    2 => whole_rows::<S, W, 2>(s, w, columns, panel, row, out),
                    _ => whole_rows::<S, W, 1>(s, w, columns, panel, row, out),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn whole_rows<S: Simd, W: Value, const C: usize>(
    s: S,
    w: [*const W; ROWS],
    columns: &[*const u8],
    panel: &Panel,
    row: usize,
    out: &mut [f32],
) {
    let mut x = [std::ptr::null(); C];
    for c in 0..C {
        x[c] = columns[c].cast::<[f32; LANES]>();
    }
    let (vectors, rest) = (panel.cols / LANES, panel.cols % LANES);
    let mut acc = [[s.splat(0.0); C]; ROWS];
    // SAFETY: rows and columns have that many values, and columns are completed to whole vectors.
    unsafe {
        multiply(s, w, x, vectors, &mut acc);
        if rest != 0 {
            let mut last = [[W::ZERO; LANES]; ROWS];
            let mut rows = [std::ptr::null(); ROWS];
            for r in 0..ROWS {
                let from = w[r].add(vectors * LANES).cast::<u8>();
                std::ptr::copy_nonoverlapping(from, last[r].as_mut_ptr().cast(), rest * size_of::<W>());
                rows[r] = last[r].as_ptr();
            }
            for x in &mut x {
                *x = x.add(vectors);
            }
            multiply(s, rows, x, 1, &mut acc);
        }
    }
    for r in 0..ROWS.min(panel.rows - row) {
        for c in 0..C {
            out[c * panel.rows + row + r] = s.sum(acc[r][c]);
        }
    }
}

/// Adds the products of `vectors` vectors of rows and columns.
///
/// # Safety
/// That much is readable behind every pointer; `w` need not be aligned.
#[inline(always)]
unsafe fn multiply<S: Simd, W: Value, const C: usize>(
    s: S,
    w: [*const W; ROWS],
    x: [*const [f32; LANES]; C],
    vectors: usize,
    acc: &mut [[S::F32; C]; ROWS],
) {
    let mut sums = *acc;
    for k in 0..vectors {
        let mut values = [s.splat(0.0); C];
        for c in 0..C {
            // SAFETY: promised by the caller.
            values[c] = s.load(unsafe { &*x[c].add(k) });
        }
        for r in 0..ROWS {
            // SAFETY: promised by the caller.
            let w = W::widen(s, unsafe { w[r].cast::<[W; LANES]>().add(k).read_unaligned() });
            for c in 0..C {
                sums[r][c] = s.mul_add(w, values[c], sums[r][c]);
            }
        }
    }
    *acc = sums;
}

/// Products with rows of blocks, unpacked a tile at a time.
///
/// # Safety
/// As for [`Kernel::compute`].
#[inline(always)]
unsafe fn unpacked<S: Simd>(
    s: S,
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let (tile, sums) = scratch.split::<Tile, Sums>(columns.len());
    // SAFETY: plain numbers, whose content does not matter until they are written below.
    let (tile, sums) = unsafe { (&mut *tile, std::slice::from_raw_parts_mut(sums, columns.len())) };
    for row in (0..panel.rows).step_by(ROWS) {
        let rows = ROWS.min(panel.rows - row);
        sums.fill([[0.0; LANES]; ROWS]);
        for start in (0..panel.cols).step_by(TILE_COLS) {
            let len = TILE_COLS.min(panel.cols - start);
            for (r, tile) in tile[..rows].iter_mut().enumerate() {
                // SAFETY: promised by the caller.
                unsafe {
                    match panel.block_type {
                        BlockType::F16 => widen_part(s, panel, row + r, start, len, tile),
                        _ => unpack(panel, row + r, start, len, tile),
                    }
                }
            }
            for (columns, sums) in columns.chunks(COLUMNS).zip(sums.chunks_mut(COLUMNS)) {
                // SAFETY: promised by the caller; columns are completed to whole vectors.
                unsafe {
                    match columns.len() {
                        3 => part_of_rows::<S, 3>(s, tile, columns, start, len, sums),
                        2 => part_of_rows::<S, 2>(s, tile, columns, start, len, sums),
                        _ => part_of_rows::<S, 1>(s, tile, columns, start, len, sums),
                    }
                }
            }
        }
        for (c, sums) in sums.iter().enumerate() {
            for (r, lanes) in sums[..rows].iter().enumerate() {
                out[c * panel.rows + row + r] = s.sum(s.load(lanes));
            }
        }
    }
}

#[inline(always)]
unsafe fn part_of_rows<S: Simd, const C: usize>(
    s: S,
    tile: &Tile,
    columns: &[*const u8],
    start: usize,
    len: usize,
    sums: &mut [Sums],
) {
    let mut w = [std::ptr::null(); ROWS];
    let mut x = [std::ptr::null(); C];
    let mut acc = [[s.splat(0.0); C]; ROWS];
    for r in 0..ROWS {
        w[r] = tile[r].as_ptr();
        for c in 0..C {
            acc[r][c] = s.load(&sums[c][r]);
        }
    }
    // SAFETY: promised by the caller.
    unsafe {
        for c in 0..C {
            x[c] = columns[c].cast::<f32>().add(start).cast();
        }
        multiply(s, w, x, len.div_ceil(LANES), &mut acc);
    }
    for r in 0..ROWS {
        for c in 0..C {
            s.store(acc[r][c], &mut sums[c][r]);
        }
    }
}

/// As [`unpack`], of half precision: with as few columns as stay in the second-level cache, number by number would take
/// as long as multiplying them.
///
/// # Safety
/// The panel's rows are readable.
#[inline(always)]
unsafe fn widen_part<S: Simd>(
    s: S,
    panel: &Panel,
    row: usize,
    start: usize,
    len: usize,
    out: &mut [f32; TILE_COLS],
) {
    let (whole, rest) = (len / LANES, len % LANES);
    // SAFETY: a part of a readable row, which need not be aligned.
    unsafe {
        let from = panel.first.add(row * panel.row_bytes + start * size_of::<f16>()).cast::<[f16; LANES]>();
        let (vectors, _) = out.as_chunks_mut::<LANES>();
        for (i, vector) in vectors[..whole].iter_mut().enumerate() {
            s.store(s.load_f16(&from.add(i).read_unaligned()), vector);
        }
        if rest != 0 {
            let mut last = [f16::ZERO; LANES];
            let bytes = rest * size_of::<f16>();
            std::ptr::copy_nonoverlapping(from.add(whole).cast::<u8>(), last.as_mut_ptr().cast(), bytes);
            s.store(s.load_f16(&last), &mut vectors[whole]);
        }
    }
}

/// Unpacks `len` values of a row, whole blocks of them; what completes the last vector becomes zero.
///
/// # Safety
/// The panel's rows are readable.
unsafe fn unpack(panel: &Panel, row: usize, start: usize, len: usize, out: &mut [f32; TILE_COLS]) {
    let block_type = panel.block_type;
    let first = start / block_type.values() * block_type.bytes();
    let bytes = len / block_type.values() * block_type.bytes();
    // SAFETY: a part of a readable row.
    let packed = unsafe { std::slice::from_raw_parts(panel.first.add(row * panel.row_bytes + first), bytes) };
    out[len..padded(len)].fill(0.0);
    let unpacked = block_type.unpack(packed, &mut out[..len]);
    debug_assert!(unpacked.is_ok(), "tiles are whole blocks");
}

/// Writes a row as a column: rounded as the integer kernels round it, if asked, and completed with zeros.
pub(super) fn complete(row: &[f32], rounded: bool, out: &mut [f32]) {
    out[row.len()..].fill(0.0);
    let out = &mut out[..row.len()];
    if !rounded {
        return out.copy_from_slice(row);
    }
    out.fill(0.0);
    round_row(row, |first, scale, quants| {
        out[first..].iter_mut().zip(quants).for_each(|(out, quant)| *out += scale * f32::from(*quant));
    });
}
