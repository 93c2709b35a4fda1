//! A page's worth of tokens in the tree.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use gruff_models::Snapshot;

use super::NodeId;

/// A snapshot in the tree.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) snapshot: Arc<Snapshot>,
    /// When it was made or restored last.
    pub(super) used: u64,
}

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    /// `None` for a root, which has neither tokens nor a page.
    pub(super) parent: Option<NodeId>,
    /// As many as a page holds, fewer only in a leaf. None is the beginning of a sibling's.
    pub(super) tokens: Box<[u32]>,
    pub(super) page: u32,
    pub(super) children: BTreeMap<Box<[u32]>, NodeId>,
    /// By the number of this node's tokens that they stand behind.
    pub(super) snapshots: BTreeMap<usize, Held>,
    /// When a sequence that begins with it was seen last.
    pub(super) used: u64,
}

impl Node {
    pub(super) fn root() -> Self {
        Self { parent: None, ..Self::leaf(0, &[], 0, 0) }
    }

    pub(super) fn leaf(parent: NodeId, tokens: &[u32], page: u32, used: u64) -> Self {
        Self {
            parent: Some(parent),
            tokens: tokens.into(),
            page,
            children: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            used,
        }
    }

    /// Children whose tokens are not before `tokens` in order: first those that begin with them.
    pub(super) fn children_from(&self, tokens: &[u32]) -> impl DoubleEndedIterator<Item = (&[u32], NodeId)> {
        let range = (Bound::Included(tokens), Bound::Unbounded);
        self.children.range::<[u32], _>(range).map(|(tokens, id)| (&**tokens, *id))
    }

    /// Children whose tokens are before `tokens` in order: last one that `tokens` begin with, if there is any.
    pub(super) fn children_before(
        &self,
        tokens: &[u32],
    ) -> impl DoubleEndedIterator<Item = (&[u32], NodeId)> {
        let range = (Bound::Unbounded, Bound::Excluded(tokens));
        self.children.range::<[u32], _>(range).map(|(tokens, id)| (&**tokens, *id))
    }

    pub(super) fn owns_page(&self) -> bool {
        self.parent.is_some()
    }

    /// Where the last snapshot stands behind at most `most` of the tokens.
    pub(super) fn last_snapshot(&self, most: usize) -> Option<usize> {
        self.snapshots.range(..=most).next_back().map(|(offset, _)| *offset)
    }
}
