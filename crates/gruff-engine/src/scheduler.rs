//! Who computes how many tokens in the next step.

use crate::sequence::Sequence;

/// A sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Index among the running sequences.
    pub(crate) sequence: usize,
    /// Tokens of it in the step.
    pub(crate) tokens: usize,
}

/// Every answer in progress gets its token; prompts share the rest of `budget` in the order of arrival, so a
/// long prompt never makes the others wait longer than one step.
pub(crate) fn plan(running: &[Sequence], budget: usize) -> Vec<Share> {
    let decoding = running.iter().filter(|sequence| sequence.decoding()).count();
    let mut left = budget.saturating_sub(decoding);
    let mut shares = Vec::with_capacity(running.len());
    for (index, sequence) in running.iter().enumerate() {
        let tokens = if sequence.decoding() { 1 } else { sequence.pending().min(left) };
        if !sequence.decoding() {
            left -= tokens;
        }
        if tokens > 0 {
            shares.push(Share { sequence: index, tokens });
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, RequestId};

    fn sequence(prompt: usize, past: usize, new: usize) -> Sequence {
        let mut sequence = Sequence::new(RequestId(0), Request::new(vec![1; prompt]));
        sequence.admit(0, Vec::new(), 0);
        for _ in 0..new {
            sequence.push(1, usize::MAX);
        }
        sequence.past = past;
        sequence
    }

    #[test]
    fn answers_first_then_prompts_in_order() {
        let running = [sequence(100, 0, 0), sequence(5, 5, 1), sequence(50, 40, 0)];
        let share = |sequence, tokens| Share { sequence, tokens };
        assert_eq!(plan(&running, 64), [share(0, 63), share(1, 1)]);
        assert_eq!(plan(&running, 105), [share(0, 100), share(1, 1), share(2, 4)]);
        assert_eq!(plan(&running, 512), [share(0, 100), share(1, 1), share(2, 10)]);
    }

    #[test]
    fn a_budget_below_the_answers_still_moves_every_answer() {
        let running = [sequence(5, 5, 1), sequence(5, 5, 1), sequence(9, 0, 0)];
        assert_eq!(plan(&running, 1).len(), 2);
    }
}
