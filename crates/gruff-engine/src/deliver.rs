//! What becomes of the logits of a step: tokens, forks, ends.

use crate::beams::Found;
use crate::choose::{Chosen, values};
use crate::engine::{Engine, Rows};
use crate::job::{Job, Mode};
use crate::logits::{guide, log_softmax};
use crate::scheduler::Share;
use crate::sequence::{Sequence, ends};
use crate::{BeamOutput, Error, Event, FinishReason, OutputOptions, Request, RequestId, Result};

impl Engine {
    /// Takes the logits of a step in, tells of the tokens, and parks what has ended. A request that goes wrong ends
    /// alone.
    pub(crate) fn deliver(&mut self, shares: &[Share], rows: &Rows, events: &mut Vec<Event>) -> Result<()> {
        let jobs = std::mem::take(&mut self.running);
        for (index, mut job) in jobs.into_iter().enumerate() {
            let own = shares.iter().zip(&rows.ranges).filter(|(share, _)| share.job == index);
            let mut ready = Vec::new();
            for (share, range) in own {
                let sequence = &mut job.members[share.member];
                sequence.head = sequence.head.max(sequence.past + share.tokens);
                if range.is_empty() {
                    sequence.past += share.tokens;
                    let (done, total) = (sequence.past, sequence.tokens.len());
                    events.push(Event::Prompt { request: job.id, done, total });
                } else {
                    // What is behind it is drafts, which count once they are verified.
                    sequence.past = sequence.tokens.len();
                    ready.push((share.member, range.clone()));
                }
            }
            match self.advance(&mut job, &ready, rows, events) {
                Ok(true) => self.running.push(job),
                Ok(false) => self.retire(job),
                Err(error) => {
                    events.push(Event::Failed { request: job.id, message: error.to_string() });
                    self.discard(job);
                }
            }
        }
        Ok(())
    }

    /// Moves a request on by the rows of its members; whether it goes on.
    fn advance(
        &mut self,
        job: &mut Job,
        ready: &[(usize, std::ops::Range<usize>)],
        rows: &Rows,
        events: &mut Vec<Event>,
    ) -> Result<bool> {
        if ready.is_empty() {
            return Ok(true);
        }
        if let Mode::Separate { answers } = &mut job.mode {
            // The prompt is computed: the other answers begin where it ends.
            for index in 1..std::mem::replace(answers, 1) {
                let mut fork = self.fork(&job.members[0], index)?;
                if let Some(speculation) = &job.request.speculation {
                    fork.drafter = Some(speculation.drafter(&fork.sampling, fork.max_length())?);
                }
                job.members.push(fork);
            }
            return self.advance_answers(job, ready, rows, events);
        }
        for (member, range) in ready {
            job.members[*member].row = Some(values(&rows.logits, range.start)?);
        }
        if job.members.iter().any(|member| member.row.is_none()) {
            return Ok(true);
        }
        match &mut job.mode {
            Mode::Guided { scale } => {
                let scale = *scale;
                advance_guided(job, scale, rows, events)
            }
            _ => self.advance_beams(job, events),
        }
    }

    fn advance_answers(
        &mut self,
        job: &mut Job,
        ready: &[(usize, std::ops::Range<usize>)],
        rows: &Rows,
        events: &mut Vec<Event>,
    ) -> Result<bool> {
        let (id, outputs) = (job.id, job.request.outputs);
        let begins = ready.len() == 1 && ready[0].0 == 0 && job.members.len() > 1;
        let mut ended = Vec::new();
        for (place, member) in job.members.iter_mut().enumerate() {
            // Forks of this step read the row of the sequence that they were forked from.
            let own = ready.iter().find(|(index, _)| *index == place);
            let forked = own.is_none() && begins && member.usage().new_tokens == 0;
            let Some((_, range)) = own.or(ready.first().filter(|_| forked)) else { continue };
            let range = range.start..if forked { range.start + 1 } else { range.end };
            let reason = verify(member, id, range, rows, !forked, outputs, events)?;
            if let Some(reason) = reason {
                let usage = member.usage();
                events.push(Event::Finished { request: id, index: member.index, reason, usage });
                ended.push(place);
            }
        }
        for place in ended.into_iter().rev() {
            let member = job.members.remove(place);
            self.park(member);
        }
        Ok(!job.members.is_empty())
    }

    /// One step of a search with beams, whose members all have their logits.
    fn advance_beams(&mut self, job: &mut Job, events: &mut Vec<Event>) -> Result<bool> {
        let Mode::Beams { search, answers, output } = &mut job.mode else { return Ok(true) };
        let outputs = job.request.outputs;
        let scores = beam_scores(&mut job.members, outputs, output)?;
        let Some(first) = job.members.first() else { return Ok(false) };
        let position = first.tokens.len();
        let (most, prompt_len) = (first.max_length(), job.request.prompt.len());
        let seed = job.request.sampling.seed;
        let candidates = search.candidates(&scores, job.request.end_tokens.len(), seed, position);
        if candidates.is_empty() {
            return Err(Error::Logits { position });
        }
        let mut judged = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let (criteria, reason) = judge(&job.members[candidate.beam], candidate.token, &job.request)?;
            judged.push((candidate, reason, criteria));
        }
        let answers_so_far: Vec<&[u32]> =
            job.members.iter().map(|member| &member.tokens[prompt_len..]).collect();
        let pairs: Vec<_> = judged.iter().map(|(candidate, reason, _)| (*candidate, *reason)).collect();
        let new_len = position + 1 - prompt_len;
        let Some(next) = search.advance(&pairs, &answers_so_far, new_len, most - prompt_len) else {
            let found = search.best(*answers).to_vec();
            let output = std::mem::take(output);
            finish_beams(job, found, output, events)?;
            return Ok(false);
        };
        let mut judged = judged;
        self.follow(job, &next, |beam, token| {
            let place = judged.iter().position(|(c, ..)| (c.beam, c.token) == (beam, token));
            place.map(|place| judged.swap_remove(place).2)
        })?;
        Ok(true)
    }

    /// Replaces the running beams: those that several continue are forked, those that none continues give back what
    /// they hold.
    fn follow(
        &mut self,
        job: &mut Job,
        next: &[(usize, u32)],
        mut criteria: impl FnMut(usize, u32) -> Option<Vec<Box<dyn crate::stopping::StoppingCriteria>>>,
    ) -> Result<()> {
        let mut old: Vec<Option<Sequence>> = job.members.drain(..).map(Some).collect();
        for (beam, sequence) in old.iter_mut().enumerate() {
            if next.iter().all(|(parent, _)| *parent != beam)
                && let Some(sequence) = sequence.take()
            {
                self.release(sequence);
            }
        }
        for (place, (beam, token)) in next.iter().enumerate() {
            let again = next[place + 1..].iter().any(|(parent, _)| parent == beam);
            let sequence = match &mut old[*beam] {
                Some(sequence) if again => Some(self.fork(sequence, 0)?),
                last => last.take(),
            };
            let Some(mut sequence) = sequence else { continue };
            sequence.row = None;
            sequence.append(*token);
            if let Some(criteria) = criteria(*beam, *token) {
                sequence.criteria = criteria;
            }
            job.members.push(sequence);
        }
        Ok(())
    }
}

/// Takes the tokens of one answer: of the row behind its last token and, as long as the drafts are right, of those
/// behind them.
fn verify(
    sequence: &mut Sequence,
    request: RequestId,
    range: std::ops::Range<usize>,
    rows: &Rows,
    chosen_by_device: bool,
    outputs: OutputOptions,
    events: &mut Vec<Event>,
) -> Result<Option<FinishReason>> {
    let drafts = std::mem::take(&mut sequence.drafts);
    let (mut accepted, mut ended) = (0, None);
    for (step, row) in range.enumerate() {
        let chosen = match &rows.ids {
            Some(ids) if chosen_by_device && sequence.is_fused(outputs) => {
                let id = ids.get(row).and_then(|id| u32::try_from(*id).ok());
                let id = id.ok_or(Error::Logits { position: sequence.tokens.len() })?;
                Chosen { id, details: None }
            }
            _ => sequence.choose(&rows.logits, row, outputs)?,
        };
        let Chosen { id, mut details } = chosen;
        if let Some(states) = &mut sequence.states {
            states.hand_over(outputs, &mut details);
        }
        events.push(Event::Token { request, index: sequence.index, id, details });
        ended = sequence.push(id)?;
        if ended.is_some() || drafts.get(step) != Some(&id) {
            break;
        }
        accepted += 1;
    }
    sequence.past = sequence.tokens.len() - 1;
    sequence.verified(drafts.len(), accepted);
    Ok(ended)
}

fn advance_guided(job: &mut Job, scale: f32, rows: &Rows, events: &mut Vec<Event>) -> Result<bool> {
    let [answer, companion] = job.members.as_mut_slice() else { return Ok(false) };
    let (Some(mut row), Some(negative)) = (answer.row.take(), companion.row.take()) else { return Ok(true) };
    guide(&mut row, &negative, scale);
    let Chosen { id, mut details } = answer.choose_from(row, &rows.logits, job.request.outputs)?;
    if let Some(states) = &mut answer.states {
        states.hand_over(job.request.outputs, &mut details);
    }
    events.push(Event::Token { request: job.id, index: 0, id, details });
    let mut reason = answer.push(id)?;
    companion.append(id);
    if reason.is_none() && companion.tokens.len() >= companion.max_context() {
        reason = Some(FinishReason::Context);
    }
    let Some(reason) = reason else { return Ok(true) };
    let usage = answer.usage();
    events.push(Event::Finished { request: job.id, index: 0, reason, usage });
    Ok(false)
}

/// Logarithms of probabilities behind all processors, for each running beam.
fn beam_scores(
    members: &mut [Sequence],
    outputs: OutputOptions,
    output: &mut BeamOutput,
) -> Result<Vec<Vec<f32>>> {
    let mut raw = Vec::new();
    let mut scores = Vec::with_capacity(members.len());
    for member in members {
        let logits = member.row.take().unwrap_or_default();
        let mut row: Vec<f32> = log_softmax(&logits).into_iter().map(|log| log as f32).collect();
        member.process(&mut row, false)?;
        if outputs.logits {
            raw.push(logits);
        }
        scores.push(row);
    }
    if outputs.logits {
        output.logits.push(raw);
    }
    if outputs.scores {
        output.scores.push(scores.clone());
    }
    Ok(scores)
}

type Judged = (Vec<Box<dyn crate::stopping::StoppingCriteria>>, Option<FinishReason>);

/// Whether a beam ends with this token; the criteria in the state behind it.
fn judge(member: &Sequence, token: u32, request: &Request) -> Result<Judged> {
    let mut criteria = member.criteria.clone();
    let mut tokens = member.tokens.clone();
    tokens.push(token);
    let context = crate::logits::TokenContext { tokens: &tokens, ..member.token_context() };
    let reason = ends(&context, &mut criteria, request.max_new_tokens)?;
    Ok((criteria, reason))
}

fn finish_beams(
    job: &mut Job,
    found: Vec<Found>,
    mut output: Box<BeamOutput>,
    events: &mut Vec<Event>,
) -> Result<()> {
    output.sequences_scores = found.iter().map(|found| found.score).collect();
    output.beam_indices = found.iter().map(|found| found.beam_indices.clone()).collect();
    events.push(Event::Beams { request: job.id, found: output });
    for (index, found) in found.into_iter().enumerate() {
        let usage = job.beam_usage(found.new_tokens.len());
        let request = job.id;
        let token = |id| Event::Token { request, index, id, details: None };
        events.extend(found.new_tokens.into_iter().map(token));
        let reason = found.reason.unwrap_or(FinishReason::Context);
        events.push(Event::Finished { request, index, reason, usage });
    }
    Ok(())
}
