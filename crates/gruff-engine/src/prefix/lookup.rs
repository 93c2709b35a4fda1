//! What the tree holds of a prompt.

use gruff_kernels::PAGE_LEN;
use gruff_models::{LoraScales, Snapshot};

use super::{NodeId, PrefixCache};
use crate::pages::Pool;

/// Siblings that are compared with a prompt that parts from all of them within a page, on either side of it.
const NEIGHBOURS: usize = 32;

/// What a sequence can go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Tokens that need not be computed.
    pub(crate) past: usize,
    /// Their pages, of which the sequence is now an owner.
    pub(crate) pages: Vec<u32>,
    /// The tree's when it was found, which the rest is about.
    version: u64,
    /// Where they are in the tree.
    path: Vec<NodeId>,
    /// The node with the snapshot, and which of its snapshots.
    state: Option<(NodeId, usize)>,
}

/// The longest beginning of a prompt that the tree knows.
struct Found {
    past: usize,
    path: Vec<NodeId>,
    state: Option<(NodeId, usize)>,
}

impl PrefixCache {
    /// How many of `tokens` need not be computed; of a whole prompt at least one is left, since its logits are wanted.
    pub(crate) fn reach(&self, key: Option<&LoraScales>, tokens: &[u32]) -> usize {
        let root = self.roots.iter().find(|(own, _)| own.as_ref() == key);
        root.map_or(0, |(_, root)| self.longest(*root, &tokens[..tokens.len().saturating_sub(1)]).past)
    }

    /// Finds what `tokens` can go on from and shares its pages. At least one token is left to compute, since its
    /// logits are wanted; less than a page is not worth a copy.
    pub(crate) fn lookup(
        &mut self,
        pool: &mut Pool,
        key: Option<&LoraScales>,
        tokens: &[u32],
    ) -> Option<Hit> {
        let limit = tokens.len().checked_sub(1)?;
        let (_, root) = self.roots.iter().find(|(own, _)| own.as_ref() == key)?;
        let Found { past, path, state } = self.longest(*root, &tokens[..limit]);
        if past < PAGE_LEN.min(limit) || past == 0 {
            return None;
        }
        let pages: Vec<u32> = path.iter().map(|id| Some(self.node(*id)?.page)).collect::<Option<_>>()?;
        pool.share(&pages);
        Some(Hit { past, pages, version: self.version, path, state })
    }

    /// Counts a sequence that has begun, with what it goes on from.
    pub(crate) fn begun(&mut self, hit: Option<&Hit>) {
        self.stats.lookups += 1;
        let Some(hit) = hit else { return };
        self.stats.hits += 1;
        self.stats.cached_tokens += hit.past as u64;
        if hit.version != self.version {
            return;
        }
        self.clock += 1;
        hit.path.iter().for_each(|id| self.touch(*id));
        if let Some((id, offset)) = hit.state {
            self.touch_snapshot(id, offset);
        }
    }

    /// The state that a hit goes on from; `None` once the tree has changed.
    pub(crate) fn state(&self, hit: &Hit) -> Option<&Snapshot> {
        if hit.version != self.version {
            return None;
        }
        let (id, offset) = hit.state?;
        self.node(id)?.snapshots.get(&offset).map(|held| &*held.snapshot)
    }

    /// Gives up the state that a hit goes on from, since it cannot be had.
    pub(crate) fn lose_state(&mut self, pool: &mut Pool, hit: &Hit) {
        if let Some((id, offset)) = hit.state.filter(|_| hit.version == self.version) {
            self.drop_snapshot(id, offset);
            self.stats.evicted_snapshots += 1;
            self.prune(pool, id);
        }
    }

    fn longest(&self, root: NodeId, tokens: &[u32]) -> Found {
        let (mut at, mut path) = (root, Vec::new());
        let mut best = None;
        for rest in tokens.chunks(PAGE_LEN) {
            // A state may be with a sibling of the child that has more in common.
            if let Some((offset, child)) = self.best_child(at, rest) {
                best = Some((path.len(), offset, child));
            }
            match self.find(at, rest) {
                Some(child) if rest.len() == PAGE_LEN => at = child,
                _ => break,
            }
            path.push(at);
        }
        let Some((whole, offset, child)) = best else {
            return Found { past: 0, path: Vec::new(), state: None };
        };
        path.truncate(whole);
        path.push(child);
        Found { past: whole * PAGE_LEN + offset, path, state: self.recurrent.then_some((child, offset)) }
    }

    /// The child of `parent` that the most of `rest` can be gone on from, and how much. Those that have the most in
    /// common are next to it in order.
    fn best_child(&self, parent: NodeId, rest: &[u32]) -> Option<(usize, NodeId)> {
        let parent = self.node(parent)?;
        let before = parent.children_before(rest).rev().take(NEIGHBOURS);
        let behind = parent.children_from(rest).take(NEIGHBOURS);
        let usable = |(tokens, id): (&[u32], NodeId)| {
            let common = tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
            let offset = if self.recurrent { self.node(id)?.last_snapshot(common)? } else { common };
            (offset > 0).then_some((offset, id))
        };
        before.chain(behind).filter_map(usable).max_by_key(|(offset, _)| *offset)
    }
}
