//! Who holds slots and pages: admission, preemption, forks.

use gruff_kernels::PAGE_LEN;

use crate::engine::Engine;
use crate::job::Job;
use crate::scheduler::Share;
use crate::sequence::Sequence;
use crate::states::TokenStates;
use crate::{Event, Result};

impl Engine {
    /// Takes a request to those that wait: behind the others of its client's round.
    pub(crate) fn queue(&mut self, mut job: Job) {
        let client = job.request.client;
        let own = self.waiting.iter().filter(|other| other.request.client == client).map(|other| other.round);
        job.round = self.rounds.next(client, own.max());
        let before = self.waiting.iter().rposition(|other| other.round <= job.round);
        self.waiting.insert(before.map_or(0, |before| before + 1), job);
    }

    /// Takes a waiting request out. Those of its client behind it move up, each to the place of the one before: who gives
    /// up a request and asks another does not lose the turn, whichever of the two the engine hears of first.
    pub(crate) fn unqueue(&mut self, at: usize) -> Option<Job> {
        let mut gone = at;
        let job = self.waiting.get(at)?;
        let client = job.request.client;
        // One that was preempted has had its turn.
        let behind = if job.has_begun() { self.waiting.len() } else { at + 1 };
        for behind in behind..self.waiting.len() {
            let other = &self.waiting[behind];
            if other.request.client == client && !other.has_begun() {
                let (earlier, later) = (self.waiting[gone].round, other.round);
                self.waiting.swap(gone, behind);
                self.waiting[gone].round = earlier;
                self.waiting[behind].round = later;
                gone = behind;
            }
        }
        self.waiting.remove(gone)
    }

    /// Moves waiting requests to the running ones, in the order of their rounds, while there are slots for all of their
    /// sequences and pages for what they have to compute. Those begin with what the prefix cache holds of them; one
    /// that begins like a prompt which is being computed waits for that, and lets others pass.
    pub(crate) fn admit(&mut self) -> Result<()> {
        self.refresh();
        let mut used: usize = self.running.iter().map(Job::width).sum();
        let mut waiting = std::mem::take(&mut self.waiting);
        while let Some(mut job) = waiting.pop_front() {
            if self.is_being_computed(&job) {
                self.waiting.push_back(job);
                continue;
            }
            used = used.saturating_add(job.width());
            if used > self.options.max_sequences || !self.begin(&mut job)? {
                self.waiting.push_back(job);
                break;
            }
            self.rounds.begun(job.request.client, job.round);
            self.running.push(job);
        }
        self.waiting.append(&mut waiting);
        Ok(())
    }

    /// Gives a request's sequences slots and what the prefix cache holds of their tokens; `false`, and nothing done,
    /// when what is left to compute has no room beside others.
    fn begin(&mut self, job: &mut Job) -> Result<bool> {
        // What files hold goes into the tree first: hits are of the tree as it is. A request that is not admitted now
        // does not have them read again.
        if !std::mem::replace(&mut job.looked_for, true) {
            job.members.iter().for_each(|member| self.load(member));
        }
        let hits: Vec<_> = job.members.iter().map(|member| self.look_up(member)).collect();
        let needed: usize = job
            .members
            .iter()
            .zip(&hits)
            .map(|(member, hit)| {
                let held = hit.as_ref().map_or(0, |hit| hit.past / PAGE_LEN);
                (member.tokens.len() + 1).div_ceil(PAGE_LEN) - held
            })
            .sum();
        // Running sequences still have to take what their tokens need, and each may soon need one more.
        let needed = needed + self.running.iter().map(Job::owed_pages).sum::<usize>();
        let has_room = |engine: &Self| {
            let free = engine.pages.available();
            needed <= free || needed <= free + engine.prefix.evictable(&engine.pages)
        };
        let fits = self.running.is_empty() || has_room(self) || (self.give_up_saving() && has_room(self));
        if !fits {
            hits.into_iter().flatten().for_each(|hit| self.pages.give_back(hit.pages));
            return Ok(false);
        }
        for (member, mut hit) in job.members.iter_mut().zip(hits) {
            // Without its state a recurrent model cannot go on from a hit: all is computed.
            if self.keeper.recurrent
                && let Some(lost) = hit.take_if(|hit| self.prefix.state(hit).is_none())
            {
                self.pages.give_back(lost.pages);
            }
            let slot = self.take_slot()?;
            let restored = match hit.as_ref().and_then(|hit| self.prefix.state(hit)) {
                Some(state) => self.caches.restore(state, slot),
                None => Ok(()),
            };
            if let Err(fault) = restored
                && let Some(lost) = hit.take()
            {
                // It could not be copied out, or not back. A sequence that begins anew reads nothing of its slot.
                tracing::warn!("a kept state is given up: {fault}");
                self.prefix.lose_state(&mut self.pages, &lost);
                self.pages.give_back(lost.pages);
            }
            self.prefix.begun(hit.as_ref());
            let (pages, past) = hit.map_or((Vec::new(), 0), |hit| (hit.pages, hit.past));
            member.admit(slot, pages, past, self.revision);
            member.stops = self.keeper.stops(&job.request.borders, member.tokens.len());
        }
        Ok(true)
    }

    fn take_slot(&mut self) -> Result<u32> {
        let slot = self.slots.take(1).and_then(|mut slots| slots.pop());
        slot.ok_or_else(|| {
            crate::Error::Memory("no slot is left for another sequence of this request".to_owned())
        })
    }

    /// Gives every share pages of its own to write to; where there are none left, the prefix cache loses some first,
    /// then the youngest request goes back to waiting (and computes the same tokens again later, as far as the cache
    /// has not kept them). Not while tokens are on their way, which may end answers: `false` says that they are to be taken
    /// in and the step is to be planned anew.
    pub(crate) fn provide_pages(&mut self, shares: &mut Vec<Share>, events: &mut Vec<Event>) -> Result<bool> {
        let mut at = 0;
        while let Some(share) = shares.get(at).copied() {
            let sequence = &mut self.running[share.job].members[share.member];
            let (past, end) = (sequence.past, sequence.past + share.tokens);
            let written = past / PAGE_LEN..sequence.pages.len().min(end.div_ceil(PAGE_LEN));
            let shared: Vec<usize> =
                written.filter(|index| self.pages.is_shared(sequence.pages[*index])).collect();
            let copied: Vec<u32> = shared.iter().map(|index| sequence.pages[*index]).collect();
            if let Some(mut fresh) = self.pages.take(shared.len() + sequence.missing_pages(end)) {
                for index in shared {
                    let Some(own) = fresh.pop() else { break };
                    let other = std::mem::replace(&mut sequence.pages[index], own);
                    if index * PAGE_LEN < past {
                        self.caches.copy_page(other, own)?;
                    }
                    self.pages.give_back([other]);
                }
                sequence.pages.extend(fresh);
                at += 1;
            } else if !self.prefix.evict(&mut self.pages)
                // A copy is not needed where the tree is the other owner, and lets go.
                && !self.prefix.give_up(&mut self.pages, &copied)
                && !self.give_up_saving()
            {
                if self.late.is_some() {
                    return Ok(false);
                }
                let youngest = self.running.len() - 1;
                if youngest == 0 {
                    let message = format!(
                        "the caches hold {} tokens, which the {} sequences of this request outgrow; ask for fewer \
                         of them or for larger caches",
                        self.memory.cache_tokens,
                        self.running[0].members.len()
                    );
                    self.drop_failed(0, message, events);
                } else {
                    self.preempt(youngest);
                }
                shares.retain(|share| share.job != youngest);
                at = at.min(shares.len());
            }
        }
        Ok(true)
    }

    fn preempt(&mut self, index: usize) {
        let mut job = self.running.remove(index);
        for member in &mut job.members {
            self.keep_end(member);
            self.pages.give_back(std::mem::take(&mut member.pages));
            self.slots.give_back(member.slot.take());
            (member.past, member.head) = (0, 0);
            member.drafts.clear();
            member.late = None;
            member.rows.clear();
            member.states = member.states.as_ref().map(|_| TokenStates::default());
        }
        self.preemptions += 1;
        self.waiting.push_front(job);
    }

    /// Ends the requests of all shares, whose caches are not to be relied on.
    pub(crate) fn fail(&mut self, shares: &[Share], message: &str, events: &mut Vec<Event>) {
        let mut ids = Vec::with_capacity(shares.len());
        for share in shares {
            let job = &mut self.running[share.job];
            ids.push(job.id);
            // Nothing of it is kept, should it turn out to have ended.
            job.members[share.member].past = 0;
        }
        ids.dedup();
        // What the step before chose is good.
        self.arrive(events);
        for id in ids {
            if let Some(index) = self.running.iter().position(|job| job.id == id) {
                self.drop_failed(index, message.to_owned(), events);
            }
        }
    }

    pub(crate) fn drop_failed(&mut self, index: usize, message: String, events: &mut Vec<Event>) {
        let job = self.running.remove(index);
        events.push(Event::Failed { request: job.id, message });
        self.discard(job);
    }

    /// Gives back what a request holds.
    pub(crate) fn discard(&mut self, job: Job) {
        job.members.into_iter().for_each(|member| self.release(member));
    }

    /// Gives back what a sequence holds.
    pub(crate) fn release(&mut self, sequence: Sequence) {
        self.pages.give_back(sequence.pages);
        self.slots.give_back(sequence.slot);
    }

    /// A copy of a sequence that shares its pages and has a copy of its state.
    pub(crate) fn fork(&mut self, sequence: &Sequence, index: usize) -> Result<Sequence> {
        let mut fork = sequence.fork(index);
        let to = self.take_slot()?;
        if let Err(error) = self.caches.copy_slot(sequence.slot.unwrap_or_default(), to) {
            self.slots.give_back([to]);
            return Err(error.into());
        }
        fork.slot = Some(to);
        let pages = &sequence.pages[..sequence.past.div_ceil(PAGE_LEN).min(sequence.pages.len())];
        self.pages.share(pages);
        fork.pages = pages.to_vec();
        fork.follow(sequence);
        Ok(fork)
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
