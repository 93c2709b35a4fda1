//! Matvec and matmul of any block type with any instruction set.

use gruff_blocks::BlockType;

use super::super::super::kernel::{COLUMNS, Kernel, Panel};
use super::super::{BLOCKS, FEW, GROUP, Group, LANE_BLOCKS};
use super::ahead::{Level, ask};
use super::cohort::COHORT;
use super::dot::{Bits, Dot, Floats, offset};
use super::layout::Layout;
use super::vector::{Packed, Vector};
use super::{Form, Quants, Unpack, Unpacked, each};
use super::{Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::Isa;
use crate::cpu::scratch::Scratch;
use crate::matmul::Q8_BLOCK;

#[cfg(target_arch = "x86_64")]
use super::amx::{Amx, Instructions};
#[cfg(target_arch = "x86_64")]
use super::dot::{Avx2, Vnni};
#[cfg(target_arch = "aarch64")]
use super::dot::{DotProd, Neon};
#[cfg(target_arch = "x86_64")]
use super::fours;
#[cfg(target_arch = "aarch64")]
use super::i8mm::I8mm;
#[cfg(target_arch = "x86_64")]
use super::lanes::Lanes;

/// The kernels of a block type.
pub(in super::super) fn kernel(isa: Isa, block_type: BlockType) -> Option<Kernel> {
    macro_rules! by_type {
        ($name:literal, $compute:ident, $together:expr, $columns:expr; $($variant:ident => $unpack:ty,)*) => {
            match block_type {
                $(BlockType::$variant => Some(Kernel {
                    name: $name,
                    compute: $compute::<$unpack>,
                    rereads: false,
                    together: $together,
                    columns: $columns,
                }),)*
                _ => None,
            }
        };
        ($name:literal, $compute:ident) => { by_type!($name, $compute, 4, COLUMNS) };
        ($name:literal, $compute:ident, $together:expr, $columns:expr) => {
            by_type! { $name, $compute, $together, $columns;
                Q4_0 => Q4_0, Q4_1 => Q4_1, Q5_0 => Q5_0, Q5_1 => Q5_1, Q8_0 => Q8_0,
                Q2_K => Q2K, Q3_K => Q3K, Q4_K => Q4K, Q5_K => Q5K, Q6_K => Q6K,
                IQ4_NL => Iq4Nl, IQ4_XS => Iq4Xs, MXFP4 => Mxfp4,
            }
        };
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => by_type!("avx2 int8", avx2),
        // Weights in registers are bound by memory; tiles are multiplied as this instruction set does.
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => by_type!("avx-vnni int8", avx2),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => by_type!("avx512-vnni int8", vnni, fours::COHORT, 2 * COLUMNS),
        #[cfg(target_arch = "x86_64")]
        Isa::AmxInt8 => by_type!("amx int8", amx, COHORT, 2 * COLUMNS),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => by_type!("neon int8", neon),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDotProd => by_type!("neon-dotprod int8", dotprod),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => by_type!("neon-i8mm int8", i8mm, COHORT, COLUMNS),
        _ => None,
    }
}

/// Declares the entry point of an instruction set, and how it multiplies many columns.
macro_rules! entry {
    ($name:ident, $isa:ident, many: $layout:ident, $features:literal) => {
        /// # Safety
        /// The machine has the features; and as for [`Kernel::compute`].
        #[target_feature(enable = $features)]
        unsafe fn $name<U: Unpack>(
            panel: &Panel,
            columns: &[*const u8],
            out: &mut [f32],
            scratch: &mut Scratch,
        ) {
            // SAFETY: promised by the caller.
            unsafe { compute::<$isa, $layout, U>(panel, columns, out, scratch) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
entry!(avx2, Avx2, many: Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
entry!(vnni, Vnni, many: Lanes, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni");
#[cfg(target_arch = "aarch64")]
entry!(neon, Neon, many: Neon, "neon");
#[cfg(target_arch = "aarch64")]
entry!(dotprod, DotProd, many: DotProd, "neon,dotprod");

/// Declares the entry point of an instruction set that multiplies cohorts of columns, and few columns as another.
macro_rules! cohort_entry {
    ($name:ident, $layout:ty, few: $few:ident, $features:literal) => {
        /// # Safety
        /// The machine has the features; and as for [`Kernel::compute`].
        #[target_feature(enable = $features)]
        unsafe fn $name<U: Unpack>(
            panel: &Panel,
            columns: &[*const u8],
            out: &mut [f32],
            scratch: &mut Scratch,
        ) {
            // SAFETY: promised by the caller.
            unsafe {
                if columns.len() <= FEW || panel.cols == 0 {
                    $few::<U>(panel, columns, out, scratch)
                } else {
                    <$layout>::product::<U>(panel, columns, out, scratch)
                }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
cohort_entry!(amx, Amx<Instructions>, few: vnni, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni");
#[cfg(target_arch = "aarch64")]
cohort_entry!(i8mm, I8mm, few: dotprod, "neon,dotprod,i8mm");

#[inline(always)]
unsafe fn compute<D: Dot, L: Layout, U: Unpack>(
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    debug_assert!(out.len() >= columns.len() * panel.rows);
    if panel.cols == 0 {
        return out.fill(0.0);
    }
    // SAFETY: promised by the caller.
    unsafe {
        match columns {
            [column] => matvec::<D, U>(panel, column.cast(), out),
            _ if columns.len() <= FEW => match D::TOGETHER {
                4 => few::<D, U, 4>(panel, columns, out),
                _ => few::<D, U, 2>(panel, columns, out),
            },
            _ => L::product::<U>(panel, columns, out, scratch),
        }
    }
}

/// How many bytes before their use weights of few columns are asked for: a page.
const AHEAD: usize = 4096;

/// More bytes than a group of any type has.
const GROUP_BYTES: usize = 512;

/// How groups of a panel's rows are read.
pub(super) struct Groups<'a, V: Vector> {
    panel: &'a Panel,
    /// All ones in the lanes whose blocks a row's last group has.
    last: V::Bits,
    /// Room for the last group of the last rows, behind which nothing may be read.
    rest: [[u8; GROUP_BYTES]; 2],
}

/// The rows of a vector, found once for all their groups.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Where they begin.
    first: Packed,
    /// Bytes of one.
    bytes: usize,
    /// Bytes of the panel from the beginning of the last of them.
    behind: usize,
}

impl Rows {
    /// Asks for `bytes` of each row of a vector, from `at` on.
    #[inline(always)]
    fn ask<V: Vector>(&self, at: usize, bytes: usize) {
        for row in 0..V::ROWS {
            ask(self.first.at(at).row(row), bytes, Level::First);
        }
    }
}

/// The last group of some rows, copied to where more than it may be read.
#[cold]
#[inline(never)]
fn copied(packed: Packed, rows: usize, bytes: usize, rest: &mut [[u8; GROUP_BYTES]; 2]) -> Packed {
    for (i, rest) in rest.iter_mut().enumerate().take(rows) {
        // SAFETY: the caller's group has that many bytes before the end of its row, fewer than any group has.
        unsafe { std::ptr::copy_nonoverlapping(packed.row(i), rest.as_mut_ptr(), bytes) };
    }
    Packed { first: rest.as_ptr().cast(), next: GROUP_BYTES as isize }
}

impl<'a, V: Vector> Groups<'a, V> {
    /// # Safety
    /// The vector's features.
    #[inline(always)]
    pub(super) unsafe fn of(panel: &'a Panel) -> Self {
        let blocks = (panel.cols.div_ceil(Q8_BLOCK) - 1) % BLOCKS;
        // SAFETY: promised by the caller.
        let last = unsafe { V::words(each!(|p: 8| -i32::from(LANE_BLOCKS[p] <= blocks))) };
        Self { panel, last, rest: [[0; GROUP_BYTES]; 2] }
    }

    /// A row, and another that is not before it where vectors hold two; rows behind the last repeat it.
    #[inline(always)]
    pub(super) fn rows(&self, [row, other]: [usize; 2]) -> Rows {
        let Panel { first, row_bytes, rows, .. } = *self.panel;
        let row = row.min(rows - 1);
        let last = if V::ROWS == 2 { other.min(rows - 1) } else { row };
        let next = ((last - row) * row_bytes) as isize;
        let first = Packed { first: first.wrapping_add(row * row_bytes), next };
        Rows { first, bytes: row_bytes, behind: (rows - last) * row_bytes }
    }

    /// A group of some rows. What the last group has beyond its row has scale 0.
    ///
    /// # Safety
    /// The vector's features; there is such a group, and the panel is readable.
    #[inline(always)]
    pub(super) unsafe fn unpack<U: Unpack>(&mut self, rows: Rows, group: usize) -> Unpacked<V> {
        let start = group * U::BYTES;
        let end = start + U::BYTES;
        let mut packed = rows.first.at(start);
        if end > rows.behind {
            packed = copied(packed, V::ROWS, rows.bytes - start, &mut self.rest);
        }
        // SAFETY: promised by the caller; where a group reaches beyond its row there are others behind it, or it was
        // copied up to the row's end.
        unsafe {
            let mut w = U::unpack::<V>(packed);
            if end > rows.bytes {
                for half in 0..2 {
                    w.scales[half] = V::keep(w.scales[half], self.last);
                    w.mins[half] = V::keep(w.mins[half], self.last);
                }
            }
            w
        }
    }
}

/// The quants as `D` multiplies them.
#[inline(always)]
pub(super) unsafe fn stored<D: Dot, U: Unpack>(quants: [Bits<D>; 8]) -> [Bits<D>; 8] {
    match U::Form::QUANTS {
        // SAFETY: promised by the caller.
        Quants::Signed => unsafe { each!(|g: 8| D::signed(quants[g])) },
        _ => quants,
    }
}

/// What sums begin with, so that weights that are stored too large come out right.
#[inline(always)]
unsafe fn start<D: Dot, U: Unpack>(offsets: &[i32; 8]) -> Bits<D> {
    // SAFETY: promised by the caller.
    unsafe {
        match offset::<D, U>() {
            Some(shift) => D::V::left32(D::V::same_bits(offsets.as_ptr().cast()), shift),
            None => D::V::splat32(0),
        }
    }
}

/// Adds `scale * x.scale * sum`.
#[inline(always)]
unsafe fn add_scaled<V: Vector>(
    acc: V::Floats,
    scale: V::Floats,
    x_scale: V::Floats,
    sum: V::Bits,
) -> V::Floats {
    // SAFETY: promised by the caller.
    unsafe { V::mul_add(V::mul(scale, x_scale), V::to_floats(sum), acc) }
}

/// Rows that are computed together, one of each of `STREAMS` equal parts of a panel: memory delivers a few long streams
/// fast, but not the starts and ends of many rows.
#[derive(Clone, Copy)]
struct Together {
    /// Rows of a part.
    part: usize,
}

impl Together {
    fn of(panel: &Panel, streams: usize) -> Self {
        Self { part: panel.rows.div_ceil(streams) }
    }

    /// The rows of a vector.
    #[inline(always)]
    fn rows<V: Vector>(self, row: usize, vector: usize) -> [usize; 2] {
        [row + vector * V::ROWS * self.part, row + (vector * V::ROWS + 1) * self.part]
    }

    /// Asks for the beginning of every stream of so many vectors, which nothing has asked for.
    #[inline(always)]
    fn begin<V: Vector>(self, weights: &Groups<V>, vectors: usize) {
        if self.part == 0 {
            return;
        }
        for vector in 0..vectors {
            let rows = weights.rows(self.rows::<V>(0, vector));
            rows.ask::<V>(0, AHEAD.min(self.part * rows.bytes));
        }
    }
}

/// One column: weights go from the packed row to the product in registers.
#[inline(always)]
unsafe fn matvec<D: Dot, U: Unpack>(panel: &Panel, column: *const Group, out: &mut [f32]) {
    let groups = panel.cols.div_ceil(GROUP);
    let together = Together::of(panel, D::V::ROWS);
    // SAFETY: rows and columns are readable, and `out` has a value a row, as promised by the caller.
    unsafe {
        let mut weights = Groups::<D::V>::of(panel);
        let loud = has_loud(column, groups);
        together.begin::<D::V>(&weights, 1);
        for row in 0..together.part {
            let rows = together.rows::<D::V>(row, 0);
            let mut acc = [D::V::zero()];
            let mut second = [D::V::zero()];
            let packed = weights.rows(rows);
            for group in 0..groups {
                packed.ask::<D::V>(group * U::BYTES + AHEAD, U::BYTES);
                let mut w = [weights.unpack::<U>(packed, group)];
                w[0].quants = stored::<D, U>(w[0].quants);
                let x = column.add(group);
                add_group::<D, U, 1>(&mut acc, &w, &*x);
                if (*x).is_loud() {
                    add_group::<D, U, 1>(&mut second, &w, &*Group::second(x));
                }
            }
            let (sums, seconds) = (D::V::sums(acc[0]), D::V::sums(second[0]));
            for (i, row) in rows.into_iter().enumerate().take(D::V::ROWS) {
                if row < panel.rows {
                    *out.get_unchecked_mut(row) = if loud { sums[i] + seconds[i] } else { sums[i] };
                }
            }
        }
    }
}

/// Whether a column has second terms.
#[inline(always)]
unsafe fn has_loud(column: *const Group, groups: usize) -> bool {
    // SAFETY: promised by the caller.
    (0..groups).any(|group| unsafe { (*column.add(group)).is_loud() })
}

/// Adds the products of a group of T vectors of weights and one of activations, which is loaded once.
#[inline(always)]
unsafe fn add_group<D: Dot, U: Unpack, const T: usize>(
    acc: &mut [Floats<D>; T],
    w: &[Unpacked<D::V>; T],
    x: &Group,
) {
    // SAFETY: promised by the callers.
    unsafe {
        let x_scale = D::V::same_floats(&x.scales);
        let mut sums = [[D::V::splat32(0); 2]; T];
        for half in 0..2 {
            let start = start::<D, U>(&x.offsets[half]);
            let x: [Bits<D>; 4] = each!(|g: 4| D::V::same_bits(x.quants[4 * half + g].as_ptr().cast()));
            for t in 0..T {
                let w: [Bits<D>; 4] = each!(|g: 4| w[t].quants[4 * half + g]);
                sums[t][half] = D::dot4::<U::Form>(start, w, x);
            }
        }
        for t in 0..T {
            let (scales, [first, second]) = (w[t].scales, sums[t]);
            acc[t] = if U::Form::HALVES {
                let acc = add_scaled::<D::V>(acc[t], scales[0], x_scale, first);
                add_scaled::<D::V>(acc, scales[1], x_scale, second)
            } else {
                add_scaled::<D::V>(acc[t], scales[0], x_scale, D::V::add32(first, second))
            };
        }
        add_mins::<D, U, T>(acc, w, x);
    }
}

#[inline(always)]
unsafe fn add_mins<D: Dot, U: Unpack, const T: usize>(
    acc: &mut [Floats<D>; T],
    w: &[Unpacked<D::V>; T],
    x: &Group,
) {
    if !U::Form::MINS {
        return;
    }
    let sums = if U::Form::HALVES { [&x.sums[0], &x.sums[1]] } else { [&x.whole_sums; 2] };
    for half in 0..=usize::from(U::Form::HALVES) {
        for t in 0..T {
            // SAFETY: promised by the caller.
            unsafe { acc[t] = D::V::mul_add(w[t].mins[half], D::V::same_floats(sums[half]), acc[t]) };
        }
    }
}

/// Some columns: as [`matvec`], but T vectors of rows are unpacked, into registers or the first-level cache, and meet each
/// group of activations together: groups of eight columns come from the second-level cache, so they had better come once.
#[inline(always)]
unsafe fn few<D: Dot, U: Unpack, const T: usize>(panel: &Panel, columns: &[*const u8], out: &mut [f32]) {
    let groups = panel.cols.div_ceil(GROUP);
    let together = Together::of(panel, T * D::V::ROWS);
    // SAFETY: rows and columns are readable, there are at most `FEW`, and `out` has a value for each row and column, as
    // promised by the caller.
    unsafe {
        let mut weights = Groups::<D::V>::of(panel);
        let mut loud = [false; FEW];
        for (loud, column) in loud.iter_mut().zip(columns) {
            *loud = has_loud(column.cast(), groups);
        }
        together.begin::<D::V>(&weights, T);
        for row in 0..together.part {
            let mut sums = [[D::V::zero(); T]; FEW];
            let mut seconds = [[D::V::zero(); T]; FEW];
            let packed: [Rows; T] = each!(|t: T| weights.rows(together.rows::<D::V>(row, t)));
            for group in 0..groups {
                let mut w = std::mem::MaybeUninit::<[Unpacked<D::V>; T]>::uninit();
                for t in 0..T {
                    packed[t].ask::<D::V>(group * U::BYTES + AHEAD, U::BYTES);
                    let mut unpacked = weights.unpack::<U>(packed[t], group);
                    unpacked.quants = stored::<D, U>(unpacked.quants);
                    w.as_mut_ptr().cast::<Unpacked<D::V>>().add(t).write(unpacked);
                }
                let w = w.assume_init_ref();
                for (c, column) in columns.iter().enumerate() {
                    let x = column.cast::<Group>().add(group);
                    add_group::<D, U, T>(sums.get_unchecked_mut(c), w, &*x);
                    if (*x).is_loud() {
                        add_group::<D, U, T>(seconds.get_unchecked_mut(c), w, &*Group::second(x));
                    }
                }
            }
            for c in 0..columns.len() {
                for t in 0..T {
                    let (first, second) = (D::V::sums(sums[c][t]), D::V::sums(seconds[c][t]));
                    for (i, row) in together.rows::<D::V>(row, t).into_iter().enumerate().take(D::V::ROWS) {
                        if row < panel.rows {
                            *out.get_unchecked_mut(c * panel.rows + row) =
                                if loud[c] { first[i] + second[i] } else { first[i] };
                        }
                    }
                }
            }
        }
    }
}
