//! What the prefix cache holds, in files, so that it survives a restart.
//!
//! A folder has a folder of each model, and that a file of each sequence of tokens: see [`file`]. Files are written when
//! an engine ends, and before where [`saving`] does it, whole or not at all, and read when a prompt begins like one of
//! them.

mod file;
mod saving;

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use gruff_kernels::{CHUNK, PAGE_LEN};
use gruff_models::{Caches, Model, Snapshot, fingerprint};
use sha2::{Digest, Sha256};

use crate::prefix::Branch;
use crate::{EngineOptions, Error, PrefixCacheFolder, Result};
use file::{Header, PrefixFile, Section, Sizes};
pub(crate) use saving::{Progress, Saving};

/// Tokens that a file must save to be written or read.
const LEAST: usize = 256;

/// A file that was not finished for so long will not be.
const LONGEST_WRITE: Duration = Duration::from_secs(3600);

/// Letters of a model's folder.
const NAME_LEN: usize = 32;

/// A file that may be read.
struct Entry {
    file: PrefixFile,
    size: u64,
}

impl Entry {
    /// The first of `tokens`, as many as can be gone on from: a model with recurrent state goes on only where a snapshot
    /// stands.
    fn reach(&self, tokens: &[u32], recurrent: bool) -> usize {
        let header = self.file.header();
        let common = header.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if !recurrent {
            return common;
        }
        header.snapshots.iter().copied().filter(|len| *len <= common).max().unwrap_or(0)
    }
}

/// The files of one model.
pub(crate) struct DiskCache {
    /// Of all models.
    root: PathBuf,
    /// Bytes that all files may take.
    budget: u64,
    folder: PathBuf,
    identity: String,
    sizes: Sizes,
    entries: Vec<Entry>,
    /// Of the model when it was as its file says; `None` if it was not so even at the beginning.
    revision: Option<u64>,
    /// When it may be tried again to write while the engine runs.
    rests_until: Option<Instant>,
    /// What writes a file that was given up, until it has ended, and the file's size: one at a time is at it, so that
    /// what one removes is seen by the next.
    given_up: Option<(JoinHandle<Result<PrefixFile, String>>, u64)>,
}

impl DiskCache {
    /// Looks at what is there.
    pub(crate) fn open(at: &PrefixCacheFolder, model: &dyn Model, options: &EngineOptions) -> Result<Self> {
        let revision = Some(model.revision()).filter(|_| model.is_as_loaded());
        if revision.is_none() {
            tracing::warn!(
                "hooks, replaced modules, other weights or adapters: the prefix cache has no files"
            );
        }
        let identity = identity(model, options)?;
        let folder = at.path.join(&identity[..NAME_LEN]);
        std::fs::create_dir_all(&folder).map_err(|error| refusal(&at.path, &error))?;
        let caches = model.config().caches.clone();
        let sizes = Sizes { page: caches.bytes_per_page(options.kv_dtype), caches };
        let vocabulary = model.config().vocab_size;
        let mut cache = Self {
            root: at.path.clone(),
            budget: at.bytes,
            folder,
            identity,
            sizes,
            entries: Vec::new(),
            revision,
            rests_until: None,
            given_up: None,
        };
        remove_unfinished(&cache.root);
        for (path, size, _) in files_in(&cache.folder) {
            match PrefixFile::open(&path, &cache.identity, &cache.sizes, vocabulary) {
                Ok(file) => cache.entries.push(Entry { file, size }),
                Err(fault) => tracing::warn!("{} is not used: it {fault}", path.display()),
            }
        }
        Ok(cache)
    }

    /// Whether what files hold is what the model computes: nothing was ever put into it since it was loaded.
    pub(crate) fn serves(&self, model: &dyn Model) -> bool {
        self.revision == Some(model.revision())
    }

    /// The first of `tokens`, as many as a file has beyond the first `known`: which file, and how many. A model with
    /// recurrent state goes on only where a snapshot stands.
    pub(crate) fn best(&self, tokens: &[u32], known: usize, recurrent: bool) -> Option<(usize, usize)> {
        let reach = |(index, entry): (usize, &Entry)| (index, entry.reach(tokens, recurrent));
        let best = self.entries.iter().enumerate().map(reach).max_by_key(|(_, reach)| *reach)?;
        (best.1 >= known + LEAST).then_some(best)
    }

    /// Reads the first `len` tokens of a file into `pages`, and the state behind them. A file that cannot be read is
    /// forgotten.
    pub(crate) fn read(
        &mut self,
        index: usize,
        len: usize,
        pages: &[u32],
        caches: &mut Caches,
        recurrent: bool,
    ) -> Option<Option<Snapshot>> {
        let file = &self.entries[index].file;
        let read = || -> Result<Option<Snapshot>, String> {
            let mut input = file.reader()?;
            for page in pages {
                let bytes = input.section(self.sizes.page)?;
                caches.write_page(*page, &bytes).map_err(|error| error.to_string())?;
            }
            if recurrent { file.snapshot(&mut input, len, &self.sizes).map(Some) } else { Ok(None) }
        };
        let mut read = read;
        match read() {
            Ok(snapshot) => {
                file.touch();
                Some(snapshot)
            }
            Err(fault) => {
                // One that has made room for others, of this process or of another, is nothing to warn of.
                if file.is_there() {
                    tracing::warn!("{} is not used: it {fault}", file.path().display());
                }
                self.entries.remove(index);
                None
            }
        }
    }

    /// Writes branches of the tree, those used last first, as far as there is room; older files make some.
    pub(crate) fn write(&mut self, branches: impl Iterator<Item = Branch>, caches: &Caches) {
        self.end_given_up();
        self.forget_removed();
        let mut written = Vec::new();
        let mut total = 0;
        for branch in branches.filter(|branch| branch.tokens.len() >= LEAST) {
            let header = self.header(&branch);
            let known = self.entries.iter().find(|entry| header.is_part_of(entry.file.header()));
            let known = known.map(|entry| (entry.file.path().to_owned(), entry.size));
            let size = known.as_ref().map(|(_, size)| *size).or_else(|| file::size(&header, &self.sizes));
            let Some(size) = size else { continue };
            let name =
                known.as_ref().map_or_else(|| self.folder.join(header.name()), |(name, _)| name.clone());
            if written.contains(&name) {
                continue;
            }
            if total + size > self.budget {
                break;
            }
            if known.is_none() {
                make_room(&self.root, self.budget, total + size, &written);
                self.forget_removed();
                let page = |page: &u32| caches.page_bytes(*page).map(Section::Page);
                let pages = branch.pages.iter().map(|number| page(number).map_err(|error| error.to_string()));
                let snapshots =
                    branch.snapshots.iter().cloned().map(|snapshot| Ok(Section::Snapshot(snapshot)));
                let superseded = self.superseded(&header);
                match file::write(&name, header, pages.chain(snapshots)) {
                    Ok(file) => {
                        remove(&superseded);
                        self.wrote(file, size);
                    }
                    Err(fault) => return not_written(&name, &fault),
                }
            }
            written.push(name);
            total += size;
        }
    }

    fn header(&self, branch: &Branch) -> Header {
        Header {
            identity: self.identity.clone(),
            tokens: branch.tokens.clone(),
            snapshots: branch.snapshots.iter().map(|snapshot| snapshot.len()).collect(),
        }
    }

    /// The files of which a new one has all: they make room for it.
    fn superseded(&self, header: &Header) -> Vec<PathBuf> {
        let name = header.name();
        let files =
            self.entries.iter().map(|entry| &entry.file).filter(|file| file.header().is_part_of(header));
        files.map(|file| file.path().to_owned()).filter(|path| !path.ends_with(&name)).collect()
    }

    /// Takes a new file in, and forgets those that it supersedes.
    fn wrote(&mut self, file: PrefixFile, size: u64) {
        self.entries.retain(|entry| {
            let known = &entry.file;
            known.path() != file.path() && !known.header().is_part_of(file.header())
        });
        self.entries.push(Entry { file, size });
    }

    /// Forgets files that are no more: they have made room for others, of this process or of another.
    fn forget_removed(&mut self) {
        self.entries.retain(|entry| entry.file.is_there());
    }
}

/// Removes files of any model, the oldest first, until the others beside those to be kept leave room for `needed` of
/// `budget` bytes.
fn make_room(root: &Path, budget: u64, needed: u64, keep: &[PathBuf]) {
    remove_unfinished(root);
    let mut others: Vec<_> = paths_in(root)
        .flat_map(|folder| files_in(&folder))
        .filter(|(path, ..)| !keep.contains(path))
        .collect();
    others.sort_by_key(|(_, _, modified)| *modified);
    let mut taken: u64 = others.iter().map(|(_, size, _)| size).sum();
    for (path, size, _) in others {
        if taken + needed <= budget {
            return;
        }
        match std::fs::remove_file(&path) {
            Ok(()) => taken -= size,
            Err(error) => tracing::warn!("{} cannot be removed: {error}", path.display()),
        }
    }
}

/// Removes files that another one supersedes.
fn remove(paths: &[PathBuf]) {
    for path in paths {
        if let Err(error) = std::fs::remove_file(path) {
            tracing::debug!("{} stays: {error}", path.display());
        }
    }
}

/// What decides whether what one engine computed is what another would: the model and when its files were written, the
/// device, the types, the program.
fn identity(model: &dyn Model, options: &EngineOptions) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(fingerprint(model)?);
    hash.update(format!("{} {PAGE_LEN} {CHUNK} ", options.kv_dtype));
    let config = model.config();
    let place = model.placement().describe(config.num_hidden_layers, true);
    hash.update(format!("{:?} {place} ", model.base().origin.modified));
    hash.update(format!("{:?} {}", model.attn_implementation(), env!("CARGO_PKG_VERSION")));
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn not_written(path: &Path, fault: &str) {
    tracing::warn!("the prefix cache cannot be written to {}: {fault}", path.display());
}

fn refusal(path: &Path, error: &std::io::Error) -> Error {
    Error::Request {
        field: "prefix_cache_folder",
        fault: format!("{} cannot be used: {error}; name a folder that can be written to", path.display()),
    }
}

/// What is in a folder, as far as it can be read.
fn paths_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Removes what processes have left that ended while they wrote.
fn remove_unfinished(root: &Path) {
    for path in paths_in(root).flat_map(|folder| paths_in(&folder)) {
        let name = path.file_name().and_then(|name| name.to_str());
        let modified = path.symlink_metadata().and_then(|metadata| metadata.modified());
        let is_old = || modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LONGEST_WRITE));
        if name.is_some_and(|name| name.starts_with(file::UNFINISHED))
            && is_old()
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!("{} cannot be removed: {error}", path.display());
        }
    }
}

/// The cache files in a folder: path, size and age.
fn files_in(folder: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let files = paths_in(folder).filter_map(|path| {
        let metadata = path.symlink_metadata().ok()?;
        let is_ours = metadata.is_file() && path.extension().is_some_and(|end| end == file::EXTENSION);
        is_ours.then(|| (path, metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
    });
    files.collect()
}
