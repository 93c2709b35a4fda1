//! Writing a branch while the engine runs, so that little is lost where it never ends in an orderly way.
//!
//! The engine hands over one page or snapshot at a time, and a thread of the file's own does the rest. Pages that are
//! still to be handed over have one more owner, so that nobody writes to them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gruff_models::Caches;

use super::file::{self, Header, PrefixFile, Section};
use super::{DiskCache, LEAST, not_written};
use crate::prefix::Branch;

/// A branch is written again when what its file lacks is this part of it: a conversation that grows is not written anew
/// with each of its turns.
const GROWTH: usize = 4;

/// How long to wait for the thread where it has no room for another section.
const PAUSE: Duration = Duration::from_millis(5);

/// How long nothing is tried again behind a file that could not be written.
const AFTER_FAULT: Duration = Duration::from_secs(60);

/// A file on its way.
pub(crate) struct Saving {
    path: PathBuf,
    size: u64,
    branch: Branch,
    /// Sections that were handed over.
    given: usize,
    /// One that there was no room for.
    held: Option<Section>,
    /// Closed when all were handed over.
    sections: Option<SyncSender<Section>>,
    thread: JoinHandle<Result<PrefixFile, String>>,
}

/// What is to be done with it.
pub(crate) enum Progress {
    /// Look again, after a while if need be.
    Goes(Duration),
    /// The thread has ended.
    Ended,
    /// It cannot go on.
    Void,
}

impl Saving {
    /// The pages that it still has to read, which it is an owner of.
    pub(crate) fn pages(&self) -> &[u32] {
        match self.sections {
            Some(_) => &self.branch.pages,
            None => &[],
        }
    }

    /// Hands the next section over, if there is room for it. Gives the pages that it owns no more.
    pub(crate) fn go_on(&mut self, caches: &Caches) -> (Progress, Vec<u32>) {
        let Some(sections) = &self.sections else {
            let over = self.thread.is_finished();
            return (if over { Progress::Ended } else { Progress::Goes(PAUSE) }, Vec::new());
        };
        // What the tree has given up since is not held for longer than that.
        if self.branch.snapshots.iter().any(|snapshot| Arc::strong_count(snapshot) == 1) {
            return (Progress::Void, Vec::new());
        }
        let next = match (self.held.take(), self.branch.pages.get(self.given)) {
            (Some(held), _) => Ok(Some(held)),
            (None, Some(page)) => caches.page_bytes(*page).map(|bytes| Some(Section::Page(bytes))),
            (None, None) => {
                let snapshot = self.branch.snapshots.get(self.given - self.branch.pages.len());
                Ok(snapshot.cloned().map(Section::Snapshot))
            }
        };
        match next {
            Ok(Some(section)) => match sections.try_send(section) {
                Ok(()) => {
                    self.given += 1;
                    (Progress::Goes(Duration::ZERO), Vec::new())
                }
                Err(TrySendError::Full(section)) => {
                    self.held = Some(section);
                    (Progress::Goes(PAUSE), Vec::new())
                }
                // The thread has met a fault.
                Err(TrySendError::Disconnected(_)) => (Progress::Ended, Vec::new()),
            },
            Ok(None) => {
                self.sections = None;
                self.branch.snapshots.clear();
                (Progress::Goes(PAUSE), std::mem::take(&mut self.branch.pages))
            }
            Err(error) => {
                tracing::warn!("a page is not kept: {error}");
                (Progress::Void, Vec::new())
            }
        }
    }

    /// Gives it up: the thread finds that there is not all of it and removes what it wrote. Gives the pages that it owned.
    pub(crate) fn give_up(self) -> Vec<u32> {
        self.branch.pages
    }

    /// Waits for the thread. Gives the pages that it owned, and what became of the file unless it was given up.
    fn end(mut self) -> (Vec<u32>, PathBuf, u64, Option<Result<PrefixFile, String>>) {
        let given_up = self.sections.take().is_some() && !self.thread.is_finished();
        let written =
            self.thread.join().unwrap_or_else(|_| Err("the thread that writes it has panicked".to_owned()));
        (self.branch.pages, self.path, self.size, (!given_up).then_some(written))
    }
}

impl DiskCache {
    /// Begins to write the branch that was used last of those that are worth it; `None` where there is nothing to write.
    /// The caller makes it an owner of the branch's pages.
    pub(crate) fn begin(&mut self, branches: Vec<Branch>, recurrent: bool) -> Option<Saving> {
        if self.rests_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let (branch, header, keep, total) = self.next(branches, recurrent)?;
        let path = self.folder.join(header.name());
        let size = file::size(&header, &self.sizes)?;
        self.make_room(total, &keep);
        let (sender, receiver): (_, Receiver<Section>) = sync_channel(1);
        let name = path.clone();
        let write = move || file::write(&name, header, receiver.into_iter().map(Ok));
        match std::thread::Builder::new().name("gruff-files".to_owned()).spawn(write) {
            Ok(thread) => {
                Some(Saving { path, size, branch, given: 0, held: None, sections: Some(sender), thread })
            }
            Err(error) => {
                self.failed(&path, &error.to_string());
                None
            }
        }
    }

    /// The first branch of which files lack much; with its header, the files of those before it, and the bytes of all of
    /// these. Those used before it take no room of theirs.
    fn next(&self, branches: Vec<Branch>, recurrent: bool) -> Option<(Branch, Header, Vec<PathBuf>, u64)> {
        let (mut keep, mut total): (Vec<PathBuf>, u64) = (Vec::new(), 0);
        for branch in branches {
            let len = match recurrent {
                true => branch.snapshots.last().map_or(0, |snapshot| snapshot.len()),
                false => branch.tokens.len(),
            };
            if len < LEAST {
                continue;
            }
            let reach = |entry: &&super::Entry| entry.reach(&branch.tokens, recurrent);
            let known = self.entries.iter().max_by_key(reach);
            let lacking = len - known.as_ref().map_or(0, reach).min(len);
            match known.filter(|_| lacking < LEAST.max(len / GROWTH)) {
                Some(entry) if keep.iter().any(|path| path == entry.file.path()) => {}
                Some(entry) => {
                    keep.push(entry.file.path().to_owned());
                    total += entry.size;
                }
                None => {
                    let header = self.header(&branch);
                    total += file::size(&header, &self.sizes)?;
                    return (total <= self.budget).then_some((branch, header, keep, total));
                }
            }
        }
        None
    }

    /// Takes in what became of a file, and gives the pages that it owned.
    pub(crate) fn end(&mut self, saving: Saving) -> Vec<u32> {
        let (pages, path, size, written) = saving.end();
        match written {
            Some(Ok(file)) => self.wrote(file, size),
            Some(Err(fault)) => self.failed(&path, &fault),
            None => {}
        }
        pages
    }

    fn failed(&mut self, path: &std::path::Path, fault: &str) {
        not_written(path, fault);
        self.rests_until = Instant::now().checked_add(AFTER_FAULT);
    }
}
