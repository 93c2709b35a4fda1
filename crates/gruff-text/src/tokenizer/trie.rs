//! All tokens that begin at a position of a text, found byte by byte.

/// A set of byte strings, each with an id, as a tree of bytes.
///
/// Nodes are numbered level by level, so the children of a node stand side by side, sorted by their byte.
#[derive(Debug)]
pub(crate) struct Trie {
    /// The first child of each node, and one entry more: those of node `n` are `first[n]..first[n + 1]`.
    first: Vec<u32>,
    /// The byte that leads to each node.
    bytes: Vec<u8>,
    /// The id of the string that ends at each node.
    ids: Vec<Option<u32>>,
}

const ROOT: usize = 0;

impl Trie {
    /// The tree of these strings, which differ; empty ones are left out.
    pub(crate) fn new<'a>(strings: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
        let mut sorted: Vec<(&[u8], u32)> = strings.filter(|(string, _)| !string.is_empty()).collect();
        sorted.sort_unstable();
        let mut trie = Trie { first: Vec::new(), bytes: vec![0], ids: vec![None] };
        // The strings below each node of a level, as a range of `sorted`.
        let mut level = vec![(0, sorted.len())];
        let mut depth = 0;
        while !level.is_empty() {
            let mut below = Vec::new();
            for (mut from, to) in level {
                trie.first.push(trie.bytes.len() as u32);
                while from < to {
                    let byte = sorted[from].0[depth];
                    let same = sorted[from..to].partition_point(|(string, _)| string[depth] == byte);
                    let until = from + same;
                    trie.bytes.push(byte);
                    let ends = sorted[from].0.len() == depth + 1;
                    trie.ids.push(ends.then_some(sorted[from].1));
                    // Of equal strings, only the first counts.
                    let longer = from + sorted[from..until].partition_point(|(s, _)| s.len() == depth + 1);
                    below.push((longer, until));
                    from = until;
                }
            }
            level = below;
            depth += 1;
        }
        trie.first.push(trie.bytes.len() as u32);
        trie
    }

    fn child(&self, node: usize, byte: u8) -> Option<usize> {
        let children = self.first[node] as usize..self.first[node + 1] as usize;
        self.bytes[children.clone()].binary_search(&byte).ok().map(|at| children.start + at)
    }

    /// Every string that `text` begins with, shortest first: its length and id.
    pub(crate) fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = Some(ROOT);
        text.iter()
            .enumerate()
            .map_while(move |(at, &byte)| {
                node = self.child(node?, byte);
                node.map(|node| self.ids[node].map(|id| (at + 1, id)))
            })
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_come_shortest_first() {
        let strings = ["a", "abc", "ab\u{e9}", "b", "", "abcd"];
        let trie = Trie::new(strings.iter().enumerate().map(|(id, s)| (s.as_bytes(), id as u32)));
        let found = |text: &str| trie.prefixes(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(found("abcx"), [(1, 0), (3, 1)]);
        assert_eq!(found("abcd"), [(1, 0), (3, 1), (4, 5)]);
        assert_eq!(found("ab\u{e9}"), [(1, 0), (4, 2)]);
        assert_eq!(found("ba"), [(1, 3)]);
        assert_eq!(found("c"), []);
        assert_eq!(found(""), []);
        assert_eq!(Trie::new(std::iter::empty()).prefixes(b"a").count(), 0);
    }
}
