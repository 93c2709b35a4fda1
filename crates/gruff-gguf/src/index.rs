//! Finding records by name, without a second copy of the names.

/// Something that is looked up by its name.
pub(crate) trait Named {
    /// The name.
    fn name(&self) -> &str;
}

/// Positions of records, in the order of the records' names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index(Vec<usize>);

impl Index {
    /// Sorts `records` by name; the position of the second of two records of one name is the error.
    pub(crate) fn new<T: Named>(records: &[T]) -> Result<Self, usize> {
        let mut order: Vec<usize> = (0..records.len()).collect();
        order.sort_by(|&a, &b| records[a].name().cmp(records[b].name()));
        match order.windows(2).find(|pair| records[pair[0]].name() == records[pair[1]].name()) {
            Some(pair) => Err(pair[1]),
            None => Ok(Index(order)),
        }
    }

    /// The position of the record called `name`.
    pub(crate) fn find<T: Named>(&self, records: &[T], name: &str) -> Option<usize> {
        self.place(records, name).ok().map(|place| self.0[place])
    }

    /// Enters the record that was just appended to `records`; its name must be new.
    pub(crate) fn append<T: Named>(&mut self, records: &[T]) {
        let Some(last) = records.last() else { return };
        let place = self.place(records, last.name()).unwrap_or_else(|place| place);
        self.0.insert(place, records.len() - 1);
    }

    /// Forgets the record at `position`, which is taken out of the records.
    pub(crate) fn remove(&mut self, position: usize) {
        self.0.retain(|&p| p != position);
        for p in &mut self.0 {
            *p -= usize::from(*p > position);
        }
    }

    fn place<T: Named>(&self, records: &[T], name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|&p| records[p].name().cmp(name))
    }
}

/// The up to three names closest to `wanted` by edit distance, if any is close.
pub(crate) fn similar<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let allowed = 2 + wanted.len() / 5;
    let mut close: Vec<(usize, &str)> = names
        .filter(|name| name.len().abs_diff(wanted.len()) <= allowed)
        .map(|name| (distance(wanted, name), name))
        .filter(|(distance, _)| *distance <= allowed)
        .collect();
    close.sort();
    close.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitution = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Named for &str {
        fn name(&self) -> &str {
            self
        }
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn similar_names_come_best_first() {
        let names = ["blk.0.attn_k.weight", "blk.0.attn_q.weight", "output.weight", "blk.0.attn_qkv.weight"];
        let found = similar("blk.0.attn_q.wieght", names.into_iter());
        assert_eq!(found[0], "blk.0.attn_q.weight");
        assert!(!found.iter().any(|name| name == "output.weight"));
    }

    #[test]
    fn index_finds_appends_and_removes() {
        let mut records = vec!["b", "a", "d"];
        let mut index = Index::new(&records).unwrap();
        records.push("c");
        index.append(&records);
        for (position, name) in records.iter().enumerate() {
            assert_eq!(index.find(&records, name), Some(position));
        }
        assert_eq!(index.find(&records, "e"), None);
        records.remove(1);
        index.remove(1);
        assert_eq!(index.find(&records, "a"), None);
        assert_eq!(index.find(&records, "d"), Some(1));
        assert_eq!(Index::new(&["x", "y", "x"]).unwrap_err(), 2);
    }
}
