//! When what sequences hold goes into the prefix cache.

use std::time::Duration;

use gruff_kernels::{CHUNK, PAGE_LEN};
use gruff_models::CachePlan;

use crate::disk::Progress;
use crate::engine::Engine;
use crate::job::{Job, Mode};
use crate::prefix::Hit;
use crate::sequence::Sequence;
use crate::{EngineOptions, MemoryPlan};

/// Tokens that a snapshot at a message's border must save before a prompt's step is cut short for it: computing them
/// anew costs about what the further step costs.
const LEAST_GAIN: usize = CHUNK;

/// The same of a snapshot where no message ends.
const LEAST_GAIN_WITHIN: usize = 2 * CHUNK;

/// Tokens that another request must be computing for one to wait for them.
const LEAST_WAIT: usize = 2 * CHUNK;

/// Tokens from one snapshot to the next, at least and at most: steps should not be cut to small ones, and a model may
/// have no keys and values to compare a snapshot with.
const SPACING: (usize, usize) = (1024, 4096);

/// What is kept of a model's sequences, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeper {
    /// Whether anything is kept.
    enabled: bool,
    /// Whether a sequence can go on only where a snapshot of its state was kept.
    pub(crate) recurrent: bool,
    /// The most tokens that can be dropped again; `None` for any number.
    pub(crate) rollback: Option<usize>,
    /// Bytes of snapshots.
    pub(crate) snapshot_budget: u64,
    /// Tokens whose keys and values take as much as a snapshot: one is kept at each multiple.
    spacing: usize,
}

impl Keeper {
    pub(crate) fn new(caches: &CachePlan, options: &EngineOptions, memory: &MemoryPlan) -> Self {
        let recurrent = caches.is_recurrent();
        // Multiples of a chunk are where snapshots are smallest.
        let snapshot = caches.bytes_per_snapshot(CHUNK);
        let spacing = snapshot.div_ceil(caches.bytes_per_token(options.kv_dtype).max(1));
        Self {
            enabled: options.prefix_cache != Some(0),
            recurrent,
            rollback: recurrent.then_some(options.rollback),
            snapshot_budget: memory.snapshots,
            spacing: spacing.next_multiple_of(CHUNK).clamp(SPACING.0, SPACING.1),
        }
    }

    /// Lengths at which the state of a prompt of `len` tokens is kept, besides those at equal spaces: where its first
    /// message ends, which is often the same for many (instructions, tools); where its last one does, since the next
    /// turn may have the answer without its reasoning; and near its end, if that is elsewhere.
    pub(crate) fn stops(&self, borders: &[usize], len: usize) -> Vec<usize> {
        if !self.recurrent || !self.enabled {
            return Vec::new();
        }
        let inside = || borders.iter().copied().filter(|border| (1..len).contains(border));
        let last = inside().max();
        let end = (len.saturating_sub(1)) / CHUNK * CHUNK;
        let end = Some(end).filter(|end| last.unwrap_or(0) + LEAST_GAIN_WITHIN <= *end);
        let mut stops: Vec<usize> = [inside().min(), last, end].into_iter().flatten().collect();
        stops.sort_unstable();
        stops.dedup();
        stops
    }

    /// Tokens that the next step may have of a sequence, so that it ends where the state is to be kept.
    pub(crate) fn room(&self, sequence: &Sequence) -> usize {
        let past = sequence.past;
        let spaced = (past / self.spacing + 1) * self.spacing;
        let stops = sequence.stops.iter().copied().chain([spaced]);
        let next = stops.filter(|stop| *stop > past && self.is_stop(sequence, *stop)).min();
        next.map_or(usize::MAX, |stop| stop - past)
    }

    /// Of the tokens that a sequence has still to compute, and no more than the first `common`, those that will be kept
    /// for others.
    fn will_keep(&self, sequence: &Sequence, common: usize) -> usize {
        if !self.recurrent {
            return common / PAGE_LEN * PAGE_LEN;
        }
        let spaced = common / self.spacing * self.spacing;
        let stops = sequence.stops.iter().copied().chain([spaced]);
        stops.filter(|stop| (sequence.past + 1..=common).contains(stop)).max().unwrap_or(0)
    }

    /// Whether the state behind `len` tokens is worth keeping.
    fn is_stop(&self, sequence: &Sequence, len: usize) -> bool {
        if !self.enabled || !self.recurrent || sequence.states.is_some() {
            return false;
        }
        let gain = len.saturating_sub(sequence.kept);
        if sequence.stops.contains(&len) {
            return gain >= LEAST_GAIN;
        }
        // One nearby that says more is better.
        let near = |stop: &usize| (len..len + LEAST_GAIN_WITHIN).contains(stop);
        len.is_multiple_of(self.spacing) && gain >= LEAST_GAIN_WITHIN && !sequence.stops.iter().any(near)
    }
}

impl Engine {
    /// Begins anew if the model is another one than it was.
    pub(crate) fn refresh(&mut self) {
        let revision = self.model.revision();
        if revision != self.revision {
            self.give_up_saving();
            self.prefix.clear(&mut self.pages);
            self.revision = revision;
        }
    }

    /// What the prefix cache holds of a sequence that is to begin.
    pub(crate) fn look_up(&mut self, sequence: &Sequence) -> Option<Hit> {
        if !self.may_use(sequence) {
            return None;
        }
        self.prefix.lookup(&mut self.pages, sequence.adapters.as_ref(), &sequence.tokens)
    }

    /// Whether a sequence may go on from what others computed: what is to be seen of a prompt has to be computed.
    fn may_use(&self, sequence: &Sequence) -> bool {
        self.keeper.enabled && sequence.states.is_none() && sequence.untold().is_none()
    }

    /// Brings what files hold of a sequence that is to begin into the tree, where that is much more than the tree has
    /// and there are pages for all of it that nobody uses. Hits from before are void then.
    pub(crate) fn load(&mut self, sequence: &Sequence) {
        if !self.may_use(sequence) || sequence.adapters.is_some() {
            return;
        }
        let tokens = &sequence.tokens;
        let Some(disk) = self.disk.as_mut().filter(|disk| disk.serves(&*self.model)) else { return };
        let known = self.prefix.reach(None, tokens);
        let wanted = &tokens[..tokens.len() - 1];
        // One that cannot be read is forgotten, and the next best may do.
        while let Some((file, len)) = disk.best(wanted, known, self.keeper.recurrent) {
            let count = len.div_ceil(PAGE_LEN);
            if self.pages.available() + self.prefix.evictable(&self.pages) < count {
                return;
            }
            let mut pages = loop {
                match self.pages.take(count) {
                    Some(pages) => break pages,
                    None if self.prefix.evict(&mut self.pages) => {}
                    None => return,
                }
            };
            let read = disk.read(file, len, &pages, &mut self.caches, self.keeper.recurrent);
            let is_read = read.is_some();
            if let Some(snapshot) = read {
                self.prefix.insert(&mut self.pages, None, &tokens[..len], &mut pages, snapshot);
            }
            self.pages.give_back(pages);
            if is_read {
                return;
            }
        }
    }

    /// Writes what is kept to files, where there is a folder for it.
    fn save(&mut self) {
        self.end_saving();
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.serves(&*self.model))
            && self.model.revision() == self.revision
        {
            disk.write(self.prefix.branches(), &self.caches);
        }
    }

    /// Writes a little of what is kept to files, where there is a folder for it and something that is worth a file: copies
    /// a page at most and leaves the rest to a thread. Whoever has nothing else to do calls it until it gives `None`, each
    /// time after the pause that it gives, and who has calls it once a step; without that, files are written at the end
    /// alone.
    pub fn save_some(&mut self) -> Option<Duration> {
        let Some(saving) = &mut self.saving else { return self.begin_saving() };
        let (progress, pages) = saving.go_on(&self.caches);
        self.pages.give_back(pages);
        match progress {
            Progress::Goes(pause) => Some(pause),
            Progress::Ended => {
                self.end_saving();
                Some(Duration::ZERO)
            }
            Progress::Void => {
                self.give_up_saving();
                Some(Duration::ZERO)
            }
            Progress::Failed(fault) => {
                if let Some((saving, disk)) = self.saving.take().zip(self.disk.as_mut()) {
                    self.pages.give_back(disk.fail(saving, &fault));
                }
                Some(Duration::ZERO)
            }
        }
    }

    /// Whether a file is being written.
    pub fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    fn begin_saving(&mut self) -> Option<Duration> {
        let disk = self.disk.as_mut().filter(|disk| disk.serves(&*self.model))?;
        // What was looked at and found to be in files is not looked at again before something is used: that also says
        // whose files stay.
        let clock = self.prefix.clock();
        if self.model.revision() != self.revision || self.saved_at == Some(clock) {
            return None;
        }
        if let Some(rest) = disk.rest() {
            return Some(rest);
        }
        self.saving = disk.begin(self.prefix.branches(), self.keeper.recurrent);
        if let Some(saving) = &self.saving {
            self.pages.share(saving.pages());
            return Some(Duration::ZERO);
        }
        let rest = disk.rest();
        if rest.is_none() {
            self.saved_at = Some(clock);
        }
        rest
    }

    /// Takes in a file that is written, or as much of one as there was.
    fn end_saving(&mut self) {
        let Some((saving, disk)) = self.saving.take().zip(self.disk.as_mut()) else { return };
        let pages = disk.end(saving);
        self.pages.give_back(pages);
    }

    /// Gives up a file that still needs pages, for those who need them more; `false` where there is none.
    pub(crate) fn give_up_saving(&mut self) -> bool {
        let taken = self.saving.take_if(|saving| !saving.pages().is_empty());
        let Some((saving, disk)) = taken.zip(self.disk.as_mut()) else { return false };
        self.pages.give_back(disk.give_up(saving));
        true
    }

    /// Whether a request had better wait, since another one is computing what it begins with.
    pub(crate) fn is_being_computed(&self, job: &Job) -> bool {
        let saves = |first: &&Sequence| first.states.is_none() && first.untold().is_none();
        let Some(first) = job.members.first().filter(saves).filter(|_| self.keeper.enabled) else {
            return false;
        };
        let limit = first.tokens.len() - 1;
        let reach = |other: &Sequence| {
            let comparable =
                other.states.is_none() && other.adapters == first.adapters && other.revision == self.revision;
            if !comparable || other.decoding() || other.pending() == 0 {
                return 0;
            }
            let common = other.tokens.iter().zip(&first.tokens[..limit]).take_while(|(a, b)| a == b).count();
            self.keeper.will_keep(other, common)
        };
        let reach = self.running.iter().flat_map(|job| &job.members).map(reach).max().unwrap_or(0);
        reach >= LEAST_WAIT && reach >= self.prefix.reach(first.adapters.as_ref(), &first.tokens) + LEAST_WAIT
    }

    /// Keeps what a request in progress has come to, for those who begin alike.
    pub(crate) fn keep_progress(&mut self, job: &mut Job) {
        let is_search = matches!(job.mode, Mode::Beams { .. });
        for member in &mut job.members {
            // Most beams are given up.
            if is_search && member.tokens.len() > job.request.prompt.len() {
                continue;
            }
            if self.keeper.recurrent {
                if self.keeper.is_stop(member, member.past) {
                    self.keep(member, member.past);
                }
            } else if member.past / PAGE_LEN > member.kept / PAGE_LEN {
                self.keep(member, member.past / PAGE_LEN * PAGE_LEN);
            }
        }
    }

    /// Keeps what a sequence holds that ends or has to make room.
    pub(crate) fn keep_end(&mut self, sequence: &mut Sequence) {
        let least = match (self.keeper.recurrent, self.in_step) {
            (false, _) => 1,
            (true, 0 | 1) => PAGE_LEN,
            // Copies of many states at once would hold up the others for little.
            (true, _) => LEAST_GAIN_WITHIN,
        };
        if sequence.past >= sequence.kept + least {
            self.keep(sequence, sequence.past);
        }
    }

    /// Keeps the first `len` tokens of a sequence; for a model with recurrent state, all that it has computed.
    fn keep(&mut self, sequence: &mut Sequence, len: usize) {
        // What eager attention has computed is not to the bit what others would find, and what was computed before a
        // weight or a hook changed is another model's.
        let same = sequence.revision == self.revision && self.model.revision() == self.revision;
        let Some(slot) = sequence.slot.filter(|_| self.keeper.enabled && same && sequence.states.is_none())
        else {
            return;
        };
        let (key, tokens) = (sequence.adapters.as_ref(), &sequence.tokens[..len]);
        let mut snapshot = None;
        if self.keeper.recurrent && !self.prefix.has_snapshot(key, tokens) {
            match self.caches.snapshot(slot, len) {
                Ok(taken) => snapshot = Some(taken),
                Err(error) => return tracing::warn!("a state is not kept: {error}"),
            }
        }
        self.prefix.insert(&mut self.pages, key, tokens, &mut sequence.pages, snapshot);
        sequence.kept = len;
    }

    /// Keeps what the answers of an ended request hold for requests that continue them.
    pub(crate) fn retire(&mut self, job: Job) {
        match job.mode {
            Mode::Separate { .. } => {
                let stride = job.stride();
                job.members.into_iter().enumerate().for_each(|(place, member)| {
                    if place % stride == 0 { self.park(member) } else { self.release(member) }
                });
            }
            Mode::Beams { .. } => self.discard(job),
        }
    }

    /// Keeps what an ended sequence holds for a request that continues it, and gives it back.
    pub(crate) fn park(&mut self, mut sequence: Sequence) {
        self.keep_end(&mut sequence);
        self.release(sequence);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.save();
    }
}
