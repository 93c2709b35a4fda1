//! Steps that begin before the tokens of the one before are read: those stay on the device, where the next step finds
//! them, and are told of while it runs. So the device never waits for the host.
//!
//! An answer that turns out to have ended has one token too many in the step that began meanwhile: its choice behind the
//! last token, which is dropped. What the caches hold is then all of the answer instead of all but its last token.

use gruff_kernels::{Later, Tensor};

use crate::engine::Engine;
use crate::forward::Rows;
use crate::job::{Job, Mode};
use crate::scheduler::Share;
use crate::sequence::Sequence;
use crate::{Error, Event, RequestId, Result};

/// Tokens that a step has chosen and nobody has read yet; sequences know their rows ([`Sequence::late`]).
pub(crate) struct Late {
    ids: Tensor,
    later: Later,
}

impl Late {
    /// `[R]` i32 on the device.
    pub(crate) fn ids(&self) -> &Tensor {
        &self.ids
    }
}

/// A step, its tokens read or on their way.
pub(crate) enum Step {
    Read(Rows),
    Late(LateRows),
}

/// What is left of a step whose tokens are on their way.
pub(crate) struct LateRows {
    /// For each share its row, where it has one.
    rows: Vec<Option<u32>>,
    late: Option<Late>,
}

impl Rows {
    /// Has the tokens copied to the host without waiting for them.
    pub(crate) fn read_later(self) -> Result<Step> {
        let rows =
            self.ranges.iter().map(|range| (!range.is_empty()).then_some(range.start as u32)).collect();
        let read = |ids: Tensor| -> Result<Late> { Ok(Late { later: ids.read_later()?, ids }) };
        Ok(Step::Late(LateRows { rows, late: self.chosen.map(read).transpose()? }))
    }
}

impl Job {
    /// Whether the device chooses all its tokens and nobody has to know one before the next is computed.
    fn may_be_late(&self) -> bool {
        let alone = |member: &Sequence| {
            member.is_fused(self.request.outputs)
                && member.sampling.repetition_penalty == 1.0
                && member.drafter.is_none()
                && member.adapters.is_none()
        };
        // Several answers begin with copies of one state, which each of them chooses from.
        matches!(self.mode, Mode::Separate { answers: ..=1 })
            && self.guidance.is_none()
            && !self.request.outputs.any()
            && self.members.iter().all(alone)
    }
}

impl Engine {
    /// Whether the next step may begin before the tokens of the last one are read.
    pub(crate) fn may_be_late(&self) -> bool {
        self.late_ids && self.model.takes_late_ids() && self.running.iter().all(Job::may_be_late)
    }

    /// Notes what a step of these shares will have brought, and takes in the tokens of the one before.
    pub(crate) fn go_on(&mut self, shares: &[Share], step: LateRows, events: &mut Vec<Event>) {
        let mut chosen: Vec<(RequestId, usize, u32)> = Vec::with_capacity(shares.len());
        for (share, row) in shares.iter().zip(&step.rows) {
            let job = &mut self.running[share.job];
            let member = &mut job.members[share.member];
            member.past += share.tokens;
            member.head = member.head.max(member.past);
            match row {
                Some(row) => chosen.push((job.id, member.index, *row)),
                None => {
                    let (done, total) = (member.past, member.tokens.len());
                    events.push(Event::Prompt { request: job.id, done, total });
                }
            }
        }
        self.arrive(events);
        for (id, index, row) in chosen {
            let job = self.running.iter_mut().find(|job| job.id == id);
            let member = job.and_then(|job| job.members.iter_mut().find(|member| member.index == index));
            // One that has ended meanwhile is not there any more.
            if let Some(member) = member {
                member.late = Some(row);
            }
        }
        self.late = step.late;
        let mut jobs = std::mem::take(&mut self.running);
        jobs.iter_mut().for_each(|job| self.keep_progress(job));
        self.running = jobs;
    }

    /// Reads the tokens that are on their way, if any are, and tells of them.
    pub(crate) fn arrive(&mut self, events: &mut Vec<Event>) {
        let Some(late) = self.late.take() else { return };
        let ids = late.later.wait();
        for mut job in std::mem::take(&mut self.running) {
            match take_in(&mut job, &ids, events) {
                Ok(ended) => {
                    for place in ended.into_iter().rev() {
                        let member = job.members.remove(place);
                        self.park(member);
                    }
                    if job.members.is_empty() { self.retire(job) } else { self.running.push(job) }
                }
                Err(error) => {
                    events.push(Event::Failed { request: job.id, message: error.to_string() });
                    self.discard(job);
                }
            }
        }
    }
}

/// Takes the tokens of a request's answers in; which of them have ended.
fn take_in(
    job: &mut Job,
    ids: &gruff_kernels::Result<Vec<i32>>,
    events: &mut Vec<Event>,
) -> Result<Vec<usize>> {
    let request = job.id;
    let mut ended = Vec::new();
    for (place, member) in job.members.iter_mut().enumerate() {
        let Some(row) = member.late.take() else { continue };
        let ids = ids.as_ref().map_err(|fault| Error::Custom(fault.to_string()))?;
        let id = ids.get(row as usize).and_then(|id| u32::try_from(*id).ok());
        let id = id.ok_or(Error::Logits { position: member.tokens.len() })?;
        events.push(Event::Token { request, index: member.index, id, details: None });
        if let Some(reason) = member.push(id)? {
            let usage = member.usage();
            events.push(Event::Finished { request, index: member.index, reason, usage });
            ended.push(place);
        }
    }
    Ok(ended)
}
