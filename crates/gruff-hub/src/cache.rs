//! The cache on disk, laid out as huggingface_hub lays it out, so that both can use the same one.
//!
//! ```text
//! hub/
//!   CACHEDIR.TAG                                   tells backup programs to pass by
//!   .locks/models--owner--repo/<etag>.lock         held while <etag> is being downloaded
//!   models--owner--repo/
//!     blobs/<etag>                                 the bytes; SHA-256 (large files) or git's SHA-1 names them
//!     blobs/<etag>.incomplete                      a download that has not arrived yet
//!     refs/main                                    the commit that `main` was, last time the Hub was asked
//!     snapshots/<commit>/<path> -> ../../blobs/…   the files of a commit
//! ```

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::choose::RepoFile;
use crate::name::{RepoId, is_commit, is_gguf, is_safe_path, join};
use crate::{Error, GgufSet};

/// The first line is fixed by the Cache Directory Tagging Specification.
const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This folder is a cache of model files, shared by gruff and huggingface_hub.\n\
    # Backup programs may skip it: https://bford.info/cachedir/\n";

/// How deep folders of a snapshot are followed.
const DEPTH: u32 = 8;

/// A model cache.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A `.gguf` file of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedFile {
    /// The repository.
    pub repo: RepoId,
    /// The commit whose snapshot the file is in.
    pub commit: String,
    /// The branches and tags that stood at this commit when the Hub was last asked.
    pub refs: Vec<String>,
    /// The `/`-separated path in the repository.
    pub file: String,
    /// The path in the snapshot.
    pub path: PathBuf,
    /// The file that holds the bytes. Snapshots of several commits may share one.
    pub blob: PathBuf,
    /// The size in bytes.
    pub size: u64,
}

impl CachedFile {
    /// The id that leads to this file: `repo:file.gguf` if it is the one of `main`, else with its revision.
    pub fn id(&self) -> String {
        if self.refs.iter().any(|name| name == "main") {
            return format!("{}:{}", self.repo, self.file);
        }
        format!("{}@{}:{}", self.repo, self.refs.first().unwrap_or(&self.commit), self.file)
    }
}

impl Cache {
    /// The cache in this folder, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Cache { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Every `.gguf` file of every model repository, in the order of repository, file and commit. Links that lead
    /// nowhere and folders that are not repositories are passed over.
    ///
    /// # Errors
    /// [`Error::Cache`] if the cache exists and cannot be read.
    pub fn list(&self) -> Result<Vec<CachedFile>, Error> {
        let mut found = Vec::new();
        for folder in names(&self.root)? {
            if let Some(repo) = RepoId::from_folder(&folder) {
                found.extend(self.repo(&repo).list()?);
            }
        }
        found.sort_by(|a, b| (&a.repo, &a.file, &a.commit).cmp(&(&b.repo, &b.file, &b.commit)));
        Ok(found)
    }

    /// Every model of which all parts are there, in the order of [`list`](Self::list): the file to open, with the size of
    /// all parts. Companion files are left out.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn models(&self) -> Result<Vec<CachedFile>, Error> {
        let mut models = Vec::new();
        let files = self.list()?;
        for snapshot in files.chunk_by(|a, b| a.repo == b.repo) {
            models.extend(self.repo(&snapshot[0].repo).whole(snapshot));
        }
        Ok(models)
    }

    pub(crate) fn repo(&self, repo: &RepoId) -> RepoCache {
        RepoCache {
            repo: repo.clone(),
            root: self.root.clone(),
            folder: self.root.join(repo.folder()),
            locks: self.root.join(".locks").join(repo.folder()),
        }
    }
}

/// The part of the cache that belongs to one repository.
#[derive(Clone, Debug)]
pub(crate) struct RepoCache {
    repo: RepoId,
    root: PathBuf,
    folder: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Where the file `name` of `commit` is or would be.
    pub(crate) fn snapshot(&self, commit: &str, name: &str) -> PathBuf {
        join(&self.folder.join("snapshots").join(commit), name)
    }

    /// The same, if it is there.
    pub(crate) fn cached(&self, commit: &str, name: &str) -> Option<PathBuf> {
        Some(self.snapshot(commit, name)).filter(|path| path.is_file())
    }

    /// The commit that a revision stands for as far as the cache knows.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_string());
        }
        let text = fs::read_to_string(join(&self.folder.join("refs"), revision)).ok()?;
        Some(text.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// Notes which commit a branch or tag stands for.
    pub(crate) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = join(&self.folder.join("refs"), revision);
        create_parent(&path)?;
        let temporary = beside(&path, "tmp");
        fs::write(&temporary, commit).map_err(|e| cache_error("write", &temporary, e))?;
        fs::rename(&temporary, &path).map_err(|e| cache_error("write", &path, e))
    }

    /// Notes that a commit has no file of this name, so that nobody need ask again.
    pub(crate) fn write_absent(&self, commit: &str, name: &str) {
        let path = join(&self.folder.join(".no_exist").join(commit), name);
        // Only saves a request next time: not worth failing for.
        if create_parent(&path).is_ok() {
            let _ = File::create(path);
        }
    }

    /// Whether the Hub has said that a commit has no file of this name.
    pub(crate) fn is_absent(&self, commit: &str, name: &str) -> bool {
        join(&self.folder.join(".no_exist").join(commit), name).is_file()
    }

    /// Makes the folders that a download needs.
    pub(crate) fn prepare(&self, commit: &str, name: &str) -> Result<(), Error> {
        create_parent(&self.blob("x"))?;
        create_parent(&self.snapshot(commit, name))?;
        fs::create_dir_all(&self.locks).map_err(|e| cache_error("create", &self.locks, e))?;
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            // A courtesy to backup programs: the cache works without it.
            let _ = fs::write(tag, CACHEDIR_TAG);
        }
        Ok(())
    }

    /// Waits until no other process downloads this blob, and keeps others out until the result is dropped.
    pub(crate) fn lock(&self, etag: &str, waiting: impl FnOnce()) -> Result<Lock, Error> {
        let path = self.locks.join(format!("{etag}.lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| cache_error("open", &path, e))?;
        let outcome = match file.try_lock() {
            Err(fs::TryLockError::WouldBlock) => {
                waiting();
                file.lock()
            }
            Err(fs::TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(()),
        };
        match outcome {
            Ok(()) => Ok(Lock { file, held: true }),
            // Some network file systems have no locks. The download then goes to a file of its own.
            Err(error) if error.kind() == ErrorKind::Unsupported || cannot_lock(&error) => {
                Ok(Lock { file, held: false })
            }
            Err(error) => Err(cache_error("lock", &path, error)),
        }
    }

    /// Makes `snapshots/<commit>/<name>` lead to the blob. Where links cannot be made, the bytes themselves go there:
    /// moved if the blob is `new`, copied if other snapshots may lead to it.
    pub(crate) fn link(&self, etag: &str, commit: &str, name: &str, new: bool) -> Result<PathBuf, Error> {
        let (blob, path) = (self.blob(etag), self.snapshot(commit, name));
        create_parent(&path)?;
        // From the folder of the link up to the repository's: snapshots, commit, and the folders in `name`.
        let mut target: PathBuf = std::iter::repeat_n("..", 2 + name.matches('/').count()).collect();
        target.extend(["blobs", etag]);
        // A new link is renamed over an old one, so that a reader never finds nothing.
        let temporary = beside(&path, "link");
        match symlink(&target, &temporary) {
            Ok(()) => fs::rename(&temporary, &path).map_err(|e| cache_error("write", &path, e))?,
            Err(error) if no_links(&error) => {
                let moved = if new { fs::rename(&blob, &path) } else { fs::copy(&blob, &path).map(|_| ()) };
                moved.map_err(|e| cache_error("write", &path, e))?;
            }
            Err(error) => return Err(cache_error("link", &path, error)),
        }
        Ok(path)
    }

    /// The `.gguf` files of all snapshots.
    pub(crate) fn list(&self) -> Result<Vec<CachedFile>, Error> {
        let refs = self.refs();
        let mut found = Vec::new();
        for commit in names(&self.folder.join("snapshots"))?.into_iter().filter(|name| is_commit(name)) {
            for name in self.snapshot_names(&commit) {
                let path = self.snapshot(&commit, &name);
                let (Ok(blob), Ok(data)) = (fs::canonicalize(&path), fs::metadata(&path)) else { continue };
                if !is_gguf(&name) || !data.is_file() {
                    continue;
                }
                let mut at: Vec<String> =
                    refs.iter().filter(|(_, c)| *c == commit).map(|(r, _)| r.clone()).collect();
                at.sort();
                found.push(CachedFile {
                    repo: self.repo.clone(),
                    commit: commit.clone(),
                    refs: at,
                    file: name,
                    path,
                    blob,
                    size: data.len(),
                });
            }
        }
        Ok(found)
    }

    /// What the snapshot of a commit holds.
    pub(crate) fn files(&self, commit: &str) -> Vec<RepoFile> {
        let size = |name: &String| {
            fs::metadata(self.snapshot(commit, name)).ok().filter(|m| m.is_file()).map(|m| m.len())
        };
        self.snapshot_names(commit)
            .into_iter()
            .filter_map(|name| Some(RepoFile { size: Some(size(&name)?), path: name }))
            .collect()
    }

    /// Ids of the whole models that the cache holds of this repository.
    pub(crate) fn ids(&self) -> Vec<String> {
        let Ok(files) = self.list() else { return Vec::new() };
        self.whole(&files).iter().map(CachedFile::id).collect()
    }

    /// Those of this repository's files that are models or first parts of models, with the size of all parts.
    fn whole(&self, files: &[CachedFile]) -> Vec<CachedFile> {
        let model = |file: &CachedFile| {
            let listing = self.files(&file.commit);
            let mut sets = GgufSet::group(&listing).into_iter();
            let set = sets.find(|set| set.missing.is_empty() && set.name() == file.file)?;
            Some(CachedFile { size: set.size.unwrap_or(file.size), ..file.clone() })
        };
        files.iter().filter_map(model).collect()
    }

    fn snapshot_names(&self, commit: &str) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.folder.join("snapshots").join(commit), "", DEPTH, &mut found);
        found.sort();
        found
    }

    /// Every branch and tag that the cache knows, with its commit.
    fn refs(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        walk(&self.folder.join("refs"), "", DEPTH, &mut found);
        found.into_iter().filter_map(|name| Some((name.clone(), self.commit_of(&name)?))).collect()
    }
}

/// Keeps other processes from downloading the same blob.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    held: bool,
}

impl Lock {
    /// The file that the bytes of a download go to. One name for all tries, so that the next one can go on where this
    /// one stopped; a name of its own for this process where nothing keeps others from writing to the same file.
    pub(crate) fn partial(&self, blob: &Path) -> PathBuf {
        let mut name = blob.as_os_str().to_owned();
        if !self.held {
            name.push(format!(".{:08x}", std::process::id()));
        }
        name.push(".incomplete");
        PathBuf::from(name)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.held {
            // Closing the file would release it as well; the lock file itself stays, as huggingface_hub's does.
            let _ = self.file.unlock();
        }
    }
}

/// Files under a folder, as `/`-separated paths. Folders that are links are not entered.
pub(crate) fn walk(folder: &Path, prefix: &str, depth: u32, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if kind.is_dir() {
            if depth > 0 {
                walk(&entry.path(), &path, depth - 1, found);
            }
        } else if is_safe_path(&path) {
            found.push(path);
        }
    }
}

/// The names in a folder; none if it does not exist.
fn names(folder: &Path) -> Result<Vec<String>, Error> {
    match fs::read_dir(folder) {
        Ok(entries) => {
            Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(cache_error("read", folder, error)),
    }
}

pub(crate) fn cache_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Cache { action, path: path.to_path_buf(), source }
}

fn create_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(|e| cache_error("create", parent, e))
}

/// A name next to `path` that no other process uses.
fn beside(path: &Path, kind: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:x}-{count:x}.{kind}", std::process::id()));
    PathBuf::from(name)
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

/// Whether a link failed because the system or the file system has none (or keeps them to administrators).
fn no_links(error: &io::Error) -> bool {
    // EPERM is what Linux answers to a link on FAT, ERROR_PRIVILEGE_NOT_HELD what Windows answers to most people.
    let code = if cfg!(windows) { 1314 } else { 1 };
    error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(code)
}

/// "No locks available", for example NFS without its lock service: 37 on Linux, 77 on macOS.
fn cannot_lock(error: &io::Error) -> bool {
    let code = if cfg!(target_os = "macos") { 77 } else { 37 };
    cfg!(unix) && error.raw_os_error() == Some(code)
}

/// Writes all bytes, telling a full disk from other troubles.
pub(crate) fn write_all(
    file: &mut File,
    bytes: &[u8],
    place: &Path,
    name: &str,
    needed: Option<u64>,
) -> Result<(), Error> {
    file.write_all(bytes).map_err(|error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Error::DiskFull { file: name.to_string(), path: place.to_path_buf(), needed }
        }
        _ => cache_error("write", place, error),
    })
}
