//! Who computes how many tokens in the next step.

use crate::sequence::Sequence;

/// What a sequence has to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Index of its request among the running ones.
    pub(crate) job: usize,
    /// Its index within the request.
    pub(crate) member: usize,
    /// Tokens that it has and the caches do not.
    pub(crate) pending: usize,
    /// Drafted tokens, in an answer's step.
    pub(crate) drafts: usize,
    /// Whether its answer has begun.
    pub(crate) decoding: bool,
}

impl Load {
    pub(crate) fn of(job: usize, member: usize, sequence: &Sequence) -> Self {
        let (pending, drafts) = (sequence.pending(), sequence.drafts.len());
        Self { job, member, pending, drafts, decoding: sequence.decoding() }
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

/// Every answer in progress gets its tokens; prompts share the rest of `budget` in the order of arrival, so a
/// long prompt never makes the others wait longer than one step.
pub(crate) fn plan(running: &[Load], budget: usize) -> Vec<Share> {
    let decoding: usize = running.iter().filter(|load| load.decoding).map(|load| 1 + load.drafts).sum();
    let mut left = budget.saturating_sub(decoding);
    let mut shares = Vec::with_capacity(running.len());
    for load in running {
        let tokens = if load.decoding { 1 + load.drafts } else { load.pending.min(left) };
        if !load.decoding {
            left -= tokens;
        }
        if tokens > 0 {
            shares.push(Share { job: load.job, member: load.member, tokens });
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(job: usize, pending: usize) -> Load {
        Load { job, member: 0, pending, drafts: 0, decoding: false }
    }

    fn answer(job: usize, drafts: usize) -> Load {
        Load { job, member: 0, pending: 1, drafts, decoding: true }
    }

    #[test]
    fn answers_first_then_prompts_in_order() {
        let running = [prompt(0, 100), answer(1, 0), prompt(2, 10), prompt(3, 0)];
        let share = |job, tokens| Share { job, member: 0, tokens };
        assert_eq!(plan(&running, 64), [share(0, 63), share(1, 1)]);
        assert_eq!(plan(&running, 105), [share(0, 100), share(1, 1), share(2, 4)]);
        assert_eq!(plan(&running, 512), [share(0, 100), share(1, 1), share(2, 10)]);
    }

    #[test]
    fn drafts_belong_to_their_answer() {
        let running = [answer(0, 7), prompt(1, 100)];
        let share = |job, tokens| Share { job, member: 0, tokens };
        assert_eq!(plan(&running, 64), [share(0, 8), share(1, 56)]);
    }

    #[test]
    fn a_budget_below_the_answers_still_moves_every_answer() {
        let running = [answer(0, 0), answer(1, 0), prompt(2, 9)];
        assert_eq!(plan(&running, 1).len(), 2);
    }
}
