//! What was computed for earlier tokens, to be continued: a radix tree over tokens.
//!
//! Each edge is as long as a page, so a node owns exactly one page of keys and values; only a leaf may hold fewer
//! tokens than its page has room for. A sequence that begins with the tokens on a path from the root shares the path's
//! pages. Models with recurrent state can go on only where a [`Snapshot`] of it was kept; of those, nodes hold some.
//!
//! Pages are the pool's: the tree is one owner among others, and gives up the leaves that were not used for the
//! longest time when the pool runs out. Snapshots are held to a number of bytes, by the same rule.

mod audit;
mod lookup;
mod node;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use gruff_kernels::PAGE_LEN;
use gruff_models::{LoraScales, Snapshot};

pub(crate) use lookup::Hit;
use node::{Held, Node};

use crate::pages::Pool;

/// Index of a node.
type NodeId = usize;

/// Of `len` tokens, those in the last page.
fn offset_of(len: usize) -> usize {
    len - len.saturating_sub(1) / PAGE_LEN * PAGE_LEN
}

/// What the cache did so far, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Sequences that began, each of which looked for its prompt.
    pub lookups: u64,
    /// Those that found some of it.
    pub hits: u64,
    /// Tokens that did not have to be computed.
    pub cached_tokens: u64,
    /// Pages of keys and values held now, those included that sequences in progress use.
    pub pages: usize,
    /// Snapshots of recurrent state held now.
    pub snapshots: usize,
    /// Bytes of those.
    pub snapshot_bytes: u64,
    /// Pages given up so far, to be written anew.
    pub evicted_pages: u64,
    /// Snapshots given up so far.
    pub evicted_snapshots: u64,
}

/// A leaf with what leads to it.
pub(crate) struct Branch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) pages: Vec<u32>,
    /// In order of length.
    pub(crate) snapshots: Vec<Arc<Snapshot>>,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    /// Whether a sequence can go on from snapshots only.
    recurrent: bool,
    /// Bytes of snapshots held at most.
    budget: u64,
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    /// A tree for each set of adapters that tokens were computed with.
    roots: Vec<(Option<LoraScales>, NodeId)>,
    /// Leaves by when they were used last.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Snapshots by when they were used last: node, and tokens of its page that they stand behind.
    snapshots: BTreeSet<(u64, NodeId, usize)>,
    clock: u64,
    /// Grows when nodes or snapshots come or go.
    version: u64,
    stats: CacheStats,
}

impl PrefixCache {
    pub(crate) fn new(recurrent: bool, budget: u64) -> Self {
        Self {
            recurrent,
            budget,
            nodes: Vec::new(),
            vacant: Vec::new(),
            roots: Vec::new(),
            leaves: BTreeSet::new(),
            snapshots: BTreeSet::new(),
            clock: 0,
            version: 0,
            stats: CacheStats::default(),
        }
    }

    /// Another one whenever something was taken in or used.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    pub(crate) fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Takes in what was computed for `tokens` with the adapters of `key`: shares those of `pages` that hold what the
    /// tree does not, and puts the tree's own in the place of whole pages that it has already, so that sequences which
    /// computed the same hold it once. For a model with recurrent state, with the state behind the last token.
    pub(crate) fn insert(
        &mut self,
        pool: &mut Pool,
        key: Option<&LoraScales>,
        tokens: &[u32],
        pages: &mut [u32],
        snapshot: Option<Snapshot>,
    ) {
        let useful = match &snapshot {
            Some(snapshot) => self.make_room(pool, snapshot),
            None => !self.recurrent || self.has_snapshot(key, tokens),
        };
        if !useful || tokens.is_empty() {
            return;
        }
        self.clock += 1;
        let mut at = self.root(key);
        for (chunk, page) in tokens.chunks(PAGE_LEN).zip(pages) {
            let found = self.find(at, chunk).and_then(|found| Some((found, self.node(found)?.page)));
            at = match found {
                Some((found, own)) => {
                    if own != *page && chunk.len() == PAGE_LEN {
                        pool.share(&[own]);
                        pool.give_back([std::mem::replace(page, own)]);
                    }
                    found
                }
                None => match self.add(pool, at, chunk, *page) {
                    Some(added) => added,
                    None => return,
                },
            };
            self.touch(at);
        }
        let offset = offset_of(tokens.len());
        match snapshot {
            Some(snapshot) => self.hold(at, offset, snapshot),
            None => self.touch_snapshot(at, offset),
        }
    }

    /// Whether a snapshot behind exactly these tokens is held.
    pub(crate) fn has_snapshot(&self, key: Option<&LoraScales>, tokens: &[u32]) -> bool {
        let Some(mut at) = self.roots.iter().find(|(own, _)| own.as_ref() == key).map(|(_, root)| *root)
        else {
            return false;
        };
        for chunk in tokens.chunks(PAGE_LEN) {
            let Some(found) = self.find(at, chunk) else { return false };
            at = found;
        }
        self.node(at).is_some_and(|node| node.snapshots.contains_key(&offset_of(tokens.len())))
    }

    /// Gives up the leaf that was not used for the longest time, of those whose page nobody else uses.
    pub(crate) fn evict(&mut self, pool: &mut Pool) -> bool {
        let unused = |(_, id): &&(u64, NodeId)| self.node(*id).is_some_and(|node| !pool.is_shared(node.page));
        let Some((_, id)) = self.leaves.iter().find(unused).copied() else { return false };
        self.remove(pool, id);
        true
    }

    /// Gives up a leaf whose page is one of these, though others use it; `false` when there is none.
    pub(crate) fn give_up(&mut self, pool: &mut Pool, pages: &[u32]) -> bool {
        let named = |(_, id): &&(u64, NodeId)| self.node(*id).is_some_and(|node| pages.contains(&node.page));
        let Some((_, id)) = self.leaves.iter().find(named).copied() else { return false };
        self.remove(pool, id);
        true
    }

    /// Pages that would be free if the tree gave up everything.
    pub(crate) fn evictable(&self, pool: &Pool) -> usize {
        self.nodes.iter().flatten().filter(|node| node.owns_page() && !pool.is_shared(node.page)).count()
    }

    /// Gives up everything.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        pool.give_back(self.pages());
        let stats = CacheStats { pages: 0, snapshots: 0, snapshot_bytes: 0, ..self.stats };
        let (clock, version) = (self.clock, self.version + 1);
        *self = Self { stats, clock, version, ..Self::new(self.recurrent, self.budget) };
    }

    /// The pages that the tree owns.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.iter().flatten().filter(|node| node.owns_page()).map(|node| node.page)
    }

    /// All that was computed without scales of one's own, a branch for each leaf, those used last first.
    pub(crate) fn branches(&self) -> impl Iterator<Item = Branch> {
        let plain = self.roots.iter().find(|(key, _)| key.is_none()).map(|(_, root)| *root);
        self.leaves.iter().rev().filter_map(move |(_, leaf)| self.branch(*leaf, plain?))
    }

    fn branch(&self, leaf: NodeId, root: NodeId) -> Option<Branch> {
        let above = |id: &NodeId| self.node(*id)?.parent;
        let mut path: Vec<NodeId> = std::iter::successors(Some(leaf), above).collect();
        if path.pop() != Some(root) {
            return None;
        }
        path.reverse();
        let nodes: Vec<&Node> = path.iter().map(|id| self.node(*id)).collect::<Option<_>>()?;
        let nodes = || nodes.iter();
        Some(Branch {
            tokens: nodes().flat_map(|node| node.tokens.iter().copied()).collect(),
            pages: nodes().map(|node| node.page).collect(),
            snapshots: nodes()
                .flat_map(|node| node.snapshots.values().map(|held| held.snapshot.clone()))
                .collect(),
        })
    }

    /// Gives up the snapshots that were not used for the longest time until there is room for this one.
    fn make_room(&mut self, pool: &mut Pool, snapshot: &Snapshot) -> bool {
        let bytes = snapshot.bytes() as u64;
        if bytes > self.budget {
            return false;
        }
        while self.stats.snapshot_bytes + bytes > self.budget {
            let Some((used, id, offset)) = self.snapshots.first().copied() else { return false };
            self.drop_snapshot(id, offset);
            self.snapshots.remove(&(used, id, offset));
            self.stats.evicted_snapshots += 1;
            self.prune(pool, id);
        }
        true
    }

    /// The root of a set of adapters.
    fn root(&mut self, key: Option<&LoraScales>) -> NodeId {
        if let Some((_, root)) = self.roots.iter().find(|(own, _)| own.as_ref() == key) {
            return *root;
        }
        let root = self.store(Node::root());
        self.roots.push((key.cloned(), root));
        root
    }

    /// The child that holds `chunk`: all of it, and no more where that fills a page.
    fn find(&self, parent: NodeId, chunk: &[u32]) -> Option<NodeId> {
        let (tokens, id) = self.node(parent)?.children_from(chunk).next()?;
        tokens.starts_with(chunk).then_some(id)
    }

    /// A new leaf, one more owner of its page. One that holds a part of the same tokens is taken up into it.
    fn add(&mut self, pool: &mut Pool, parent: NodeId, chunk: &[u32], page: u32) -> Option<NodeId> {
        let shorter = self.node(parent)?.children_before(chunk).next_back();
        let shorter = shorter.filter(|(tokens, _)| chunk.starts_with(tokens)).map(|(_, id)| id);
        let used = self.clock;
        pool.share(&[page]);
        let id = self.store(Node::leaf(parent, chunk, page, used));
        self.stats.pages += 1;
        self.leaves.insert((used, id));
        let siblings = self.node_mut(parent)?;
        if siblings.children.is_empty() {
            let before = (siblings.used, parent);
            self.leaves.remove(&before);
        }
        self.node_mut(parent)?.children.insert(chunk.into(), id);
        if let Some((shorter, part)) = shorter.and_then(|shorter| Some((shorter, self.node_mut(shorter)?))) {
            for (offset, held) in std::mem::take(&mut part.snapshots) {
                self.snapshots.remove(&(held.used, shorter, offset));
                self.snapshots.insert((held.used, id, offset));
                self.node_mut(id)?.snapshots.insert(offset, held);
            }
            self.unlink(pool, shorter);
        }
        Some(id)
    }

    /// Keeps a snapshot behind the first `offset` tokens of a node.
    fn hold(&mut self, id: NodeId, offset: usize, snapshot: Snapshot) {
        self.drop_snapshot(id, offset);
        self.version += 1;
        let (used, bytes) = (self.clock, snapshot.bytes() as u64);
        let Some(node) = self.node_mut(id) else { return };
        node.snapshots.insert(offset, Held { snapshot: Arc::new(snapshot), used });
        self.stats.snapshots += 1;
        self.stats.snapshot_bytes += bytes;
        self.snapshots.insert((used, id, offset));
    }

    fn drop_snapshot(&mut self, id: NodeId, offset: usize) {
        if let Some(held) = self.node_mut(id).and_then(|node| node.snapshots.remove(&offset)) {
            self.version += 1;
            self.snapshots.remove(&(held.used, id, offset));
            self.stats.snapshots -= 1;
            self.stats.snapshot_bytes -= held.snapshot.bytes() as u64;
        }
    }

    /// A node was used now.
    fn touch(&mut self, id: NodeId) {
        let clock = self.clock;
        let Some(node) = self.node_mut(id) else { return };
        let before = std::mem::replace(&mut node.used, clock);
        if self.leaves.remove(&(before, id)) {
            self.leaves.insert((clock, id));
        }
    }

    /// A snapshot was used now.
    fn touch_snapshot(&mut self, id: NodeId, offset: usize) {
        let clock = self.clock;
        let held = self.node_mut(id).and_then(|node| node.snapshots.get_mut(&offset));
        let Some(held) = held else { return };
        let before = std::mem::replace(&mut held.used, clock);
        self.snapshots.remove(&(before, id, offset));
        self.snapshots.insert((clock, id, offset));
    }

    /// Gives up a leaf, and what is above it of no more use.
    fn remove(&mut self, pool: &mut Pool, id: NodeId) {
        let Some(node) = self.node(id) else { return };
        let (parent, offsets) = (node.parent, node.snapshots.keys().copied().collect::<Vec<usize>>());
        self.stats.evicted_snapshots += offsets.len() as u64;
        for offset in offsets {
            self.drop_snapshot(id, offset);
        }
        self.unlink(pool, id);
        self.stats.evicted_pages += 1;
        if let Some(parent) = parent {
            self.prune(pool, parent);
        }
    }

    /// Gives up a node without children and those above it, as far as no sequence can go on from them.
    fn prune(&mut self, pool: &mut Pool, mut id: NodeId) {
        while let Some(node) = self.node(id) {
            let useful = node.parent.is_some() && !(self.recurrent && node.snapshots.is_empty());
            if useful || !node.children.is_empty() {
                return;
            }
            let parent = node.parent;
            self.unlink(pool, id);
            let Some(parent) = parent else { return };
            self.stats.evicted_pages += 1;
            id = parent;
        }
    }

    /// Takes a childless node without snapshots out of the tree.
    fn unlink(&mut self, pool: &mut Pool, id: NodeId) {
        let Some(node) = self.nodes.get_mut(id).and_then(Option::take) else { return };
        self.version += 1;
        self.vacant.push(id);
        self.leaves.remove(&(node.used, id));
        let Some(parent) = node.parent else {
            self.roots.retain(|(_, root)| *root != id);
            return;
        };
        pool.give_back([node.page]);
        self.stats.pages -= 1;
        let Some(above) = self.node_mut(parent) else { return };
        above.children.remove(&node.tokens);
        if above.children.is_empty() && above.owns_page() {
            let leaf = (above.used, parent);
            self.leaves.insert(leaf);
        }
    }

    fn store(&mut self, node: Node) -> NodeId {
        self.version += 1;
        match self.vacant.pop() {
            Some(id) if id < self.nodes.len() => {
                self.nodes[id] = Some(node);
                id
            }
            _ => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        }
    }

    /// A node of the tree. Ids are always of one; if they ever are not, what it held is only not found.
    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id)?.as_ref()
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id)?.as_mut()
    }
}
