//! Writing a branch while the engine runs, so that little is lost where it never ends in an orderly way.
//!
//! The engine hands over one page or snapshot at a time, and a thread of the file's own does the rest. Pages that are
//! still to be handed over have one more owner, so that nobody writes to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gruff_models::Caches;

use super::file::{self, Header, PrefixFile, Section};
use super::{DiskCache, LEAST, make_room, not_written, remove};
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
    /// What it was to keep is not kept any more.
    Void,
    /// A page cannot be had, and why.
    Failed(String),
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
                // The thread has met a fault, and says so when it has removed what it wrote.
                Err(TrySendError::Disconnected(_)) => self.close(),
            },
            Ok(None) => self.close(),
            Err(error) => (Progress::Failed(error.to_string()), Vec::new()),
        }
    }

    /// Hands nothing over any more. The thread goes on with what it has.
    fn close(&mut self) -> (Progress, Vec<u32>) {
        self.sections = None;
        self.branch.snapshots.clear();
        (Progress::Goes(PAUSE), std::mem::take(&mut self.branch.pages))
    }
}

/// What became of a file, when its thread has ended.
fn join(thread: JoinHandle<Result<PrefixFile, String>>) -> Result<PrefixFile, String> {
    thread.join().unwrap_or_else(|_| Err("the thread that writes it has panicked".to_owned()))
}

impl DiskCache {
    /// How long nothing can be begun: a file could not be written, or one that was given up is still being removed.
    pub(crate) fn rest(&mut self) -> Option<Duration> {
        if self.given_up.as_ref().is_some_and(|(thread, _)| !thread.is_finished()) {
            return Some(PAUSE);
        }
        self.end_given_up();
        let rest = self.rests_until?.saturating_duration_since(Instant::now());
        Some(rest).filter(|rest| !rest.is_zero())
    }

    /// Begins to write the branch that was used last of those that are worth it, while there is no [rest](Self::rest);
    /// `None` where there is nothing to write, or a rest now. The caller makes it an owner of the branch's pages.
    pub(crate) fn begin(
        &mut self,
        branches: impl Iterator<Item = Branch>,
        recurrent: bool,
    ) -> Option<Saving> {
        let (branch, header, keep, total) = self.next(branches, recurrent)?;
        let path = self.folder.join(header.name());
        let size = file::size(&header, &self.sizes)?;
        let (sender, receiver): (_, Receiver<Section>) = sync_channel(1);
        let (name, root, budget) = (path.clone(), self.root.clone(), self.budget);
        let superseded = self.superseded(&header);
        // Folders are looked through and files removed on the thread too: answers do not wait for it.
        let write = move || {
            make_room(&root, budget, total, &keep);
            let file = file::write(&name, header, receiver.into_iter().map(Ok))?;
            remove(&superseded);
            Ok(file)
        };
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
    fn next(
        &mut self,
        branches: impl Iterator<Item = Branch>,
        recurrent: bool,
    ) -> Option<(Branch, Header, Vec<PathBuf>, u64)> {
        self.forget_removed();
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

    /// Waits for the thread, takes in what became of the file, and gives the pages that it owned.
    pub(crate) fn end(&mut self, saving: Saving) -> Vec<u32> {
        let Saving { path, size, branch, sections, thread, .. } = saving;
        let is_whole = sections.is_none();
        drop(sections);
        match join(thread) {
            Ok(file) => self.wrote(file, size),
            Err(fault) if is_whole => self.failed(&path, &fault),
            Err(_) => {}
        }
        branch.pages
    }

    /// Gives a file up: its thread finds that there is not all of it and removes what it wrote. Gives the pages that it
    /// owned.
    pub(crate) fn give_up(&mut self, saving: Saving) -> Vec<u32> {
        let Saving { size, branch, thread, .. } = saving;
        self.given_up = Some((thread, size));
        branch.pages
    }

    /// Gives a file up for a fault, which lets the others rest too.
    pub(crate) fn fail(&mut self, saving: Saving, fault: &str) -> Vec<u32> {
        self.failed(&saving.path, fault);
        self.give_up(saving)
    }

    /// Waits for the thread of a file that was given up. There may have been all of it.
    pub(super) fn end_given_up(&mut self) {
        if let Some((thread, size)) = self.given_up.take()
            && let Ok(file) = join(thread)
        {
            self.wrote(file, size);
        }
    }

    fn failed(&mut self, path: &Path, fault: &str) {
        not_written(path, fault);
        self.rests_until = Instant::now().checked_add(AFTER_FAULT);
    }
}

#[cfg(test)]
mod tests {
    use gruff_kernels::{Activations, Device, KvDtype};
    use gruff_models::{CacheOptions, CachePlan, LayerCache};

    use super::*;
    use crate::disk::Sizes;

    fn parts(folder: &Path) -> (DiskCache, Caches) {
        let plan = CachePlan::new(vec![LayerCache::Kv { kv_heads: 1, key_dim: 8, value_dim: 8 }]);
        let options = CacheOptions { kv_dtype: KvDtype::F32, pages: 2, slots: 1, rollback: 0 };
        let caches = Caches::new(&Device::reference(Activations::F32), &plan, &options).unwrap();
        let disk = DiskCache {
            root: folder.to_owned(),
            budget: 1 << 20,
            folder: folder.to_owned(),
            identity: String::new(),
            sizes: Sizes { page: plan.bytes_per_page(KvDtype::F32), caches: plan },
            entries: Vec::new(),
            revision: None,
            rests_until: None,
            given_up: None,
        };
        (disk, caches)
    }

    /// A file whose thread does this with what it is handed.
    fn saving(
        page: u32,
        write: impl FnOnce(Receiver<Section>) -> Result<PrefixFile, String> + Send + 'static,
    ) -> Saving {
        let (sender, receiver) = sync_channel(1);
        Saving {
            path: PathBuf::from("a.gruffpre"),
            size: 1,
            branch: Branch { tokens: vec![0; LEAST], pages: vec![page], snapshots: Vec::new() },
            given: 0,
            held: None,
            sections: Some(sender),
            thread: std::thread::spawn(move || write(receiver)),
        }
    }

    #[test]
    fn a_fault_of_the_thread_is_told_however_long_it_cleans_up() {
        let folder = tempfile::tempdir().unwrap();
        let (mut disk, caches) = parts(folder.path());
        let mut saving = saving(1, |receiver| {
            drop(receiver);
            std::thread::sleep(Duration::from_millis(200));
            Err("no space is left".to_owned())
        });
        let mut pages = Vec::new();
        loop {
            let (progress, given) = saving.go_on(&caches);
            pages.extend(given);
            match progress {
                Progress::Goes(pause) => std::thread::sleep(pause),
                Progress::Ended => break,
                Progress::Void | Progress::Failed(_) => panic!("the thread has ended"),
            }
        }
        assert!(saving.thread.is_finished(), "nobody waits for it");
        pages.extend(disk.end(saving));
        assert_eq!(pages, [1]);
        assert!(disk.rest().is_some_and(|rest| rest > PAUSE));
    }

    #[test]
    fn a_page_that_cannot_be_had_lets_the_others_rest() {
        let folder = tempfile::tempdir().unwrap();
        let (mut disk, caches) = parts(folder.path());
        let (ended, end) = std::sync::mpsc::channel();
        let mut saving = saving(9, move |receiver| {
            let count = receiver.into_iter().count();
            end.recv().map_err(|error| error.to_string())?;
            Err(format!("{count} of 1"))
        });
        let (Progress::Failed(fault), given) = saving.go_on(&caches) else { panic!("there is no page 9") };
        assert!(given.is_empty());
        assert_eq!(disk.fail(saving, &fault), [9]);
        // While what was written of it is being removed, no other one is begun.
        assert_eq!(disk.rest(), Some(PAUSE));
        ended.send(()).unwrap();
        disk.end_given_up();
        assert!(disk.rest().is_some_and(|rest| rest > PAUSE));
    }
}
