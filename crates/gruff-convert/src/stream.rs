//! Values from one checkpoint on their way to another, a few rows at a time: memory stays flat whatever the model.

use crate::Result;
use crate::layout::Layout;

/// Values that are in memory at once, unless a row has more.
const CHUNK: u64 = 1 << 20;

/// Where values are read from: a checkpoint's tensors, by name.
pub(crate) trait ReadValues {
    /// Reads `out.len()` values from value `first` on, in the order they are stored. A range is of whole rows.
    fn read(&self, name: &str, first: u64, out: &mut [f32]) -> Result<()>;
}

/// Which tensors the rows of a new tensor are read from, before they are put in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// One tensor.
    Whole(String),
    /// Several tensors of so many rows each, one after the other.
    Stack { names: Vec<String>, rows: u64 },
    /// Of a tensor that is a stack of pairs of matrices of so many rows each, the first (0) or second (1) ones.
    Halves { name: String, rows: u64, half: u64 },
    /// The rows from this one on.
    From { name: String, first: u64 },
}

impl Origin {
    /// The tensor that has a row, and the row's number there.
    fn locate(&self, row: u64) -> (&str, u64) {
        match self {
            Origin::Whole(name) => (name, row),
            Origin::Stack { names, rows } => {
                let name = names.get((row / rows) as usize).map_or("", String::as_str);
                (name, row % rows)
            }
            Origin::Halves { name, rows, half } => (name, (row / rows * 2 + half) * rows + row % rows),
            Origin::From { name, first } => (name, first + row),
        }
    }
}

/// One tensor to be made.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) origin: Origin,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) layout: Layout,
    /// From transformers' order to GGUF's, else back.
    pub(crate) to_gguf: bool,
}

impl Job {
    /// Reads the tensor's values and hands them on, some whole rows at a time.
    pub(crate) fn run(
        &self,
        source: &dyn ReadValues,
        mut sink: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let columns = self.columns as usize;
        let most = (CHUNK / self.columns.max(1)).max(1);
        let (row_order, column_order) = self.layout.order(self.to_gguf);
        let mut values = vec![0.0; (most.min(self.rows) as usize) * columns];
        let mut ordered = vec![0.0; if column_order.is_some() { columns } else { 0 }];
        let mut row = 0;
        while row < self.rows {
            let count = most.min(self.rows - row);
            let values = &mut values[..count as usize * columns];
            let place = |row| self.origin.locate(row_order.map_or(row, |order| order.source(row)));
            // Neighbours there are read together.
            let mut at = 0;
            while at < count {
                let (name, first) = place(row + at);
                let mut run = 1;
                while at + run < count && place(row + at + run) == (name, first + run) {
                    run += 1;
                }
                let range = at as usize * columns..(at + run) as usize * columns;
                source.read(name, first * self.columns, &mut values[range])?;
                at += run;
            }
            if let Some(order) = column_order {
                for row in values.chunks_exact_mut(columns) {
                    for (position, value) in ordered.iter_mut().enumerate() {
                        *value = row[order.source(position as u64) as usize];
                    }
                    row.copy_from_slice(&ordered);
                }
            }
            self.layout.apply(self.to_gguf, values);
            sink(values)?;
            row += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Transpose;

    /// Tensors whose values are their own positions, plus a thousand for each letter of the name.
    struct Counting;

    impl ReadValues for Counting {
        fn read(&self, name: &str, first: u64, out: &mut [f32]) -> Result<()> {
            let base = f32::from(name.as_bytes()[0] - b'a') * 1000.0;
            out.iter_mut().enumerate().for_each(|(at, v)| *v = base + (first + at as u64) as f32);
            Ok(())
        }
    }

    fn run(origin: Origin, rows: u64, columns: u64, layout: Layout) -> Vec<f32> {
        let mut all = Vec::new();
        let job = Job { origin, rows, columns, layout, to_gguf: true };
        job.run(&Counting, |values| {
            all.extend_from_slice(values);
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn rows_come_from_where_they_are() {
        let plain = Layout::default();
        assert_eq!(run(Origin::Whole("a".into()), 2, 2, plain), [0.0, 1.0, 2.0, 3.0]);
        let stack = Origin::Stack { names: vec!["a".into(), "b".into()], rows: 2 };
        assert_eq!(run(stack, 4, 1, plain), [0.0, 1.0, 1000.0, 1001.0]);
        let second = Origin::Halves { name: "a".into(), rows: 1, half: 1 };
        assert_eq!(run(second, 2, 2, plain), [2.0, 3.0, 6.0, 7.0]);
        let from = Origin::From { name: "a".into(), first: 3 };
        assert_eq!(run(from, 2, 2, plain), [6.0, 7.0, 8.0, 9.0]);
    }

    #[test]
    fn orders_apply_to_rows_and_columns() {
        let order = Some(Transpose { skip: 0, outer: 1, a: 2, b: 2, inner: 1 });
        let rows = Layout { rows: order, ..Layout::default() };
        assert_eq!(run(Origin::Whole("a".into()), 4, 1, rows), [0.0, 2.0, 1.0, 3.0]);
        let columns = Layout { columns: order, ..Layout::default() };
        assert_eq!(run(Origin::Whole("a".into()), 2, 4, columns), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn long_tensors_come_in_pieces() {
        let rows = CHUNK / 512 * 3 + 1;
        let values = run(Origin::Whole("a".into()), rows, 512, Layout::default());
        assert_eq!(values.len() as u64, rows * 512);
        assert_eq!(values.last(), Some(&((rows * 512 - 1) as f32)));
    }
}
