//! What becomes of the logits of a step: tokens, forks, ends.

use crate::beams::Found;
use crate::choose::{Chosen, describe, values};
use crate::engine::Engine;
use crate::forward::Rows;
use crate::job::{Job, Mode};
use crate::logits::{guide, log_softmax};
use crate::scheduler::Share;
use crate::sequence::{Sequence, ends};
use crate::stopping::StoppingCriteria;
use crate::{BeamOutput, Error, Event, FinishReason, OutputOptions, Request, RequestId, Result};

impl Engine {
    /// Takes the logits of a step in, tells of the tokens, and keeps what has ended. A request that goes wrong ends
    /// alone.
    pub(crate) fn deliver(&mut self, shares: &[Share], rows: &Rows, events: &mut Vec<Event>) -> Result<()> {
        let jobs = std::mem::take(&mut self.running);
        for (index, mut job) in jobs.into_iter().enumerate() {
            let own = shares.iter().enumerate().filter(|(_, share)| share.job == index);
            let (mut ready, mut told) = (Vec::new(), Ok(()));
            for (place, share) in own {
                let range = &rows.ranges[place];
                told = told.and_then(|()| tell_prompt(&mut job, share, rows, place, events));
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
            match told.and_then(|()| self.advance(&mut job, &ready, rows, events)) {
                Ok(true) => {
                    self.keep_progress(&mut job);
                    self.running.push(job);
                }
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
        if job.guidance.is_none() && matches!(job.mode, Mode::Separate { .. }) {
            self.split(job)?;
            return self.advance_answers(job, ready, rows, events);
        }
        for (member, range) in ready {
            let own = range.clone().map(|row| values(&rows.logits, row));
            job.members[*member].rows = own.collect::<Result<_>>()?;
        }
        if job.members.iter().any(|member| member.rows.is_empty()) {
            return Ok(true);
        }
        match (&job.mode, job.guidance) {
            (Mode::Separate { .. }, Some(scale)) => {
                self.split(job)?;
                self.advance_guided(job, scale, rows, events)
            }
            _ => self.advance_beams(job, events),
        }
    }

    /// Makes of the first answer as many as were asked for: its prompt is computed, and the others begin where it ends.
    fn split(&mut self, job: &mut Job) -> Result<()> {
        let Mode::Separate { answers } = &mut job.mode else { return Ok(()) };
        let answers = std::mem::replace(answers, 1);
        let stride = job.stride();
        for index in 1..answers {
            for part in 0..stride {
                let first = &job.members[part];
                let mut fork = self.fork(first, index)?;
                fork.rows.clone_from(&first.rows);
                // Only answers have drafts of their own.
                if let Some(speculation) = job.request.speculation.as_ref().filter(|_| part == 0) {
                    fork.drafter = Some(speculation.drafter(&fork.sampling, fork.max_length())?);
                }
                job.members.push(fork);
            }
        }
        Ok(())
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
            let drafts = std::mem::take(&mut member.drafts);
            let choose = |member: &mut Sequence, step: usize| {
                let row = range.start + step;
                match &rows.ids {
                    Some(ids) if !forked && member.is_fused(outputs) => {
                        let id = ids.get(row).and_then(|id| u32::try_from(*id).ok());
                        let id = id.ok_or(Error::Logits { position: member.tokens.len() })?;
                        Ok(Chosen { id, details: None })
                    }
                    _ => member.choose(&rows.logits, row, outputs),
                }
            };
            let reason = verify(member, id, range.len(), &drafts, choose, outputs, events)?;
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

    /// One step of guided answers, all of which have their logits and their companions'.
    fn advance_guided(
        &mut self,
        job: &mut Job,
        scale: f32,
        rows: &Rows,
        events: &mut Vec<Event>,
    ) -> Result<bool> {
        let (id, outputs) = (job.id, job.request.outputs);
        let mut ended = Vec::new();
        for (place, pair) in job.members.chunks_exact_mut(2).enumerate() {
            let [answer, companion] = pair else { continue };
            let (own, negative) = (std::mem::take(&mut answer.rows), std::mem::take(&mut companion.rows));
            let known = answer.tokens.len();
            let drafts = std::mem::take(&mut answer.drafts);
            let choose = |answer: &mut Sequence, step: usize| {
                let mut row = own[step].clone();
                guide(&mut row, &negative[step], scale);
                answer.choose_from(&own[step], row, &rows.logits, outputs)
            };
            let count = own.len().min(negative.len());
            let reason = verify(answer, id, count, &drafts, choose, outputs, events)?;
            companion.drafts.clear();
            answer.tokens[known..].iter().for_each(|id| companion.append(*id));
            companion.past = companion.tokens.len() - 1;
            if let Some(reason) = reason {
                let usage = answer.usage();
                events.push(Event::Finished { request: id, index: answer.index, reason, usage });
                ended.push(2 * place);
            }
        }
        for place in ended.into_iter().rev() {
            let companion = job.members.remove(place + 1);
            self.release(companion);
            let answer = job.members.remove(place);
            self.park(answer);
        }
        Ok(!job.members.is_empty())
    }

    /// One step of a search with beams, whose members all have their logits.
    fn advance_beams(&mut self, job: &mut Job, events: &mut Vec<Event>) -> Result<bool> {
        let stride = job.stride();
        let Mode::Beams { search, answers, output } = &mut job.mode else { return Ok(true) };
        let outputs = job.request.outputs;
        let scores = beam_scores(&mut job.members, job.guidance, outputs, output)?;
        let Some(first) = job.members.first() else { return Ok(false) };
        let position = first.tokens.len();
        let (most, prompt_len) = (first.max_length(), job.request.prompt.len());
        let seed = job.request.sampling.seed;
        let candidates = search.candidates(&scores, job.request.end_tokens.len(), seed, position);
        if candidates.is_empty() {
            return Err(Error::Logits { position });
        }
        let mut judged = Vec::with_capacity(candidates.len());
        let mut refused = None;
        for candidate in candidates {
            match judge(&job.members[candidate.beam * stride], candidate.token, &job.request)? {
                Judgement::Stands { criteria, reason } => judged.push((candidate, reason, criteria)),
                Judgement::MayNotEnd(objection) => refused = Some(objection),
            }
        }
        if let Some(objection) = refused.filter(|_| judged.is_empty() && !search.has_found()) {
            return Err(objection);
        }
        let answers_so_far: Vec<&[u32]> =
            job.members.iter().step_by(stride).map(|member| &member.tokens[prompt_len..]).collect();
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
        mut criteria: impl FnMut(usize, u32) -> Option<Vec<Box<dyn StoppingCriteria>>>,
    ) -> Result<()> {
        let stride = job.stride();
        let mut old: Vec<Option<Sequence>> = job.members.drain(..).map(Some).collect();
        for (at, sequence) in old.iter_mut().enumerate() {
            if next.iter().all(|(parent, _)| *parent != at / stride)
                && let Some(sequence) = sequence.take()
            {
                self.release(sequence);
            }
        }
        let mut followed = Ok(());
        'all: for (place, (beam, token)) in next.iter().enumerate() {
            let again = next[place + 1..].iter().any(|(parent, _)| parent == beam);
            for part in 0..stride {
                let sequence = match &mut old[beam * stride + part] {
                    Some(sequence) if again => match self.fork(sequence, 0) {
                        Ok(fork) => Some(fork),
                        Err(error) => {
                            followed = Err(error);
                            break 'all;
                        }
                    },
                    last => last.take(),
                };
                let Some(mut sequence) = sequence else { continue };
                sequence.rows.clear();
                sequence.append(*token);
                if part == 0
                    && let Some(criteria) = criteria(*beam, *token)
                {
                    sequence.criteria = criteria;
                }
                job.members.push(sequence);
            }
        }
        // What a failure has left behind is given back with the request.
        job.members.extend(old.into_iter().flatten());
        followed
    }
}

/// Tells what was asked of tokens of a prompt, by the rows of the share at `place` that lead to them.
fn tell_prompt(
    job: &mut Job,
    share: &Share,
    rows: &Rows,
    place: usize,
    events: &mut Vec<Event>,
) -> Result<()> {
    let range = rows.prompts[place].clone();
    if range.is_empty() {
        return Ok(());
    }
    let outputs = OutputOptions { logprobs: job.request.outputs.prompt_logprobs, ..OutputOptions::default() };
    let sequence = &mut job.members[share.member];
    let told = sequence.telling(sequence.past + share.tokens);
    let mut details = Vec::with_capacity(range.len());
    for (place, row) in told.clone().zip(range) {
        details.push(*describe(&values(&rows.logits, row)?, None, sequence.tokens[place], outputs));
    }
    sequence.has_told(told.end);
    events.push(Event::PromptDetails { request: job.id, details });
    Ok(())
}

/// Takes the tokens of one answer, of `count` rows: the one behind its last token and, as long as the `drafts` are
/// right, those behind them. `choose` gives the token of row number `step`.
fn verify(
    sequence: &mut Sequence,
    request: RequestId,
    count: usize,
    drafts: &[u32],
    mut choose: impl FnMut(&mut Sequence, usize) -> Result<Chosen>,
    outputs: OutputOptions,
    events: &mut Vec<Event>,
) -> Result<Option<FinishReason>> {
    let (mut accepted, mut ended) = (0, None);
    for step in 0..count {
        let Chosen { id, mut details } = choose(sequence, step)?;
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

/// Logarithms of probabilities behind all processors, for each running beam; with guidance each has its companion
/// behind it.
fn beam_scores(
    members: &mut [Sequence],
    guidance: Option<f32>,
    outputs: OutputOptions,
    output: &mut BeamOutput,
) -> Result<Vec<Vec<f32>>> {
    let mut raw = Vec::new();
    let mut scores = Vec::with_capacity(members.len());
    for beam in members.chunks_mut(if guidance.is_some() { 2 } else { 1 }) {
        let Some((member, companion)) = beam.split_first_mut() else { continue };
        let logits = member.rows.pop().unwrap_or_default();
        let negative = companion.first_mut().and_then(|companion| companion.rows.pop());
        let mut row: Vec<f32> = log_softmax(&logits).into_iter().map(|log| log as f32).collect();
        if let Some((negative, scale)) = negative.zip(guidance) {
            guide(&mut row, &negative, scale);
        }
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

/// What becomes of a candidate.
enum Judgement {
    /// It ends for this reason, if any; the criteria are in the state behind it.
    Stands { criteria: Vec<Box<dyn StoppingCriteria>>, reason: Option<FinishReason> },
    /// It would end where a processor does not let it.
    MayNotEnd(Error),
}

/// Whether a beam ends with this token, and may.
fn judge(member: &Sequence, token: u32, request: &Request) -> Result<Judgement> {
    let mut criteria = member.criteria.clone();
    let mut tokens = member.tokens.clone();
    tokens.push(token);
    let context = crate::logits::TokenContext { tokens: &tokens, ..member.token_context() };
    let reason = ends(&context, &mut criteria, request.max_new_tokens)?;
    if let Some(reason) = reason.filter(|_| !request.processors.is_empty())
        && let Err(objection) = member.chain.clone().finish(&context, reason)
    {
        return Ok(Judgement::MayNotEnd(objection));
    }
    Ok(Judgement::Stands { criteria, reason })
}

fn finish_beams(
    job: &mut Job,
    found: Vec<Found>,
    mut output: Box<BeamOutput>,
    events: &mut Vec<Event>,
) -> Result<()> {
    let whole = found.iter().filter(|found| found.reason.is_some()).count();
    if whole < found.len() && !job.request.processors.is_empty() {
        // What stands in for answers that were not found is not what a grammar asked for.
        let wanted = found.len();
        return Err(Error::Custom(format!(
            "the search found {whole} answers that processors let end; {wanted} were asked for: ask for fewer, or \
             for more max_new_tokens"
        )));
    }
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
