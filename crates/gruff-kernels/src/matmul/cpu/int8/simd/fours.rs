//! Rows of activations four by four, in the order in which [`lanes`](super::lanes) multiplies them, made once an input.
//!
//! A cohort is up to [`COHORT`] rows. Its blocks stand lane by lane of the sums' tree, so that a lane is one stream of
//! memory. Second terms stand four by four too, whichever columns they belong to: a few blocks of each column are loud, and
//! four at a time they cost what four first terms cost.

use super::super::{BLOCKS, Group};
use super::cohort::Line;
use super::each;
use super::transpose::numbers;

/// Rows of a cohort.
pub(in super::super) const COHORT: usize = 64;

/// Columns that stand side by side.
pub(in super::super) const FOUR: usize = 4;

/// Weights that kernels multiply without their sign are `1 << EXCESS` too large.
pub(super) const EXCESS: u32 = 7;

/// The column of places that hold no second term.
pub(super) const NOBODY: u8 = COHORT as u8;

/// A block of 32 values of four columns. Numbers are what [`Group`] has of the same names.
#[repr(C, align(64))]
pub(super) struct FourBlocks {
    pub(super) quants: [[i8; 32]; FOUR],
    pub(super) scales: [f32; FOUR],
    pub(super) whole_sums: [f32; FOUR],
    pub(super) sums: [[f32; FOUR]; 2],
    /// The offsets, shifted by [`EXCESS`]: what sums of products begin with.
    pub(super) whole_starts: [i32; FOUR],
    pub(super) starts: [[i32; FOUR]; 2],
    /// Of second terms: the columns; all ones where a column had one in the lane before; the group.
    pub(super) columns: [u8; FOUR],
    pub(super) begun: [u16; FOUR],
    pub(super) group: u32,
}

/// What a cohort begins with. First terms follow, of each lane the groups of the first four columns, of the next four and so
/// on; then the second terms, of each lane in the order of their groups.
#[repr(C, align(64))]
pub(super) struct Cohort {
    /// Fours of columns.
    fours: u32,
    groups: u32,
    /// Where a lane's second terms begin, and where the last ones end.
    seconds: [u32; BLOCKS + 1],
    /// The columns that have second terms, a bit each.
    pub(super) loud: u64,
    /// Those that have some in a lane.
    pub(super) loud_in: [u64; BLOCKS],
}

impl Cohort {
    /// Blocks of a lane.
    fn of_lane(&self) -> usize {
        self.fours as usize * self.groups as usize
    }

    /// The first terms of four columns in a lane, group by group.
    pub(super) fn firsts(&self, lane: usize, four: usize) -> *const FourBlocks {
        let blocks = (&raw const *self).wrapping_add(1).cast::<FourBlocks>();
        blocks.wrapping_add(lane * self.of_lane() + four * self.groups as usize)
    }

    /// The second terms of a lane, in the order of their groups, and how many there are.
    pub(super) fn seconds(&self, lane: usize) -> (*const FourBlocks, usize) {
        let [begin, end] = [self.seconds[lane], self.seconds[lane + 1]];
        (self.firsts(BLOCKS, 0).wrapping_add(begin as usize), (end - begin) as usize)
    }
}

/// Bytes of a cohort of `count` rows of `groups` groups.
pub(in super::super) const fn bytes(count: usize, groups: usize) -> usize {
    size_of::<Cohort>() + 2 * BLOCKS * count.div_ceil(FOUR) * groups * size_of::<FourBlocks>()
}

/// Writes the first terms of one four of the columns of a cohort of at most [`COHORT`] rows.
///
/// # Safety
/// AVX2; `rows` is followed by `count * groups` groups; `out` has room for [`bytes`]; nobody else touches this four there, nor
/// writes the rows, meanwhile.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn form_four(
    rows: *const Group,
    count: usize,
    groups: usize,
    out: *mut u8,
    four: usize,
) {
    let fours = count.div_ceil(FOUR);
    // SAFETY: promised by the caller.
    unsafe {
        let firsts = out.add(size_of::<Cohort>()).cast::<FourBlocks>();
        for g in 0..groups {
            // The last row stands in the place of those that are missing, too.
            let x: [*const Group; FOUR] =
                each!(|c: 4| rows.add((FOUR * four + c).min(count - 1) * groups + g));
            write_four(&x, each!(|lane: 8| firsts.add((lane * fours + four) * groups + g)));
        }
    }
}

/// Completes a cohort whose fours are written: its beginning and its second terms. The rows' first groups point to it
/// afterwards.
///
/// # Safety
/// `rows` is followed by `count * groups` groups, `second` further by their second terms; `out` has room for [`bytes`]; nobody
/// else touches any of them meanwhile.
pub(in super::super) unsafe fn finish(rows: *mut Group, count: usize, groups: usize, out: *mut u8) {
    let out = out.cast::<Cohort>();
    // SAFETY: promised by the caller.
    unsafe {
        let (fours, groups_of) = (count.div_ceil(FOUR) as u32, groups as u32);
        let seconds = [0; BLOCKS + 1];
        out.write(Cohort { fours, groups: groups_of, seconds, loud: 0, loud_in: [0; BLOCKS] });
        for place in 0..count {
            let row = rows.add(place * groups);
            (*row).cohort = (out.byte_offset_from(row) as usize / size_of::<Line>()) as u32;
            (*row).place = place as u32;
        }
        write_seconds(rows, count, groups, out);
    }
}

/// Writes a group of four columns into the blocks of its lanes.
#[inline(always)]
unsafe fn write_four(x: &[*const Group; FOUR], out: [*mut FourBlocks; BLOCKS]) {
    // SAFETY: promised by the caller; quants are moved as numbers are, four at a time, and two arrays of four numbers
    // together, which follow each other.
    unsafe {
        for c in 0..FOUR {
            let from = each!(|g: 8| (&raw const (*x[c]).quants[g]).cast());
            numbers(from, each!(|lane: 8| (&raw mut (*out[lane]).quants[c]).cast()));
        }
        let from = each!(|i: 8| if i < FOUR {
            (&raw const (*x[i]).scales).cast()
        } else {
            (&raw const (*x[i - FOUR]).whole_sums).cast()
        });
        numbers(from, each!(|lane: 8| (&raw mut (*out[lane]).scales).cast()));
        let from = each!(|i: 8| (&raw const (*x[i % FOUR]).sums[i / FOUR]).cast());
        numbers(from, each!(|lane: 8| (&raw mut (*out[lane]).sums).cast()));
        // Of the second pair only the first array is wanted.
        let starts: [[i32; 8]; 2 * FOUR] = each!(|i: 8| if i < FOUR {
            shifted(&(*x[i]).whole_offsets)
        } else {
            shifted(&(*x[i - FOUR]).offsets[0])
        });
        numbers(
            each!(|i: 8| starts[i].as_ptr().cast()),
            each!(|lane: 8| (&raw mut (*out[lane]).whole_starts).cast()),
        );
        for c in 0..FOUR {
            let last = shifted(&(*x[c]).offsets[1]);
            for lane in 0..BLOCKS {
                (*out[lane]).starts[1][c] = last[lane];
            }
        }
    }
}

#[inline(always)]
fn shifted(offsets: &[i32; 8]) -> [i32; 8] {
    let mut out = *offsets;
    for offset in &mut out {
        *offset <<= EXCESS;
    }
    out
}

/// By lane, the columns whose block of a group is loud, a bit each.
///
/// # Safety
/// As for [`finish`].
#[inline(always)]
unsafe fn loud_columns(rows: *const Group, count: usize, groups: usize, g: usize) -> [u64; BLOCKS] {
    let mut columns = [0; BLOCKS];
    for c in 0..count {
        // SAFETY: promised by the caller.
        let loud = u64::from(unsafe { (*rows.add(c * groups + g)).loud });
        for lane in 0..BLOCKS {
            columns[lane] |= (loud >> lane & 1) << c;
        }
    }
    columns
}

/// Writes the second terms of all rows, four by four within a group of a lane.
///
/// # Safety
/// As for [`finish`].
unsafe fn write_seconds(rows: *const Group, count: usize, groups: usize, out: *mut Cohort) {
    // SAFETY: promised by the caller; there are at most as many second terms as first ones.
    unsafe {
        let mut counts = [0; BLOCKS];
        for g in 0..groups {
            let columns = loud_columns(rows, count, groups, g);
            for lane in 0..BLOCKS {
                counts[lane] += columns[lane].count_ones().div_ceil(FOUR as u32);
                (*out).loud |= columns[lane];
            }
        }
        for lane in 0..BLOCKS {
            (*out).seconds[lane + 1] = (*out).seconds[lane] + counts[lane];
        }
        if (*out).loud == 0 {
            return;
        }
        let mut next: [*mut FourBlocks; BLOCKS] = each!(|lane: 8| (*out).seconds(lane).0.cast_mut());
        for g in 0..groups {
            let columns = loud_columns(rows, count, groups, g);
            for lane in 0..BLOCKS {
                let mut columns = columns[lane];
                while columns != 0 {
                    let to = next[lane];
                    next[lane] = to.add(1);
                    (*to).group = g as u32;
                    for place in 0..FOUR {
                        // Whatever is in places without a second term, it had better be numbers.
                        let c = if columns != 0 { columns.trailing_zeros() } else { (*to).columns[0].into() };
                        let second = Group::second(rows.add(c as usize * groups + g));
                        write_second(&*second, lane, to, place);
                        (*to).columns[place] = if columns != 0 { c as u8 } else { NOBODY };
                        let begun = columns != 0 && (*out).loud_in[lane] >> c & 1 != 0;
                        (*to).begun[place] = if begun { u16::MAX } else { 0 };
                        (*out).loud_in[lane] |= 1 << c;
                        columns &= columns.wrapping_sub(1);
                    }
                }
            }
        }
    }
}

/// Writes a lane of a second term to a place of four.
#[inline(always)]
unsafe fn write_second(x: &Group, lane: usize, to: *mut FourBlocks, place: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        let quants = (&raw mut (*to).quants[place]).cast::<[i8; 4]>();
        for g in 0..8 {
            quants.add(g).write(x.quants[g][lane]);
        }
        (*to).scales[place] = x.scales[lane];
        (*to).whole_sums[place] = x.whole_sums[lane];
        (*to).whole_starts[place] = x.whole_offsets[lane] << EXCESS;
        for half in 0..2 {
            (*to).sums[half][place] = x.sums[half][lane];
            (*to).starts[half][place] = x.offsets[half][lane] << EXCESS;
        }
    }
}
