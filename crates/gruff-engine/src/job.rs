//! A request and the sequences that work on it.

use std::time::Duration;

use crate::beams::BeamSearch;
use crate::sequence::Sequence;
use crate::{BeamOutput, Request, RequestId, Result, Usage};

/// How the sequences of a request belong together.
pub(crate) enum Mode {
    /// Each is an answer of its own. They begin as one, which holds the prompt.
    Separate {
        /// Answers that the first sequence becomes once its prompt is computed.
        answers: usize,
    },
    /// Running beams; they begin as one.
    Beams { search: Box<BeamSearch>, answers: usize, output: Box<BeamOutput> },
}

/// A request on its way through the engine.
pub(crate) struct Job {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    pub(crate) mode: Mode,
    /// How far answers are led away from the negative prompt's.
    pub(crate) guidance: Option<f32>,
    /// Answers or beams; with guidance each is followed by its companion, the negative prompt with the same new tokens.
    pub(crate) members: Vec<Sequence>,
    /// Whether its prompts were looked for in files.
    pub(crate) looked_for: bool,
    /// In which round of the waiting clients it is its client's turn.
    pub(crate) round: u64,
}

impl Job {
    pub(crate) fn new(id: RequestId, request: Request, context: usize) -> Result<Self> {
        let mut members = vec![Sequence::new(&request, context)?];
        if let Some(guidance) = &request.guidance {
            let negative = match guidance.negative_prompt.as_slice() {
                [] => request.prompt[request.prompt.len() - 1..].to_vec(),
                given => given.to_vec(),
            };
            // What fills the companion's context ends the answer.
            members[0].limit_new_tokens(context - negative.len());
            let companion = members[0].companion(negative, context);
            members.push(companion);
        }
        let answers = request.num_return_sequences;
        let mode = if let Some(params) = request.beams {
            let (search, output) = (Box::new(BeamSearch::new(params)), Box::default());
            Mode::Beams { search, answers, output }
        } else {
            Mode::Separate { answers }
        };
        let guidance = request.guidance.as_ref().map(|guidance| guidance.scale);
        Ok(Self { id, request, mode, guidance, members, looked_for: false, round: 0 })
    }

    /// Members that belong together: an answer, with its companion where there is one.
    pub(crate) fn stride(&self) -> usize {
        if self.guidance.is_some() { 2 } else { 1 }
    }

    /// Whether it was ever admitted: it waits again then, for room.
    pub(crate) fn has_begun(&self) -> bool {
        self.members.iter().any(Sequence::has_begun)
    }

    /// Slots that it may come to hold.
    pub(crate) fn width(&self) -> usize {
        match &self.mode {
            Mode::Separate { answers } => self.members.len().max(answers.saturating_mul(self.stride())),
            Mode::Beams { search, .. } => search.params.num_beams.saturating_mul(self.stride()),
        }
    }

    /// Pages that it will take for the tokens it has, and one more for each of its sequences.
    pub(crate) fn owed_pages(&self) -> usize {
        let missing = self.members.iter().map(|member| member.missing_pages(member.tokens.len()));
        missing.sum::<usize>() + self.width()
    }

    /// Slots that a request may come to hold.
    pub(crate) fn width_of(request: &Request) -> usize {
        let answers = request.beams.map_or(request.num_return_sequences, |beams| beams.num_beams);
        if request.guidance.is_some() { answers.saturating_mul(2) } else { answers }
    }

    /// What the request has cost: of its first sequence still in work.
    pub(crate) fn usage(&self) -> Usage {
        self.members.first().map(Sequence::usage).unwrap_or_default()
    }

    /// The cost of an answer that beams found.
    pub(crate) fn beam_usage(&self, new_tokens: usize) -> Usage {
        let usage = self.usage();
        let decode_time = if new_tokens == 0 { Duration::ZERO } else { usage.decode_time };
        Usage { new_tokens, decode_time, ..usage }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Guidance;

    #[test]
    fn more_answers_than_can_be_counted_are_as_many_as_can() {
        let guidance = Some(Guidance { scale: 2.0, negative_prompt: Vec::new() });
        let request = Request { num_return_sequences: usize::MAX, guidance, ..Request::new(vec![1]) };
        assert_eq!(Job::width_of(&request), usize::MAX);
        assert_eq!(Job::new(RequestId(0), request, 64).unwrap().width(), usize::MAX);
    }
}
