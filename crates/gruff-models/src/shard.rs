//! Which part of a model's matrices one of several devices has that compute every step together (tensor parallelism).
//!
//! Rows of what reads the residual stream (queries, keys and values, gate and up, the head) and columns of what writes to it
//! (the output of attention, down) are shared out: between the two a device needs nothing of the others, and behind the second
//! the devices' results are added. What every device needs whole (norms, routers, the embedding table) each has.

use std::ops::Range;

use gruff_blocks::BlockType;
use gruff_kernels::ForeignBytes;
use std::sync::Arc;

use crate::{Error, Result};

/// One device's number among those that compute together, and how many there are: 0 of 1 where a model is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) rank: usize,
    pub(crate) of: usize,
}

/// The heads of an attention block that a device computes.
pub(crate) struct HeadShare {
    pub(crate) queries: Range<usize>,
    /// One that others have, too, where there are fewer than devices.
    pub(crate) keys: Range<usize>,
}

impl Shard {
    pub(crate) const WHOLE: Self = Self { rank: 0, of: 1 };

    pub(crate) fn is_whole(self) -> bool {
        self.of == 1
    }

    /// Its part of `count` things, of which all have as many; `what` they are stands in the error.
    pub(crate) fn even(self, what: &str, count: usize) -> Result<Range<usize>> {
        let Self { rank, of } = self;
        if !count.is_multiple_of(of) {
            return Err(self.refuse(format!("{count} {what} cannot be shared out evenly")));
        }
        Ok(rank * (count / of)..(rank + 1) * (count / of))
    }

    /// Its part of `len` things in whole units, as even as those can be; `None` where there are fewer of them than devices.
    pub(crate) fn in_units(self, len: usize, unit: usize) -> Option<Range<usize>> {
        self.in_units_and_rest(len, unit).filter(|_| len.is_multiple_of(unit))
    }

    /// The same where the last unit need not be whole.
    pub(crate) fn in_units_and_rest(self, len: usize, unit: usize) -> Option<Range<usize>> {
        let Self { rank, of } = self;
        let units = len.div_ceil(unit);
        let border = |rank: usize| (rank * units / of * unit).min(len);
        (units >= of).then(|| border(rank)..border(rank + 1))
    }

    /// Its heads of an attention block. Every query head is beside its key-value head.
    pub(crate) fn heads(self, module: &str, heads: usize, kv_heads: usize) -> Result<HeadShare> {
        let Self { rank, of } = self;
        let queries = self.even(&format!("query heads of {module}"), heads)?;
        let keys = match of.is_multiple_of(kv_heads) {
            true => rank * kv_heads / of..rank * kv_heads / of + 1,
            false => self.even(&format!("key-value heads of {module}"), kv_heads)?,
        };
        Ok(HeadShare { queries, keys })
    }

    /// Its part of a width that is the columns of a matrix of this type: whole blocks, and whole groups of 256 values, which
    /// cards read at once, where there are enough of them.
    pub(crate) fn columns(self, module: &str, width: usize, block_type: BlockType) -> Result<Range<usize>> {
        const GROUP: usize = 256;
        let groups = self.in_units(width, GROUP.max(block_type.values()));
        groups.or_else(|| self.in_units(width, block_type.values())).ok_or_else(|| {
            let values = block_type.values();
            self.refuse(format!(
                "{module} has {width} columns in blocks of {values} ({block_type}), too few to share out"
            ))
        })
    }

    pub(crate) fn refuse(self, fault: String) -> Error {
        Error::Shard { of: self.of, fault }
    }
}

/// Some of the rows or columns of a matrix: all, or ranges one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Ranges(Vec<Range<usize>>),
}

impl Part {
    /// These ranges of `len`.
    pub(crate) fn new(ranges: impl IntoIterator<Item = Range<usize>>, len: usize) -> Self {
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => merged.push(range),
            }
        }
        if let [only] = merged.as_slice()
            && *only == (0..len)
        {
            return Self::All;
        }
        Self::Ranges(merged)
    }

    /// This range of `len`.
    pub(crate) fn range(range: Range<usize>, len: usize) -> Self {
        Self::new(std::iter::once(range), len)
    }

    /// The rows of these heads, of which there are `heads`, where each has so many.
    pub(crate) fn of_heads(heads: &[Range<usize>], each: usize, all: usize) -> Self {
        Self::new(heads.iter().map(|heads| heads.start * each..heads.end * each), all * each)
    }

    /// Parts of several matrices that lie one behind the other in one, each with its length.
    pub(crate) fn stacked(parts: &[(&Part, usize)]) -> Self {
        let mut start = 0;
        let mut ranges = Vec::new();
        for (part, len) in parts {
            ranges.extend(part.ranges(*len).into_iter().map(|range| start + range.start..start + range.end));
            start += len;
        }
        Self::new(ranges, start)
    }

    /// The same part of the rows from `start` on, where there are `len` of `all`.
    pub(crate) fn within(&self, start: usize, len: usize, all: usize) -> Self {
        let ranges = self.ranges(len).into_iter().map(|range| start + range.start..start + range.end);
        Self::new(ranges, all)
    }

    /// How many there are of `all`.
    pub(crate) fn count(&self, all: usize) -> usize {
        self.ranges(all).iter().map(Range::len).sum()
    }

    fn ranges(&self, all: usize) -> Vec<Range<usize>> {
        match self {
            Self::All => std::iter::once(0..all).collect(),
            Self::Ranges(ranges) => ranges.clone(),
        }
    }

    /// These rows of `width` values.
    pub(crate) fn of_values(&self, values: Vec<f32>, width: usize) -> Vec<f32> {
        match self {
            Self::All => values,
            Self::Ranges(ranges) => {
                let rows = ranges.iter().map(|rows| &values[rows.start * width..rows.end * width]);
                rows.flatten().copied().collect()
            }
        }
    }
}

/// A part of bytes that somebody else keeps.
struct Slice {
    owner: ForeignBytes,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

/// The bytes of some rows and columns of packed matrices `[matrices, rows, cols]`, packed as they are: borrowed where they lie
/// together, else copied.
///
/// # Errors
/// [`Error::Kernel`] when ranges of columns are not whole blocks.
pub(crate) fn cut(
    bytes: ForeignBytes,
    block_type: BlockType,
    [matrices, rows, cols]: [usize; 3],
    part: [&Part; 2],
) -> Result<ForeignBytes> {
    let row_bytes = |cols| block_type.row_bytes(cols).map_err(gruff_kernels::Error::from);
    let row = row_bytes(cols)?;
    let [row_ranges, col_ranges] = [part[0].ranges(rows), part[1].ranges(cols)];
    if let (Part::All, [range], 1) = (part[1], row_ranges.as_slice(), matrices) {
        let range = range.start * row..range.end * row;
        return Ok(Arc::new(Slice { owner: bytes, range }));
    }
    let columns = col_ranges.iter().map(|range| Ok(row_bytes(range.start)?..row_bytes(range.end)?));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let all = (*bytes).as_ref();
    let width: usize = columns.iter().map(Range::len).sum();
    let count: usize = row_ranges.iter().map(Range::len).sum();
    let mut kept = Vec::with_capacity(matrices * count * width);
    for matrix in 0..matrices {
        for index in row_ranges.iter().flat_map(Clone::clone) {
            let row = &all[(matrix * rows + index) * row..][..row];
            columns.iter().for_each(|range| kept.extend_from_slice(&row[range.clone()]));
        }
    }
    Ok(Arc::new(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(of: usize) -> impl Iterator<Item = Shard> {
        (0..of).map(move |rank| Shard { rank, of })
    }

    #[test]
    fn parts_are_all_there_is_and_nothing_twice() {
        for of in 1..9 {
            for (len, unit) in [(1000, 1), (4096, 256), (96, 32), (64, 32), (17, 17)] {
                let parts: Vec<_> = shards(of).map(|shard| shard.in_units(len, unit)).collect();
                if len / unit < of {
                    assert!(parts.iter().all(Option::is_none));
                    continue;
                }
                let all: Vec<usize> = parts.into_iter().flatten().flatten().collect();
                assert_eq!(all, (0..len).collect::<Vec<_>>(), "{len} in {unit} by {of}");
            }
        }
        assert_eq!(Shard::WHOLE.in_units(7, 7), Some(0..7));
        assert!(Shard { rank: 0, of: 2 }.in_units(33, 32).is_none());
        let with_rest = |of| shards(of).map(|shard| shard.in_units_and_rest(33, 8)).collect::<Vec<_>>();
        assert_eq!(with_rest(2), [Some(0..16), Some(16..33)]);
        assert_eq!(with_rest(5)[3..], [Some(24..32), Some(32..33)]);
        assert_eq!(with_rest(6), [const { None }; 6]);
    }

    #[test]
    fn query_heads_are_beside_their_keys() {
        for (heads, kv_heads, of) in
            [(8, 4, 2), (8, 2, 4), (8, 2, 8), (6, 3, 3), (8, 8, 4), (16, 1, 8), (5, 5, 1)]
        {
            let mut seen = Vec::new();
            for shard in shards(of) {
                let HeadShare { queries, keys } =
                    shard.heads("it", heads, kv_heads).expect("they can be shared out");
                let group = queries.len() / keys.len();
                for (index, query) in queries.clone().enumerate() {
                    assert_eq!(
                        query / (heads / kv_heads),
                        keys.start + index / group,
                        "{heads}, {kv_heads}, {of}"
                    );
                }
                seen.extend(queries);
            }
            assert_eq!(seen, (0..heads).collect::<Vec<_>>());
        }
        for (heads, kv_heads, of) in [(9, 3, 2), (6, 2, 3), (12, 4, 6)] {
            let told = Shard { rank: 0, of }.heads("it", heads, kv_heads).err().expect("refused").to_string();
            assert!(told.contains("heads of it") && told.contains("--split-mode layer"), "{told}");
        }
    }

    #[test]
    fn columns_are_whole_blocks_and_groups_where_there_are_enough() {
        let second = Shard { rank: 1, of: 2 };
        assert_eq!(second.columns("it", 1024, BlockType::Q4_0).unwrap(), 512..1024);
        assert_eq!(second.columns("it", 768, BlockType::Q4_K).unwrap(), 256..768);
        assert_eq!(second.columns("it", 96, BlockType::Q8_0).unwrap(), 32..96);
        assert!(second.columns("it", 256, BlockType::Q4_K).is_err());
    }

    #[test]
    fn cuts_have_the_rows_and_columns_of_the_whole() {
        let [matrices, rows, cols] = [3, 6, 128];
        let block = BlockType::Q8_0;
        let values: Vec<f32> = (0..matrices * rows * cols).map(|at| (at as f32 * 0.37).sin()).collect();
        let mut bytes = vec![0; matrices * rows * block.row_bytes(cols).unwrap()];
        block.pack(&values, &mut bytes).unwrap();
        let whole = block.unpack_to_vec(&bytes).unwrap();
        let bytes: ForeignBytes = Arc::new(bytes);
        let two = Part::new([1..2, 3..5], rows);
        let strips = Part::new([0..32, 64..96], cols);
        for part in [[&Part::All, &Part::All], [&two, &Part::All], [&Part::All, &strips], [&two, &strips]] {
            let kept = cut(bytes.clone(), block, [matrices, rows, cols], part).unwrap();
            let found = block.unpack_to_vec((*kept).as_ref()).unwrap();
            let mut expected = Vec::new();
            for matrix in 0..matrices {
                for row in part[0].ranges(rows).into_iter().flatten() {
                    for col in part[1].ranges(cols).into_iter().flatten() {
                        expected.push(whole[(matrix * rows + row) * cols + col]);
                    }
                }
            }
            assert_eq!(found, expected, "{part:?}");
        }
        let odd = Part::range(0..16, cols);
        assert!(cut(bytes, block, [matrices, rows, cols], [&Part::All, &odd]).is_err());
    }

    #[test]
    fn parts_of_stacked_matrices_lie_where_those_do() {
        let (a, b) = (Part::range(1..2, 2), Part::new([0..1, 2..3], 4));
        assert_eq!(Part::stacked(&[(&a, 2), (&b, 4)]), Part::Ranges(vec![1..3, 4..5]));
        assert_eq!(Part::stacked(&[(&Part::All, 2), (&Part::All, 4)]), Part::All);
        assert_eq!(a.within(2, 2, 6), Part::range(3..4, 6));
        assert_eq!((a.count(2), b.count(4), Part::All.count(4)), (1, 2, 4));
        assert_eq!(b.of_values((0..8).map(|value| value as f32).collect(), 2), [0.0, 1.0, 4.0, 5.0]);
        assert_eq!(Part::of_heads(&[0..2, 2..4], 3, 4), Part::All);
    }
}
