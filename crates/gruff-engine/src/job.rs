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
    /// The first is the answer, the second follows the negative prompt.
    Guided {
        /// How far the answer is led away from the second.
        scale: f32,
    },
    /// Running beams; they begin as one.
    Beams { search: Box<BeamSearch>, answers: usize, output: Box<BeamOutput> },
}

/// A request on its way through the engine.
pub(crate) struct Job {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    pub(crate) mode: Mode,
    pub(crate) members: Vec<Sequence>,
}

impl Job {
    pub(crate) fn new(id: RequestId, request: Request, context: usize) -> Result<Self> {
        let first = Sequence::new(&request, context)?;
        let answers = request.num_return_sequences;
        let mut members = vec![first];
        let mode = if let Some(params) = request.beams {
            let (search, output) = (Box::new(BeamSearch::new(params)), Box::default());
            Mode::Beams { search, answers, output }
        } else if let Some(guidance) = &request.guidance {
            let negative = match guidance.negative_prompt.as_slice() {
                [] => request.prompt[request.prompt.len() - 1..].to_vec(),
                given => given.to_vec(),
            };
            let companion = members[0].companion(negative);
            members.push(companion);
            Mode::Guided { scale: guidance.scale }
        } else {
            Mode::Separate { answers }
        };
        Ok(Self { id, request, mode, members })
    }

    /// Slots that it may come to hold.
    pub(crate) fn width(&self) -> usize {
        match &self.mode {
            Mode::Separate { answers } => self.members.len().max(*answers),
            Mode::Guided { .. } => 2,
            Mode::Beams { search, .. } => search.params.num_beams,
        }
    }

    /// Slots that a request may come to hold.
    pub(crate) fn width_of(request: &Request) -> usize {
        match (&request.beams, &request.guidance) {
            (Some(beams), _) => beams.num_beams,
            (None, Some(_)) => 2,
            (None, None) => request.num_return_sequences,
        }
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
