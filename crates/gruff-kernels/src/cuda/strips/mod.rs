//! How packed matrices lie on a card: anew, once, when they are copied there, so that a lane of a warp finds what it multiplies side
//! by side, at addresses that suit its loads, whatever a file's blocks are like. A type takes as many bytes as in the file; rows are completed to a multiple of eight.
//!
//! Eight rows are a *strip*, and the 256 values (a *group*) of its rows a *cell*. Of a row's group each of four lanes has 64
//! consecutive values to itself: codes, and the scales that are of these values only, `own` bytes; what scales all 256 is `row` bytes
//! that the four share ([`types`] says what they are for each type). A cell has
//!
//! ```text
//! own bytes, in planes of 16 bytes as often as they fit, then of 8, 4, 2 and 1 where the rest needs them:  [plane][row 0..8][lane]
//! row bytes, in such planes:                                                                               [plane][row 0..8]
//! ```
//!
//! and a strip is its cells, a stack its matrices' strips. The last cell of rows that are no whole groups has only the lanes that
//! it needs; the second half of a lane, and rows of a last strip that there are none of, are zeros. `blocks.cuh` reads it.

mod back;
mod book;
mod lanes;
mod types;

use std::ops::Range;

use gruff_blocks::BlockType;

use crate::Result;
use lanes::{Lanes, Unpacking};
use types::with_lanes;

pub(crate) use book::Book;

/// Rows of a strip.
pub(crate) const STRIP: usize = 8;
/// Values of a group, lanes that share it, and values of each.
const GROUP: usize = 256;
const LANES: usize = 4;
const RUN: usize = GROUP / LANES;
/// More than the bytes of a group, of what a lane has of it, and of what lanes share.
const MOST: usize = 512;
const MOST_OWN: usize = 80;
const MOST_ROW: usize = 8;

/// The bytes of a group as a file has them; what stands behind them is not looked at.
type Group = [u8; MOST];
/// What a lane has of a group, from the first byte on.
type Own = [u8; MOST_OWN];

/// A matrix's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strips {
    block_type: BlockType,
    cols: usize,
    row_bytes: usize,
}

impl Strips {
    /// Of rows of so many values; `None` for plain numbers, which lie as in a file.
    ///
    /// # Errors
    /// [`crate::Error::Blocks`] when a row is not whole blocks.
    pub(crate) fn of(block_type: BlockType, cols: usize) -> Result<Option<Self>> {
        let row_bytes = block_type.row_bytes(cols)?;
        // Eight such rows are a number: there is no memory for more.
        let there = !block_type.is_scalar() && row_bytes.checked_mul(2 * STRIP).is_some();
        Ok(there.then_some(Self { block_type, cols, row_bytes }))
    }

    /// Bytes of eight rows.
    pub(crate) fn strip_bytes(&self) -> usize {
        let (own, row) = own_and_row(self.block_type);
        let rest = (self.cols % GROUP).div_ceil(RUN);
        let last = if rest == 0 { 0 } else { STRIP * (rest * own + row) };
        self.cols / GROUP * cell_bytes(self.block_type) + last
    }

    /// Bytes of a matrix of so many rows, if that is a number.
    pub(crate) fn matrix_bytes(&self, rows: usize) -> Option<usize> {
        rows.div_ceil(STRIP).checked_mul(self.strip_bytes())
    }

    /// Bytes of a row in a file.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Lays out up to eight rows, one after the other as in a file, to a strip.
    pub(crate) fn lay_out(&self, rows: &[u8], strip: &mut [u8]) {
        with_lanes!(self.block_type, L => lay_out::<L>(self, rows, strip));
    }

    /// All bytes of the lanes of a row in the last cell.
    #[cfg(test)]
    fn lanes_of(&self, strip: &[u8], row: usize) -> Vec<u8> {
        with_lanes!(self.block_type, L => {
            let Some((cell, _, lanes)) = cells::<L>(self).last() else { return Vec::new() };
            let planes = &strip[cell];
            let mut all = Vec::new();
            for lane in 0..lanes {
                let index = row * lanes + lane;
                each_plane(L::OWN, STRIP * lanes, index, |_, place| all.extend_from_slice(&planes[place]));
            }
            all
        })
    }

    /// One row of a strip as a file has it.
    pub(crate) fn row_of(&self, strip: &[u8], row: usize) -> Vec<u8> {
        let mut packed = vec![0; self.row_bytes];
        with_lanes!(self.block_type, L => row_of::<L>(self, strip, row, &mut packed));
        packed
    }
}

/// Bytes of a whole cell.
pub(crate) fn cell_bytes(block_type: BlockType) -> usize {
    let (own, row) = own_and_row(block_type);
    STRIP * (LANES * own + row)
}

/// What a lane has to itself of a group, and what the four share: bytes.
fn own_and_row(block_type: BlockType) -> (usize, usize) {
    with_lanes!(block_type, L => (L::OWN, L::ROW))
}

/// What a type's codes are looked up in.
pub(crate) fn book(block_type: BlockType) -> Book {
    if block_type.is_scalar() {
        return Book::None;
    }
    with_lanes!(block_type, L => L::BOOK)
}

/// Whether unpacking a type takes longer than bringing its bytes.
pub(crate) fn is_heavy(block_type: BlockType) -> bool {
    with_lanes!(block_type, L => L::UNPACKING == Unpacking::Heavy)
}

/// Bytes of a whole group of a row in a file.
fn group_bytes(block_type: BlockType) -> usize {
    GROUP / block_type.values() * block_type.bytes()
}

/// The sizes of planes for so many bytes, and where their bytes begin among these.
fn planes(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let left = bytes - begin;
        let size = [16, 8, 4, 2, 1].into_iter().find(|size| *size <= left)?;
        begin += size;
        Some(begin - size..begin)
    })
}

/// Copies between what one of `count` indices has and its places in planes: `copy(bytes of it, place of them)`.
fn each_plane(bytes: usize, count: usize, index: usize, mut copy: impl FnMut(Range<usize>, Range<usize>)) {
    for plane in planes(bytes) {
        let first = plane.start * count + index * plane.len();
        let place = first..first + plane.len();
        copy(plane, place);
    }
}

/// The cells of a strip: where they lie in it, where their values do in a file's row, and how many lanes they have.
fn cells<L: Lanes>(strips: &Strips) -> impl Iterator<Item = (Range<usize>, Range<usize>, usize)> {
    let group_bytes = group_bytes(strips.block_type);
    let (cols, row_bytes) = (strips.cols, strips.row_bytes);
    let mut begin = 0;
    (0..cols.div_ceil(GROUP)).map(move |group| {
        let lanes = (cols - group * GROUP).div_ceil(RUN).min(LANES);
        let cell = begin..begin + STRIP * (lanes * L::OWN + L::ROW);
        begin = cell.end;
        (cell, group * group_bytes..((group + 1) * group_bytes).min(row_bytes), lanes)
    })
}

fn lay_out<L: Lanes>(strips: &Strips, rows: &[u8], strip: &mut [u8]) {
    let whole = group_bytes(strips.block_type);
    let mut group = [0; MOST];
    for (cell, values, lanes) in cells::<L>(strips) {
        let (own_planes, row_planes) = strip[cell].split_at_mut(STRIP * lanes * L::OWN);
        for row in 0..STRIP {
            match rows.get(row * strips.row_bytes..(row + 1) * strips.row_bytes) {
                Some(packed) if values.len() == whole => {
                    group[..values.len()].copy_from_slice(&packed[values.clone()])
                }
                packed => {
                    // The end of a row, or none.
                    group = [0; MOST];
                    if let Some(packed) = packed {
                        group[..values.len()].copy_from_slice(&packed[values.clone()]);
                    }
                }
            }
            let mut shared = [0; MOST_ROW];
            L::shared(&group, &mut shared);
            scatter(&shared, L::ROW, row_planes, STRIP, row);
            lay_out_lane::<L, 0>(&group, own_planes, row, lanes);
            lay_out_lane::<L, 1>(&group, own_planes, row, lanes);
            lay_out_lane::<L, 2>(&group, own_planes, row, lanes);
            lay_out_lane::<L, 3>(&group, own_planes, row, lanes);
        }
    }
}

/// Which lane it is is known when it is compiled, so that a type's offsets are constants.
#[inline(always)]
fn lay_out_lane<L: Lanes, const T: usize>(group: &Group, planes: &mut [u8], row: usize, lanes: usize) {
    if T < lanes {
        let mut own = [0; MOST_OWN];
        L::own(group, T, &mut own);
        scatter(&own, L::OWN, planes, STRIP * lanes, row * lanes + T);
    }
}

/// Copies the first `bytes` to their places in planes of `count` indices.
#[inline(always)]
fn scatter(from: &[u8], bytes: usize, planes: &mut [u8], count: usize, index: usize) {
    let mut begin = 0;
    while bytes - begin >= 16 {
        begin = scatter_plane::<16>(from, begin, planes, count, index);
    }
    if (bytes - begin) & 8 != 0 {
        begin = scatter_plane::<8>(from, begin, planes, count, index);
    }
    if (bytes - begin) & 4 != 0 {
        begin = scatter_plane::<4>(from, begin, planes, count, index);
    }
    if (bytes - begin) & 2 != 0 {
        begin = scatter_plane::<2>(from, begin, planes, count, index);
    }
    if (bytes - begin) & 1 != 0 {
        scatter_plane::<1>(from, begin, planes, count, index);
    }
}

#[inline(always)]
fn scatter_plane<const SIZE: usize>(
    from: &[u8],
    begin: usize,
    planes: &mut [u8],
    count: usize,
    index: usize,
) -> usize {
    let place = begin * count + index * SIZE;
    planes[place..place + SIZE].copy_from_slice(&from[begin..begin + SIZE]);
    begin + SIZE
}

fn row_of<L: Lanes>(strips: &Strips, strip: &[u8], row: usize, packed: &mut [u8]) {
    for (cell, values, lanes) in cells::<L>(strips) {
        let (own_planes, row_planes) = strip[cell].split_at(STRIP * lanes * L::OWN);
        let mut image = vec![0; LANES * L::OWN + L::ROW];
        for lane in 0..LANES {
            let own = &mut image[lane * L::OWN..(lane + 1) * L::OWN];
            if lane < lanes {
                let index = row * lanes + lane;
                each_plane(L::OWN, STRIP * lanes, index, |bytes, place| {
                    own[bytes].copy_from_slice(&own_planes[place]);
                });
            } else {
                let mut nothing = [0; MOST_OWN];
                L::own(&[0; MOST], lane, &mut nothing);
                own.copy_from_slice(&nothing[..L::OWN]);
            }
        }
        let shared = &mut image[LANES * L::OWN..];
        each_plane(L::ROW, STRIP, row, |bytes, place| shared[bytes].copy_from_slice(&row_planes[place]));
        let group = back::group::<L>(strips.block_type, &image);
        packed[values.clone()].copy_from_slice(&group[..values.len()]);
    }
}

#[cfg(test)]
mod tests {
    use gruff_blocks::synthetic::random_blocks;

    use super::*;

    fn packed_types() -> impl Iterator<Item = BlockType> {
        BlockType::ALL.iter().copied().filter(|block_type| !block_type.is_scalar())
    }

    #[test]
    fn no_type_takes_more_than_in_a_file() {
        for block_type in packed_types() {
            let file = group_bytes(block_type);
            // The sums that Q8_K has beside its codes are left out.
            let left_out = if block_type == BlockType::Q8_K { 32 } else { 0 };
            assert_eq!(cell_bytes(block_type), STRIP * (file - left_out), "{block_type}");
            assert!(cell_bytes(block_type).is_multiple_of(16), "{block_type}");
            let whole = Strips::of(block_type, 2 * GROUP).unwrap().unwrap();
            assert_eq!(whole.strip_bytes(), 2 * cell_bytes(block_type));
        }
        assert_eq!(Strips::of(BlockType::F16, 64).unwrap(), None);
        assert!(Strips::of(BlockType::Q4_K, 100).is_err());
    }

    #[test]
    fn kernels_read_what_is_laid_out() {
        let header = include_str!("../blocks.cuh");
        for block_type in packed_types() {
            let id = block_type.id();
            let (_, begun) = header.split_once(&format!("template <> struct Type<{id}> : ")).expect("a type");
            let (body, _) = begun.split_once("\n};").expect("its end");
            let (own, row) = own_and_row(block_type);
            let levels = matches!(book(block_type), Book::Levels(_));
            let (base, rest) = body.split_once('<').expect("what it is made of");
            assert!(rest.starts_with(&format!("{own}, {row}> {{")), "{block_type}: {own}, {row}");
            assert_eq!(levels, base == "Levels", "{block_type}");
            let table = body.split_once("int TABLE = ").and_then(|(_, rest)| rest.split(';').next());
            let words = |table: &str| table.split(" * ").map(|n| n.parse::<usize>().unwrap()).product();
            let expected = if levels { 4 } else { table.map_or(0, words) };
            assert_eq!(book(block_type).words(), expected, "{block_type}");
            assert_eq!(book(block_type).bytes().len(), 4 * expected, "{block_type}");
        }
    }

    #[test]
    fn planes_have_falling_sizes() {
        let of_35: Vec<_> = planes(35).collect();
        assert_eq!(of_35, [0..16, 16..32, 32..34, 34..35]);
        assert_eq!(planes(0).count(), 0);
    }

    #[test]
    fn rows_come_back_as_they_were() {
        for block_type in packed_types() {
            for (cols, rows) in
                [(256, 8), (512, 3), (32, 1), (96, 8), (320, 5), (1024, 7), (224, 8), (480, 3), (480, 8)]
            {
                let Ok(Some(strips)) = Strips::of(block_type, cols) else { continue };
                let blocks = rows * cols / block_type.values();
                let packed = random_blocks(block_type, blocks, 7);
                let mut strip = vec![0xa5; strips.strip_bytes()];
                strips.lay_out(&packed, &mut strip);
                // What stands behind a row's last block is as if there were zeros.
                let mut ended = vec![0; strips.strip_bytes()];
                for first in 0..rows {
                    let mut alone = vec![0; (first + 1) * strips.row_bytes];
                    let bytes = first * strips.row_bytes..(first + 1) * strips.row_bytes;
                    alone[bytes.clone()].copy_from_slice(&packed[bytes]);
                    strips.lay_out(&alone, &mut ended);
                    assert_eq!(
                        strips.lanes_of(&ended, first),
                        strips.lanes_of(&strip, first),
                        "{block_type} {cols}"
                    );
                }
                for (row, expected) in packed.chunks_exact(strips.row_bytes()).enumerate() {
                    let found = strips.row_of(&strip, row);
                    let values = |bytes: &[u8]| {
                        let mut values = vec![0.0; cols];
                        block_type.unpack(bytes, &mut values).unwrap();
                        values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                    };
                    assert_eq!(values(&found), values(expected), "{block_type} {cols} row {row}");
                    if block_type != BlockType::TQ1_0 && block_type != BlockType::Q8_K {
                        assert_eq!(found, expected, "{block_type} {cols} row {row}");
                    }
                }
            }
        }
    }
}
