//! Who takes part in a step.

use crate::Event;
use crate::engine::Engine;
use crate::job::Job;
use crate::scheduler::{Budget, Load, Share, plan};
use crate::sequence::Sequence;

impl Engine {
    /// Who computes what in the next step.
    pub(crate) fn shares(&self) -> Vec<Share> {
        let budget = Budget::new(&self.memory, self.model.config().vocab_size);
        let mut shares = plan(&self.loads(), budget, self.turn);
        self.take_turns(&mut shares);
        shares
    }

    /// What all running sequences have to compute.
    fn loads(&self) -> Vec<Load> {
        let members = |(index, job): (usize, &Job)| {
            let load = |(member, sequence)| Load::of(index, member, sequence, self.keeper.room(sequence));
            // One whose last token is on its way has nothing to compute any more.
            let goes_on = |(_, sequence): &(usize, &Sequence)| {
                sequence.late.is_none() || sequence.chosen() < sequence.max_length()
            };
            job.members.iter().enumerate().filter(goes_on).map(load).collect::<Vec<_>>()
        };
        self.running.iter().enumerate().flat_map(members).collect()
    }

    /// Has the drafters of answers in progress draft.
    pub(crate) fn draft(&mut self, events: &mut Vec<Event>) {
        let (context, rollback) = (self.memory.context, self.keeper.rollback);
        let vocabulary = self.model.config().vocab_size;
        let mut failed = Vec::new();
        for (index, job) in self.running.iter_mut().enumerate() {
            let stride = job.stride();
            for members in job.members.chunks_mut(stride) {
                // Drafts of a step that it had no part in are still to be verified.
                if members.iter().any(|member| !member.decoding() || !member.drafts.is_empty()) {
                    continue;
                }
                let Some((member, companion)) = members.split_first_mut() else { continue };
                // The last token of a step is the model's own: there is no use in drafting it.
                let room = member.max_length().min(context).saturating_sub(member.tokens.len() + 1);
                let most = rollback.map_or(room, |most| room.min(most));
                let Some(drafter) = member.drafter.as_mut().filter(|_| most > 0) else { continue };
                match drafter.draft(&member.tokens, most) {
                    Ok(mut drafts) => {
                        drafts.truncate(most);
                        let known = drafts.iter().take_while(|id| (**id as usize) < vocabulary).count();
                        drafts.truncate(known);
                        companion.iter_mut().for_each(|companion| companion.drafts.clone_from(&drafts));
                        member.drafts = drafts;
                    }
                    Err(error) => failed.push((index, error.to_string())),
                }
            }
        }
        failed.dedup_by_key(|(index, _)| *index);
        for (index, message) in failed.into_iter().rev() {
            self.drop_failed(index, message, events);
        }
    }

    /// Requests that look inside the model take turns with those that do not, or look at something else: attention in
    /// plain code differs in the last bits, and a request's tokens do not depend on others.
    fn take_turns(&self, shares: &mut Vec<Share>) {
        let looks = |share: &Share| {
            let outputs = self.running[share.job].request.outputs;
            (outputs.hidden_states, outputs.attentions)
        };
        let mut kinds: Vec<_> = shares.iter().map(looks).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.len() > 1 {
            let kind = kinds[self.turn % kinds.len()];
            shares.retain(|share| looks(share) == kind);
        }
    }
}
