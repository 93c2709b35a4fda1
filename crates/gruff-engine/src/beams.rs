//! Beam search: the bookkeeping of transformers' `generate` with `num_beams`, one request at a time.
//!
//! A step takes the accumulated scores of all continuations of all running beams and keeps the best of them; those
//! that end become candidates for the answer, scored by length. What decides is kept exactly as in transformers, so
//! that both find the same sequences.

use gruff_kernels::sampling::uniform;

use crate::error::refuse;
use crate::{FinishReason, Result};

/// When a search ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// As soon as there are as many finished sequences as beams.
    Yes,
    /// When, judged by its present length, no running beam can become better than the finished ones.
    #[default]
    No,
    /// When no running beam can become better whatever its length.
    Never,
}

/// Parameters of a search with beams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamParams {
    /// Sequences that are followed at once.
    pub num_beams: usize,
    /// Exponent of the length by which scores are divided: above 0 it favours long answers.
    pub length_penalty: f32,
    /// When it ends.
    pub early_stopping: EarlyStopping,
    /// Draw continuations by their scores instead of taking the best.
    pub sample: bool,
}

impl Default for BeamParams {
    fn default() -> Self {
        Self { num_beams: 1, length_penalty: 1.0, early_stopping: EarlyStopping::No, sample: false }
    }
}

impl BeamParams {
    pub(crate) fn validate(&self, num_return_sequences: usize) -> Result<()> {
        if self.num_beams == 0 {
            return refuse("num_beams", "0 has to be at least 1");
        }
        if num_return_sequences > self.num_beams {
            return refuse(
                "num_return_sequences",
                format!("{num_return_sequences} has to be at most num_beams ({})", self.num_beams),
            );
        }
        if !self.length_penalty.is_finite() {
            return refuse("length_penalty", format!("{} has to be a finite number", self.length_penalty));
        }
        Ok(())
    }
}

/// What a score that rules a sequence out is lowered by.
const RULED_OUT: f32 = -1.0e9;

/// A continuation of a running beam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Index of the beam among the running ones.
    pub(crate) beam: usize,
    /// The token.
    pub(crate) token: u32,
    /// Sum of the scores of its tokens.
    pub(crate) score: f32,
}

/// A sequence of the answer: finished, or a stand-in that any finished one replaces.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) score: f32,
    pub(crate) new_tokens: Vec<u32>,
    pub(crate) beam_indices: Vec<usize>,
    pub(crate) reason: Option<FinishReason>,
}

/// The state of a search.
#[derive(Clone, Debug)]
pub(crate) struct BeamSearch {
    pub(crate) params: BeamParams,
    /// Sums of scores of the running beams.
    scores: Vec<f32>,
    /// For each running beam, the beams that its tokens were chosen from.
    indices: Vec<Vec<usize>>,
    found: Vec<Found>,
    improvable: bool,
}

/// What a step decided: for each running beam of the next step, the beam it continues and its token.
pub(crate) type Next = Vec<(usize, u32)>;

impl BeamSearch {
    pub(crate) fn new(params: BeamParams) -> Self {
        Self { params, scores: vec![0.0], indices: vec![Vec::new()], found: Vec::new(), improvable: true }
    }

    /// The continuations that a step looks at, best first: twice as many as beams, more with several end tokens, so
    /// that there are enough left when some end. `scores` has a row `[vocab_size]` for each running beam; `position`
    /// is the index of the new token.
    pub(crate) fn candidates(
        &self,
        scores: &[Vec<f32>],
        end_tokens: usize,
        seed: u64,
        position: usize,
    ) -> Vec<Candidate> {
        let count = 2.max(1 + end_tokens) * self.params.num_beams;
        let mut keyed: Vec<(f32, Candidate)> = Vec::new();
        for (beam, (row, sum)) in scores.iter().zip(&self.scores).enumerate() {
            for (token, log) in row.iter().enumerate().filter(|(_, log)| alive(**log)) {
                let score = log + sum;
                let key = if self.params.sample {
                    score + gumbel(seed, position, beam * row.len() + token)
                } else {
                    score
                };
                keyed.push((key, Candidate { beam, token: token as u32, score }));
            }
        }
        let order = |a: &(f32, Candidate), b: &(f32, Candidate)| {
            b.0.total_cmp(&a.0).then((a.1.beam, a.1.token).cmp(&(b.1.beam, b.1.token)))
        };
        if count < keyed.len() {
            keyed.select_nth_unstable_by(count - 1, order);
            keyed.truncate(count);
        }
        keyed.sort_unstable_by(order);
        let mut candidates: Vec<_> = keyed.into_iter().map(|(_, candidate)| candidate).collect();
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        candidates
    }

    /// Takes the candidates of a step, with why each ends if it does, and the answers so far of the running beams.
    /// `None`: the search has ended. `new_len` is the length of the answers with the new token, `most` their length
    /// at the latest.
    pub(crate) fn advance(
        &mut self,
        candidates: &[(Candidate, Option<FinishReason>)],
        answers: &[&[u32]],
        new_len: usize,
        most: usize,
    ) -> Option<Next> {
        let num_beams = self.params.num_beams;
        let indices = |candidate: &Candidate| {
            let mut indices = self.indices[candidate.beam].clone();
            indices.push(candidate.beam);
            indices
        };
        // Beams that go on: the best that have not ended. Ended ones stand in where there are too few.
        let mut running: Vec<(f32, &Candidate)> = candidates
            .iter()
            .map(|(candidate, reason)| (candidate.score + reason.map_or(0.0, |_| RULED_OUT), candidate))
            .collect();
        running.sort_by(|a, b| b.0.total_cmp(&a.0));
        running.truncate(num_beams);
        let next_indices: Vec<_> = running.iter().map(|(_, candidate)| indices(candidate)).collect();

        let full = self.found.iter().filter(|found| found.reason.is_some()).count() >= num_beams
            && self.params.early_stopping == EarlyStopping::Yes;
        let divisor = (new_len as f32).powf(self.params.length_penalty);
        let ended = candidates.iter().enumerate().map(|(rank, (candidate, reason))| {
            // Only the best as many as beams may end; the others are there to go on.
            let reason = reason.filter(|_| rank < num_beams);
            let mut score = candidate.score / divisor;
            for out in [full, !self.improvable, reason.is_none()] {
                score += if out { RULED_OUT } else { 0.0 };
            }
            let mut new_tokens = answers.get(candidate.beam).map_or(Vec::new(), |answer| answer.to_vec());
            new_tokens.push(candidate.token);
            Found { score, new_tokens, beam_indices: indices(candidate), reason }
        });
        let mut found: Vec<Found> = std::mem::take(&mut self.found).into_iter().chain(ended).collect();
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found.truncate(num_beams);
        self.found = found;

        self.scores = running.iter().map(|(score, _)| *score).collect();
        self.indices = next_indices;
        self.improvable &= self.can_improve(new_len, most);
        let all_found = self.found.iter().filter(|found| found.reason.is_some()).count() >= num_beams;
        let done = self.params.early_stopping == EarlyStopping::Yes && all_found;
        let stuck = candidates.iter().all(|(_, reason)| reason.is_some());
        let goes_on = self.improvable && !done && !stuck;
        goes_on.then(|| running.iter().map(|(_, candidate)| (candidate.beam, candidate.token)).collect())
    }

    /// Whether the best running beam could still become better than the worst sequence found.
    fn can_improve(&self, new_len: usize, most: usize) -> bool {
        let never = self.params.early_stopping == EarlyStopping::Never && self.params.length_penalty > 0.0;
        let length = if never { most } else { new_len };
        let best = self.scores.first().map(|score| score / (length as f32).powf(self.params.length_penalty));
        let worst = self.found.iter().map(|found| found.score).fold(f32::INFINITY, f32::min);
        let unfinished =
            self.found.iter().any(|found| found.reason.is_none()) || self.found.len() < self.params.num_beams;
        let bound = if unfinished { RULED_OUT } else { worst };
        best.is_some_and(|best| best > bound.min(worst))
    }

    /// Whether any sequence has ended.
    pub(crate) fn has_found(&self) -> bool {
        self.found.iter().any(|found| found.reason.is_some())
    }

    /// The best sequences that were found.
    pub(crate) fn best(&self, count: usize) -> &[Found] {
        &self.found[..count.min(self.found.len())]
    }
}

pub(crate) fn alive(log: f32) -> bool {
    !log.is_nan() && log != f32::NEG_INFINITY
}

/// Tells the random numbers of a search from those of plain sampling.
const BEAM_STREAM: u64 = 0x4245_414d_53a7_19d3;

/// Noise whose largest sums with logarithms of probabilities are draws without replacement (Gumbel-top-k,
/// arXiv:1903.06059).
fn gumbel(seed: u64, position: usize, index: usize) -> f32 {
    let draw = uniform(seed ^ BEAM_STREAM, ((position as u64) << 40) ^ index as u64);
    -(-(draw.max(f64::MIN_POSITIVE)).ln()).ln() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(num_beams: usize, early_stopping: EarlyStopping) -> BeamSearch {
        BeamSearch::new(BeamParams { num_beams, early_stopping, ..BeamParams::default() })
    }

    #[test]
    fn candidates_are_the_best_of_all_beams() {
        let mut search = search(2, EarlyStopping::No);
        search.scores = vec![0.0, -1.0];
        search.indices = vec![Vec::new(); 2];
        let rows = [vec![-3.0, -0.5, f32::NEG_INFINITY], vec![-0.1, -4.0, -0.2]];
        let found = search.candidates(&rows, 1, 0, 5);
        let pairs: Vec<_> = found.iter().map(|c| (c.beam, c.token)).collect();
        assert_eq!(pairs, [(0, 1), (1, 0), (1, 2), (0, 0)]);
    }

    #[test]
    fn early_stopping_ends_with_as_many_sequences_as_beams() {
        let mut search = search(1, EarlyStopping::Yes);
        let candidate = |token, score| Candidate { beam: 0, token, score };
        let ended = [(candidate(2, -0.5), Some(FinishReason::EndToken)), (candidate(3, -0.6), None)];
        assert_eq!(search.advance(&ended, &[&[]], 1, 10), None);
        let best = &search.best(1)[0];
        assert_eq!((best.new_tokens.as_slice(), best.score), ([2].as_slice(), -0.5));
    }

    #[test]
    fn draws_without_replacement_follow_the_probabilities() {
        let mut search = search(1, EarlyStopping::No);
        search.params.sample = true;
        let row = vec![0.6f32.ln(), 0.3f32.ln(), 0.1f32.ln()];
        let mut first = [0usize; 3];
        for position in 0..4000 {
            let candidates = search.candidates(std::slice::from_ref(&row), 1, 9, position);
            assert_eq!(candidates.len(), 2);
            first[3 - candidates[0].token as usize - candidates[1].token as usize] += 1;
        }
        // The probability that a token is not among the first two.
        let missing = |a: f64, b: f64| a * b / (1.0 - a) + b * a / (1.0 - b);
        let expected = [missing(0.3, 0.1), missing(0.6, 0.1), missing(0.6, 0.3)];
        for (count, expected) in first.iter().zip(expected) {
            assert!((*count as f64 / 4000.0 - expected).abs() < 0.03, "{first:?}");
        }
    }
}
