//! The tree beside a plain list of what went into it.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::paper_tests::recurrent;

fn snapshot(len: usize) -> Snapshot {
    let plan = recurrent(1);
    Snapshot::from_values(&plan, len, vec![0.0; plan.bytes_per_snapshot(len) / 4]).unwrap()
}

/// A tree, its pool, and what pages hold.
struct Bench {
    tree: PrefixCache,
    pool: Pool,
    content: HashMap<u32, Vec<u32>>,
}

impl Bench {
    fn new(recurrent: bool, pages: usize, budget: u64) -> Self {
        Self { tree: PrefixCache::new(recurrent, budget), pool: Pool::new(pages), content: HashMap::new() }
    }

    /// What a sequence does that computes `tokens` and ends: finds what is there, computes the rest, hands it in.
    /// Gives what it found, `None` when there are no pages for it.
    fn serve(&mut self, tokens: &[u32], key: Option<&LoraScales>) -> Option<usize> {
        let hit = self.tree.lookup(&mut self.pool, key, tokens);
        self.tree.begun(hit.as_ref());
        let found = hit.as_ref().map_or(0, |hit| hit.past);
        if let Some(hit) = &hit {
            let held: Vec<u32> =
                hit.pages.iter().flat_map(|page| self.content[page].iter().copied()).take(found).collect();
            assert_eq!(held, &tokens[..found], "the pages hold what the tokens say");
            assert_eq!(self.tree.state(hit).map(Snapshot::len), self.tree.recurrent.then_some(found));
        }
        let mut pages = hit.map_or(Vec::new(), |hit| hit.pages);
        // The last page may hold others' tokens behind the common ones: it is copied.
        if !found.is_multiple_of(PAGE_LEN) {
            pages.pop().into_iter().for_each(|page| self.pool.give_back([page]));
        }
        let missing = tokens.len().div_ceil(PAGE_LEN) - pages.len();
        let fresh = loop {
            match self.pool.take(missing) {
                Some(fresh) => break fresh,
                None if self.tree.evict(&mut self.pool) => {}
                None => {
                    self.pool.give_back(pages);
                    return None;
                }
            }
        };
        pages.extend(fresh);
        for (page, content) in pages.iter().zip(tokens.chunks(PAGE_LEN)) {
            self.content.insert(*page, content.to_vec());
        }
        let taken =
            (self.tree.recurrent && !self.tree.has_snapshot(key, tokens)).then(|| snapshot(tokens.len()));
        self.tree.insert(&mut self.pool, key, tokens, &mut pages, taken);
        self.pool.give_back(pages);
        self.check();
        Some(found)
    }

    fn check(&self) {
        self.tree.audit().unwrap();
        let mut owners = vec![0; self.pool.owners().len()];
        self.tree.pages().for_each(|page| owners[page as usize] += 1);
        assert_eq!(owners, self.pool.owners(), "the tree alone holds pages now");
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Prompts that begin alike: a few pieces one after the other.
fn prompts() -> impl Strategy<Value = Vec<Vec<u32>>> {
    let piece = (0u32..3, prop::sample::select(vec![1usize, 5, 31, 32, 33, 64, 70]));
    let prompt = prop::collection::vec(piece, 1..5)
        .prop_map(|pieces| pieces.into_iter().flat_map(|(token, len)| vec![token; len]).collect());
    prop::collection::vec(prompt, 1..40)
}

proptest! {
    #[test]
    fn with_room_for_all_the_longest_common_beginning_is_found(prompts in prompts(), recurrent in any::<bool>()) {
        let mut bench = Bench::new(recurrent, 10_000, 1 << 30);
        let mut seen: Vec<Vec<u32>> = Vec::new();
        for tokens in prompts {
            let limit = tokens.len() - 1;
            let best = seen.iter().map(|earlier| {
                let common = common(earlier, &tokens).min(limit);
                if recurrent && common < earlier.len() { 0 } else { common }
            });
            let best = best.max().unwrap_or(0);
            let best = if best < PAGE_LEN.min(limit) { 0 } else { best };
            prop_assert_eq!(bench.serve(&tokens, None), Some(best));
            seen.push(tokens);
        }
    }

    #[test]
    fn whatever_is_given_up_no_page_is_lost(
        prompts in prompts(),
        recurrent in any::<bool>(),
        pages in 4usize..30,
        budget in 0u64..20_000,
    ) {
        let mut bench = Bench::new(recurrent, pages, budget);
        for (index, tokens) in prompts.iter().enumerate() {
            let scales = LoraScales::from([("a".to_owned(), 1.0)]);
            let fits = tokens.len().div_ceil(PAGE_LEN) <= pages;
            let served = bench.serve(tokens, (index % 3 == 0).then_some(&scales));
            prop_assert_eq!(served.is_some(), fits, "what nobody uses can be given up");
        }
        bench.tree.clear(&mut bench.pool);
        bench.check();
        prop_assert_eq!(bench.pool.available(), pages);
    }
}

#[test]
fn what_was_not_used_for_the_longest_time_goes_first() {
    let mut bench = Bench::new(false, 7, 0);
    for token in 1..=3 {
        bench.serve(&[token; 60], None);
    }
    assert_eq!(bench.serve(&[1; 60], None), Some(59));
    bench.serve(&[4; 60], None);
    assert_eq!(bench.serve(&[1; 60], None), Some(59));
    assert_eq!(bench.serve(&[3; 60], None), Some(59));
    assert_eq!(bench.serve(&[2; 60], None), Some(0));
}

#[test]
fn snapshots_that_are_not_used_go_before_the_pages_that_others_need() {
    let mut bench = Bench::new(true, 100, 3 * snapshot(100).bytes() as u64);
    let tokens: Vec<u32> = (0..200).collect();
    for len in [100, 164, 228] {
        bench.serve(&tokens[..len.min(200)], None);
    }
    // The first is used again, so that the second makes room.
    let turn = [&tokens[..100], &[7; 64]].concat();
    assert_eq!(bench.serve(&turn, None), Some(100));
    assert_eq!(bench.tree.stats().evicted_snapshots, 1);
    assert_eq!(bench.serve(&[&tokens[..164], &[9, 9]].concat(), None), Some(100));
}

#[test]
fn sequences_that_computed_the_same_hold_it_once() {
    let (mut tree, mut pool) = (PrefixCache::new(false, 0), Pool::new(10));
    let tokens: Vec<u32> = (0..80).collect();
    let (mut one, mut two) = (pool.take(3).unwrap(), pool.take(3).unwrap());
    tree.insert(&mut pool, None, &tokens, &mut one, None);
    tree.insert(&mut pool, None, &tokens, &mut two, None);
    assert_eq!(one[..2], two[..2]);
    assert_ne!(one[2], two[2], "each may go on writing to its last one");
    assert_eq!((tree.stats().pages, pool.available()), (3, 6));
    tree.audit().unwrap();
}

#[test]
fn other_adapters_compute_other_caches() {
    let scales = |scale: f32| LoraScales::from([("a".to_owned(), scale)]);
    let mut bench = Bench::new(false, 100, 0);
    bench.serve(&[1; 60], Some(&scales(1.0)));
    bench.serve(&[1; 50], Some(&scales(0.5)));
    assert_eq!(bench.serve(&[1; 80], None), Some(0));
    assert_eq!(bench.serve(&[1; 80], Some(&scales(0.5))), Some(50));
    assert_eq!(bench.serve(&[1; 80], Some(&scales(1.0))), Some(60));
}

#[test]
fn siblings_without_a_usable_state_do_not_hide_one_that_has() {
    let mut bench = Bench::new(true, 100, 1 << 20);
    let base: Vec<u32> = (0..40).collect();
    bench.serve(&base, None);
    // Parts from the next prompt later than `base` does, but cannot be gone on from there.
    bench.serve(&[&base[..], &[1, 2, 3, 4, 5]].concat(), None);
    assert_eq!(bench.serve(&[&base[..], &[1, 2, 3, 9, 9]].concat(), None), Some(40));
}

#[test]
fn a_hit_of_a_tree_that_has_changed_has_no_state() {
    let mut bench = Bench::new(true, 100, snapshot(60).bytes() as u64);
    bench.serve(&[1; 60], None);
    let hit = bench.tree.lookup(&mut bench.pool, None, &[1; 70]).unwrap();
    assert_eq!(bench.tree.state(&hit).map(Snapshot::len), Some(60));
    // Its snapshot makes room, and another node takes its number.
    let mut pages = bench.pool.take(2).unwrap();
    bench.tree.insert(&mut bench.pool, None, &[2; 60], &mut pages, Some(snapshot(60)));
    assert_eq!(bench.tree.state(&hit).map(Snapshot::len), None);
    bench.tree.begun(Some(&hit));
    bench.pool.give_back(hit.pages);
    bench.pool.give_back(pages);
    bench.check();
}

#[test]
fn a_state_that_cannot_be_had_is_not_found_again() {
    let mut bench = Bench::new(true, 20, 1 << 20);
    let tokens: Vec<u32> = (0..100).collect();
    let longer: Vec<u32> = (0..120).collect();
    assert_eq!(bench.serve(&tokens, None), Some(0));
    let hit = bench.tree.lookup(&mut bench.pool, None, &longer).unwrap();
    assert_eq!(hit.past, 100);
    bench.tree.lose_state(&mut bench.pool, &hit);
    assert!(!bench.tree.has_snapshot(None, &tokens));
    bench.tree.lose_state(&mut bench.pool, &hit);
    bench.pool.give_back(hit.pages);
    bench.check();
    assert!(bench.tree.lookup(&mut bench.pool, None, &longer).is_none());
    assert_eq!(bench.serve(&tokens, None), Some(0), "it is computed, and kept again");
    assert_eq!(bench.serve(&longer, None), Some(100));
}

#[test]
fn what_a_damaged_tree_has_lost_is_only_not_found() {
    for recurrent in [false, true] {
        for lost in 0..6 {
            let mut bench = Bench::new(recurrent, 16, 1 << 20);
            let tokens: Vec<u32> = (0..4 * PAGE_LEN as u32).collect();
            let other: Vec<u32> =
                tokens.iter().map(|token| if *token < 40 { *token } else { token + 1 }).collect();
            for prompt in [&tokens, &other] {
                bench.serve(prompt, None).unwrap();
            }
            // A node that others still speak of.
            bench.tree.nodes[lost] = None;
            let longer = [&tokens[..], &[7; PAGE_LEN]].concat();
            for prompt in [&tokens[..], &other, &longer] {
                assert!(bench.tree.reach(None, prompt) < prompt.len());
                bench.tree.has_snapshot(None, prompt);
                let hit = bench.tree.lookup(&mut bench.pool, None, prompt);
                bench.tree.begun(hit.as_ref());
                if let Some(hit) = hit {
                    bench.tree.state(&hit);
                    bench.pool.give_back(hit.pages);
                }
                let mut pages = bench.pool.take(prompt.len().div_ceil(PAGE_LEN)).unwrap_or_default();
                let state = recurrent.then(|| snapshot(prompt.len()));
                bench.tree.insert(&mut bench.pool, None, prompt, &mut pages, state);
                bench.pool.give_back(pages);
            }
            bench.tree.branches().for_each(drop);
            bench.tree.evictable(&bench.pool);
            while bench.tree.evict(&mut bench.pool) {}
            bench.tree.clear(&mut bench.pool);
            assert_eq!((bench.tree.stats().pages, bench.tree.audit()), (0, Ok(())));
        }
    }
}
