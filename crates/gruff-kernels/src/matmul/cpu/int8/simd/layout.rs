//! Tiles of rows that are unpacked once and meet many columns, in memory.

use super::super::super::kernel::Panel;
use super::super::{BLOCKS, GROUP, LANE_BLOCKS};
use super::ahead::Ahead;
use super::product::Groups;
use super::transpose::{OCTET, Weights};
use super::vector::Vector;
use super::{Form, Quants, Unpack, each};
use crate::cpu::scratch::Scratch;

/// How the kernels for many columns of an instruction set lay a tile out.
pub(super) trait Layout {
    /// Registers in which rows are unpacked.
    type Vector: Vector;
    /// Rows of a tile.
    const ROWS: usize;
    /// A block of 32 columns of a tile.
    type Block;

    /// The quants as tiles hold them.
    unsafe fn stored<U: Unpack>(quants: [Bits<Self>; 8]) -> [Bits<Self>; 8];

    /// Whether a tile's blocks stand lane by lane of the sums' tree, each lane's `groups` blocks in a run, and not in
    /// their order.
    const BY_LANE: bool = false;

    /// Writes a group of eight rows, the `first` ones of a tile, into the blocks of its eight lanes; of scales and
    /// minima those that `parts` asks for: of halves, and any minima.
    unsafe fn octet(
        rows: &[Weights; OCTET],
        parts: [bool; 2],
        blocks: [*mut Self::Block; BLOCKS],
        first: usize,
    );

    /// `out[c * panel.rows + r]` becomes the product of row r and column c, of more columns than are few.
    ///
    /// # Safety
    /// As for [`Kernel::compute`](super::super::super::kernel::Kernel::compute).
    unsafe fn product<U: Unpack>(
        panel: &Panel,
        columns: &[*const u8],
        out: &mut [f32],
        scratch: &mut Scratch,
    );
}

/// Bytes in the registers of a layout.
pub(super) type Bits<L> = <<L as Layout>::Vector as Vector>::Bits;

/// Unpacked rows.
pub(super) struct Tile {
    /// [`Layout::Block`]s.
    pub(super) first: *const u8,
    /// Blocks of 32 columns.
    pub(super) blocks: usize,
    /// By how much unsigned weights are too large, where they are: `1 << shift`.
    pub(super) shift: u32,
    /// Rows that are wanted.
    pub(super) rows: usize,
    /// What is unpacked next.
    pub(super) ahead: Ahead,
}

/// The weights themselves, as signed bytes.
#[inline(always)]
pub(super) unsafe fn exact<V: Vector, U: Unpack>(quants: [V::Bits; 8]) -> [V::Bits; 8] {
    if U::Form::QUANTS == Quants::Signed || !U::Form::SHIFTED {
        return quants;
    }
    // SAFETY: promised by the caller.
    unsafe {
        let offset = V::splat8(1 << U::OFFSET);
        each!(|g: 8| V::sub8(quants[g], offset))
    }
}

/// Unpacks a tile; rows behind the panel's last repeat it.
#[inline(always)]
pub(super) unsafe fn unpack<L: Layout, U: Unpack>(panel: &Panel, row: usize, tile: *mut L::Block) {
    // SAFETY: promised by the caller.
    let mut weights = unsafe { Groups::<L::Vector>::of(panel) };
    let wanted = L::ROWS.min((panel.rows - row).next_multiple_of(OCTET));
    let groups = panel.cols.div_ceil(GROUP);
    for group in 0..groups {
        let mut blocks = [tile; BLOCKS];
        for (lane, block) in blocks.iter_mut().enumerate() {
            let at = if L::BY_LANE { lane * groups + group } else { group * BLOCKS + LANE_BLOCKS[lane] };
            *block = tile.wrapping_add(at);
        }
        for first in (0..wanted).step_by(OCTET) {
            // SAFETY: promised by the caller.
            unsafe {
                let mut rows = std::mem::MaybeUninit::<[Weights; OCTET]>::uninit();
                for r in (0..OCTET).step_by(L::Vector::ROWS) {
                    let packed = weights.rows([row + first + r, row + first + r + 1]);
                    let w = weights.unpack::<U>(packed, group);
                    let quants = L::stored::<U>(w.quants);
                    for i in 0..L::Vector::ROWS {
                        let to = rows.as_mut_ptr().cast::<Weights>().add(r + i);
                        for g in 0..BLOCKS {
                            L::Vector::store_bits(quants[g], i, (&raw mut (*to).quants[g]).cast());
                        }
                        for half in 0..2 {
                            L::Vector::store_floats(w.scales[half], i, (&raw mut (*to).scales[half]).cast());
                            L::Vector::store_floats(w.mins[half], i, (&raw mut (*to).mins[half]).cast());
                        }
                    }
                }
                let parts = [U::Form::HALVES, U::Form::MINS];
                L::octet(&*rows.as_ptr(), parts, blocks, first);
            }
        }
    }
}
