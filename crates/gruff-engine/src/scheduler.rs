//! Who computes how many tokens in the next step.

use crate::MemoryPlan;
use crate::sequence::Sequence;

/// What a sequence has to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Index of its request among the running ones.
    pub(crate) job: usize,
    /// Its index within the request.
    pub(crate) member: usize,
    /// Tokens that it has and the caches do not, as many as its next step may have of them.
    pub(crate) pending: usize,
    /// Drafted tokens, in an answer's step.
    pub(crate) drafts: usize,
    /// Whether its answer has begun.
    pub(crate) decoding: bool,
    /// Whether each of its tokens' logits are looked at.
    pub(crate) scores: bool,
}

impl Load {
    /// Of a sequence whose next step may have up to `room` tokens.
    pub(crate) fn of(job: usize, member: usize, sequence: &Sequence, room: usize) -> Self {
        let (pending, drafts) = (sequence.pending().min(room), sequence.drafts.len());
        let scores = sequence.untold().is_some();
        Self { job, member, pending, drafts, decoding: sequence.decoding(), scores }
    }
}

/// A sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Index of its request among the running ones.
    pub(crate) job: usize,
    /// Its index within the request.
    pub(crate) member: usize,
    /// Tokens of it in the step.
    pub(crate) tokens: usize,
}

/// Tokens that a step may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// In all.
    pub(crate) tokens: usize,
    /// Of prompts, when there are answers in progress.
    pub(crate) mixed: usize,
    /// Of prompts whose every token is scored.
    pub(crate) scored: usize,
}

/// Bytes of logits of prompts in a step at most.
const SCORES: usize = 64 << 20;

impl Budget {
    /// What a step may have, for a model with so many tokens in its vocabulary.
    pub(crate) fn new(memory: &MemoryPlan, vocabulary: usize) -> Self {
        let (tokens, mixed) = (memory.step_tokens, memory.mixed_tokens);
        Self { tokens, mixed, scored: (SCORES / (4 * vocabulary.max(1))).clamp(1, tokens) }
    }
}

/// Every answer in progress gets its tokens; prompts share the rest of the budget: in every other step in the order of
/// arrival, in those between the shortest first. So a long prompt neither makes answers wait for more than a bounded
/// piece of it nor short prompts for all of it, and itself goes on in every second step at least.
pub(crate) fn plan(running: &[Load], budget: Budget, turn: usize) -> Vec<Share> {
    let decoding: usize = running.iter().filter(|load| load.decoding).map(|load| 1 + load.drafts).sum();
    let mut left = budget.tokens.saturating_sub(decoding);
    if decoding > 0 {
        left = left.min(budget.mixed);
    }
    let mut scored = budget.scored;
    let mut prompts: Vec<usize> = (0..running.len()).filter(|index| !running[*index].decoding).collect();
    if turn.is_multiple_of(2) {
        prompts.sort_by_key(|index| running[*index].pending);
    }
    let mut tokens: Vec<usize> = running.iter().map(|load| 1 + load.drafts).collect();
    for index in prompts {
        let load = running[index];
        let most = if load.scores { left.min(scored) } else { left };
        tokens[index] = load.pending.min(most);
        left -= tokens[index];
        scored -= if load.scores { tokens[index] } else { 0 };
    }
    let shares = running.iter().zip(tokens).filter(|(_, tokens)| *tokens > 0);
    shares.map(|(load, tokens)| Share { job: load.job, member: load.member, tokens }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(job: usize, pending: usize) -> Load {
        Load { job, member: 0, pending, drafts: 0, decoding: false, scores: false }
    }

    fn answer(job: usize, drafts: usize) -> Load {
        Load { job, member: 0, pending: 1, drafts, decoding: true, scores: false }
    }

    fn share(job: usize, tokens: usize) -> Share {
        Share { job, member: 0, tokens }
    }

    fn whole(running: &[Load], tokens: usize) -> Vec<Share> {
        plan(running, Budget { tokens, mixed: tokens, scored: 512 }, 1)
    }

    #[test]
    fn answers_first_then_prompts_in_order() {
        let running = [prompt(0, 100), answer(1, 0), prompt(2, 10), prompt(3, 0)];
        assert_eq!(whole(&running, 64), [share(0, 63), share(1, 1)]);
        assert_eq!(whole(&running, 105), [share(0, 100), share(1, 1), share(2, 4)]);
        assert_eq!(whole(&running, 512), [share(0, 100), share(1, 1), share(2, 10)]);
    }

    #[test]
    fn short_prompts_pass_long_ones_in_every_other_step() {
        let running = [prompt(0, 10_000), prompt(1, 30), prompt(2, 20)];
        let budget = Budget { tokens: 64, mixed: 64, scored: 512 };
        assert_eq!(plan(&running, budget, 1), [share(0, 64)]);
        assert_eq!(plan(&running, budget, 2), [share(0, 14), share(1, 30), share(2, 20)]);
    }

    #[test]
    fn prompts_that_are_scored_share_their_rows() {
        let scored = |job, pending| Load { scores: true, ..prompt(job, pending) };
        let budget = Budget { tokens: 64, mixed: 64, scored: 32 };
        let running = [scored(0, 100), prompt(1, 10), scored(2, 9), scored(3, 9)];
        assert_eq!(plan(&running, budget, 1), [share(0, 32), share(1, 10)]);
        let running = [scored(0, 20), prompt(1, 10), scored(2, 9), scored(3, 9)];
        assert_eq!(plan(&running, budget, 1), [share(0, 20), share(1, 10), share(2, 9), share(3, 3)]);
    }

    #[test]
    fn answers_in_progress_bound_what_prompts_get() {
        let budget = Budget { tokens: 512, mixed: 64, scored: 512 };
        assert_eq!(plan(&[prompt(0, 1000)], budget, 1), [share(0, 512)]);
        assert_eq!(plan(&[prompt(0, 1000), answer(1, 0)], budget, 1), [share(0, 64), share(1, 1)]);
    }

    #[test]
    fn drafts_belong_to_their_answer() {
        let running = [answer(0, 7), prompt(1, 100)];
        assert_eq!(whole(&running, 64), [share(0, 8), share(1, 56)]);
    }

    #[test]
    fn a_budget_below_the_answers_still_moves_every_answer() {
        let running = [answer(0, 0), answer(1, 0), prompt(2, 9)];
        assert_eq!(whole(&running, 1).len(), 2);
    }
}
