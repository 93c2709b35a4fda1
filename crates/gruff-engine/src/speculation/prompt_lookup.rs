//! Drafts copied from the text itself: what followed the last tokens where they stood before.

use super::{DraftLength, Drafter, Schedule, Speculation};
use crate::{Result, SamplingParams};

/// Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptLookup {
    /// Tokens of a draft at most.
    pub num_tokens: usize,
    /// Tokens at the end that are looked for at most; fewer where so many are not found.
    pub max_matching_ngram_size: usize,
}

impl Speculation for PromptLookup {
    fn most(&self) -> usize {
        self.num_tokens
    }

    fn drafter(&self, _: &SamplingParams, _: usize) -> Result<Box<dyn Drafter>> {
        let length = DraftLength::new(self.num_tokens, self.num_tokens, Schedule::Constant);
        Ok(Box::new(Lookup { length, ngram: self.max_matching_ngram_size.max(1) }))
    }
}

struct Lookup {
    length: DraftLength,
    ngram: usize,
}

impl Drafter for Lookup {
    fn draft(&mut self, tokens: &[u32], most: usize) -> Result<Vec<u32>> {
        let most = most.min(self.length.now);
        for size in (1..=self.ngram.min(tokens.len().saturating_sub(1))).rev() {
            let (before, last) = tokens.split_at(tokens.len() - size);
            // The latest place: what was said last is said again most often.
            let place = (0..before.len()).rev().find(|at| tokens[*at..].starts_with(last));
            if let Some(place) = place {
                let follows = &tokens[place + size..];
                return Ok(follows[..most.min(follows.len())].to_vec());
            }
        }
        Ok(Vec::new())
    }

    fn verified(&mut self, drafted: usize, accepted: usize) {
        self.length.verified(drafted, accepted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_what_followed_before() {
        let lookup = PromptLookup { num_tokens: 3, max_matching_ngram_size: 2 };
        let mut drafter = lookup.drafter(&SamplingParams::default(), 100).unwrap();
        let mut draft = |tokens: &[u32], most| drafter.draft(tokens, most).unwrap();
        assert_eq!(draft(&[1, 2, 3, 4, 5, 9, 1, 2], 9), [3, 4, 5]);
        assert_eq!(draft(&[1, 2, 3, 4, 5, 9, 1, 2], 1), [3]);
        assert_eq!(draft(&[1, 2, 7, 2], 9), [7, 2], "one token where two are not found");
        assert_eq!(draft(&[4, 4], 9), [4]);
        assert!(draft(&[1, 2, 3], 9).is_empty());
        assert!(draft(&[1], 9).is_empty());
    }
}
