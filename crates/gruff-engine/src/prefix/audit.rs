//! What always holds of the tree.

use std::collections::BTreeSet;

use gruff_kernels::PAGE_LEN;

use super::PrefixCache;

impl PrefixCache {
    /// Checks the tree against its own book-keeping.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let (mut pages, mut snapshots, mut bytes) = (0, BTreeSet::new(), 0);
        let mut leaves = BTreeSet::new();
        let nodes = self.nodes.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)));
        for (id, node) in nodes {
            let fault = |what: &str| Err(format!("node {id} {what}"));
            for (tokens, child) in &node.children {
                let known = self.nodes.get(*child).and_then(Option::as_ref);
                if !known.is_some_and(|known| known.parent == Some(id) && known.tokens == *tokens) {
                    return fault("has a child that does not know it");
                }
            }
            let mut siblings = node.children.keys().zip(node.children.keys().skip(1));
            if siblings.any(|(before, behind)| behind.starts_with(before)) {
                return fault("has a child that begins as another");
            }
            for (offset, held) in &node.snapshots {
                snapshots.insert((held.used, id, *offset));
                bytes += held.snapshot.bytes() as u64;
                if *offset == 0 || *offset > node.tokens.len() {
                    return fault("has a snapshot behind tokens that it does not have");
                }
            }
            if node.parent.is_none() {
                if node.children.is_empty() || !self.roots.iter().any(|(_, root)| *root == id) {
                    return fault("is a root of nothing");
                }
                continue;
            }
            pages += 1;
            if !(1..=PAGE_LEN).contains(&node.tokens.len()) {
                return fault("has not a page's worth of tokens");
            }
            if node.children.is_empty() {
                leaves.insert((node.used, id));
                if self.recurrent && node.snapshots.is_empty() {
                    return fault("is a leaf that nobody can go on from");
                }
            } else if node.tokens.len() < PAGE_LEN {
                return fault("has children, but does not fill its page");
            }
        }
        let held = (self.stats.pages, self.stats.snapshots, self.stats.snapshot_bytes);
        if held != (pages, snapshots.len(), bytes) || bytes > self.budget {
            return Err(format!("{held:?} are counted, {pages}, {} and {bytes} held", snapshots.len()));
        }
        if leaves != self.leaves || snapshots != self.snapshots {
            return Err("the order of use is not that of the nodes".to_owned());
        }
        Ok(())
    }
}
