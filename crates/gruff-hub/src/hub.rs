//! The client: ids in, paths out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::cache::{Cache, RepoCache};
use crate::choose::{GgufSet, RepoFile, choose, near, part_names};
use crate::download::Download;
use crate::http::{About, Http, Remote, encode, not_a_hub};
use crate::name::{RepoId, is_commit, is_gguf, is_safe_path};
use crate::{Environment, Error, GENERATION_CONFIG, ModelId, Progress, Retry, Select, Silent, local};

/// The revision that is meant where none is named.
const DEFAULT_REVISION: &str = "main";

/// A model on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// The id that leads here again: `owner/repo:file.gguf`, or a path.
    pub id: String,
    /// The GGUF file, or all parts of a split one, in order. A [`Hub`] always gives at least one; a model that is no
    /// file has none.
    pub parts: Vec<PathBuf>,
    /// The `generation_config.json` beside it, where there is one.
    pub generation_config: Option<PathBuf>,
    /// The repository, unless the model is local.
    pub repo: Option<RepoId>,
    /// The commit of the repository, unless the model is local.
    pub commit: Option<String>,
}

impl ModelFiles {
    /// The file to open: the only one, or the first part.
    pub fn path(&self) -> &Path {
        self.parts.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// What a repository holds at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoListing {
    /// The commit.
    pub commit: String,
    /// Its files.
    pub files: Vec<RepoFile>,
}

/// A client of the Hugging Face Hub, or of a server that speaks its protocol, with its cache.
///
/// ```no_run
/// use gruff_hub::{Hub, ModelId};
/// let hub = Hub::builder().build()?;
/// let model = hub.resolve(&ModelId::parse("unsloth/Qwen3.5-4B-GGUF:Q4_K_M")?)?;
/// println!("{}", model.path().display());
/// # Ok::<(), gruff_hub::Error>(())
/// ```
pub struct Hub {
    http: Http,
    cache: Cache,
    environment: Environment,
    revision: String,
    offline: Option<String>,
    companions: bool,
    retry: Retry,
    progress: Arc<dyn Progress>,
}

/// Settings of a [`Hub`]. What is not set comes from the [`Environment`].
#[derive(Default)]
#[must_use]
pub struct HubBuilder {
    environment: Option<Environment>,
    cache_dir: Option<PathBuf>,
    endpoint: Option<String>,
    token: Option<String>,
    revision: Option<String>,
    local_files_only: bool,
    without_companions: bool,
    user_agent: Option<String>,
    retry: Retry,
    progress: Option<Arc<dyn Progress>>,
}

impl HubBuilder {
    /// The variables to read instead of the process's own.
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// The folder of the cache, as huggingface_hub's `cache_dir`; else `HF_HUB_CACHE`, else `$HF_HOME/hub`.
    pub fn cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(folder.into());
        self
    }

    /// The address of the Hub; else `HF_ENDPOINT`, else <https://huggingface.co>.
    pub fn endpoint(mut self, address: impl Into<String>) -> Self {
        self.endpoint = Some(address.into());
        self
    }

    /// The access token; else `HF_TOKEN`, else what `hf auth login` has stored. Empty means none.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The branch, tag or commit for ids that name none; else `main`.
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = Some(revision.into());
        self
    }

    /// Use the cache alone, as `HF_HUB_OFFLINE=1` does.
    pub fn local_files_only(mut self, only: bool) -> Self {
        self.local_files_only = only;
        self
    }

    /// Whether to fetch `generation_config.json` with a model, where the repository has one. It is by default.
    pub fn companions(mut self, fetch: bool) -> Self {
        self.without_companions = !fetch;
        self
    }

    /// What the client calls itself; else `gruff/VERSION`.
    pub fn user_agent(mut self, name: impl Into<String>) -> Self {
        self.user_agent = Some(name.into());
        self
    }

    /// How patient to be with a server or network that fails.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Who is told how downloads go.
    pub fn progress(mut self, progress: Arc<dyn Progress>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The client. Nothing is created on disk and nobody is called yet.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting that cannot be used, [`Error::NoHome`] if there is no place for a cache.
    pub fn build(self) -> Result<Hub, Error> {
        let environment = self.environment.unwrap_or_else(Environment::from_process);
        let root = match self.cache_dir {
            Some(folder) => environment.expand(&folder),
            None => environment.hub_cache()?,
        };
        let token = match self.token {
            Some(token) if token.trim().is_empty() => None,
            Some(token) => Some((token.trim().to_string(), "given by the caller".to_string())),
            None => environment.token(),
        };
        let endpoint = self.endpoint.unwrap_or_else(|| environment.endpoint());
        let user_agent = self.user_agent.unwrap_or_else(|| format!("gruff/{}", env!("CARGO_PKG_VERSION")));
        let offline = if self.local_files_only {
            Some("local files only".to_string())
        } else {
            environment.offline().map(|name| format!("{name} is set"))
        };
        let revision = self.revision.unwrap_or_else(|| DEFAULT_REVISION.to_string());
        if !is_safe_path(&revision) {
            let reason = "it cannot be a branch, tag or commit".to_string();
            return Err(Error::Setting { name: "revision", value: revision, reason });
        }
        Ok(Hub {
            http: Http::new(&endpoint, token, &user_agent, &environment)?,
            cache: Cache::new(root),
            environment,
            revision,
            offline,
            companions: !self.without_companions,
            retry: self.retry,
            progress: self.progress.unwrap_or_else(|| Arc::new(Silent)),
        })
    }
}

/// The part of the answer to `/api/models/{repo}/revision/{revision}` that is used.
#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
}

impl Hub {
    /// Settings to start from.
    pub fn builder() -> HubBuilder {
        HubBuilder::default()
    }

    /// The cache of this client.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The address of the Hub.
    pub fn endpoint(&self) -> &str {
        self.http.endpoint()
    }

    /// Turns an id into files on disk, downloading what the cache lacks. All files are of one commit.
    ///
    /// When the Hub cannot be reached and the cache has the model, the cache answers, and a notice says so.
    ///
    /// # Errors
    /// Any of [`Error`]; each says what to do.
    pub fn resolve(&self, id: &ModelId) -> Result<ModelFiles, Error> {
        let (repo, revision, select) = match id {
            ModelId::Local { path, select } => return local::resolve(&self.environment.expand(path), select),
            ModelId::Hub { repo, revision, select } => {
                (repo, revision.as_deref().unwrap_or(&self.revision), select)
            }
        };
        if let Some(why) = &self.offline {
            return self.resolve_cached(repo, revision, select, why);
        }
        let cached = self.resolve_cached(repo, revision, select, "no connection").ok();
        let online = match select {
            Select::File(name) => self.resolve_file(repo, revision, name),
            _ => self.resolve_chosen(repo, revision, select, cached.is_some()),
        };
        match (online, cached) {
            (Err(error), Some(cached)) if error.is_transient() => {
                self.progress.notice(&format!("{}; using the copy in the cache", error.brief()));
                Ok(cached)
            }
            (outcome, _) => outcome,
        }
    }

    /// A file named outright needs no listing.
    fn resolve_file(&self, repo: &RepoId, revision: &str, name: &str) -> Result<ModelFiles, Error> {
        let names = part_names(name);
        let (mut parts, mut commit) = (Vec::with_capacity(names.len()), revision.to_string());
        for name in &names {
            let (path, at) = self.fetch(repo, &commit, name)?;
            commit = at;
            parts.push(path);
        }
        self.with_companions(repo, revision, commit, &names, parts)
    }

    fn resolve_chosen(
        &self,
        repo: &RepoId,
        revision: &str,
        select: &Select,
        cached: bool,
    ) -> Result<ModelFiles, Error> {
        // With a copy at hand there is no point in waiting for a Hub that does not answer.
        let retry = if cached { self.retry.once() } else { self.retry };
        let listing = self.listing(repo, revision, &retry)?;
        let GgufSet { parts: names, .. } = choose(&place(repo, revision), &listing.files, select)?;
        let mut parts = Vec::with_capacity(names.len());
        for name in &names {
            parts.push(self.fetch(repo, &listing.commit, name)?.0);
        }
        // A cache that cannot be written to still serves what it has.
        let _ = self.cache.repo(repo).write_ref(revision, &listing.commit);
        self.with_companions(repo, revision, listing.commit, &names, parts)
    }

    fn with_companions(
        &self,
        repo: &RepoId,
        revision: &str,
        commit: String,
        names: &[String],
        parts: Vec<PathBuf>,
    ) -> Result<ModelFiles, Error> {
        let cache = self.cache.repo(repo);
        let mut generation_config = cache.cached(&commit, GENERATION_CONFIG);
        if generation_config.is_none() && self.companions && !cache.is_absent(&commit, GENERATION_CONFIG) {
            match self.fetch(repo, &commit, GENERATION_CONFIG) {
                Ok((path, _)) => generation_config = Some(path),
                Err(Error::FileNotFound { .. }) => cache.write_absent(&commit, GENERATION_CONFIG),
                // The model works without; the next time may have more luck.
                Err(error) if error.is_transient() => {
                    self.progress.notice(&format!("{GENERATION_CONFIG} is left out: {}", error.brief()))
                }
                Err(error) => return Err(error),
            }
        }
        let id = format!("{}:{}", place(repo, revision), names.first().map_or("", String::as_str));
        Ok(ModelFiles { id, parts, generation_config, repo: Some(repo.clone()), commit: Some(commit) })
    }

    /// What the cache has.
    fn resolve_cached(
        &self,
        repo: &RepoId,
        revision: &str,
        select: &Select,
        why: &str,
    ) -> Result<ModelFiles, Error> {
        let cache = self.cache.repo(repo);
        let offline = |wanted: String| Error::Offline {
            wanted,
            cache: self.cache.root().to_path_buf(),
            why: why.to_string(),
            cached: cache.ids(),
        };
        let wanted = || match select {
            Select::Default => place(repo, revision),
            Select::File(what) | Select::Quant(what) => format!("{}:{what}", place(repo, revision)),
        };
        let commit = cache.commit_of(revision).ok_or_else(|| offline(wanted()))?;
        let set = match choose(&place(repo, revision), &cache.files(&commit), select) {
            Err(Error::NoGguf { .. } | Error::NoMatch { .. }) => return Err(offline(wanted())),
            Err(Error::MissingParts { missing, .. }) => {
                return Err(offline(format!("{}:{}", place(repo, revision), missing.join(", "))));
            }
            outcome => outcome?,
        };
        let id = format!("{}:{}", place(repo, revision), set.name());
        let parts = set.parts.iter().map(|name| cache.snapshot(&commit, name)).collect();
        let generation_config = cache.cached(&commit, GENERATION_CONFIG);
        Ok(ModelFiles { id, parts, generation_config, repo: Some(repo.clone()), commit: Some(commit) })
    }

    /// One file of a repository, from the cache or the Hub: its path, and the commit it is of.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn fetch(&self, repo: &RepoId, revision: &str, file: &str) -> Result<(PathBuf, String), Error> {
        let unsafe_name = |name: &str| Error::UnsafeName { repo: repo.to_string(), name: name.to_string() };
        if !is_safe_path(file) || !is_safe_path(revision) {
            return Err(unsafe_name(if is_safe_path(file) { revision } else { file }));
        }
        let cache = self.cache.repo(repo);
        let known = cache.commit_of(revision).and_then(|commit| Some((cache.cached(&commit, file)?, commit)));
        if let (Some(known), true) = (&known, is_commit(revision) || self.offline.is_some()) {
            return Ok(known.clone());
        }
        if let Some(why) = &self.offline {
            return Err(Error::Offline {
                wanted: format!("{}:{file}", place(repo, revision)),
                cache: self.cache.root().to_path_buf(),
                why: why.clone(),
                cached: cache.ids(),
            });
        }
        let about = About { repo: repo.as_str(), revision, file: Some(file) };
        let retry = if known.is_some() { self.retry.once() } else { self.retry };
        let remote = match (retry.run(&*self.progress, || self.http.remote(about)), known) {
            (Ok(remote), _) => remote,
            (Err(error), Some(known)) if error.is_transient() => {
                self.progress.notice(&format!("{}; using the copy in the cache", error.brief()));
                return Ok(known);
            }
            (Err(error), _) => return Err(self.with_near_names(repo, error)),
        };
        if let Some(path) = self.whole(&cache, &remote.commit, file, remote.size) {
            let _ = cache.write_ref(revision, &remote.commit);
            return Ok((path, remote.commit));
        }
        let download = Download {
            http: &self.http,
            cache: &cache,
            retry: &self.retry,
            progress: &*self.progress,
            repo: repo.as_str(),
            file,
        };
        let (path, commit) = download.run(remote)?;
        cache.write_ref(revision, &commit)?;
        Ok((path, commit))
    }

    /// Where a file is and what it should be, from the Hub.
    pub(crate) fn look_up(&self, repo: &RepoId, revision: &str, file: &str) -> Result<Remote, Error> {
        if !is_safe_path(file) || !is_safe_path(revision) {
            let name = if is_safe_path(file) { revision } else { file };
            return Err(Error::UnsafeName { repo: repo.to_string(), name: name.to_string() });
        }
        if let Some(why) = &self.offline {
            return Err(Error::Offline {
                wanted: format!("{}:{file}", place(repo, revision)),
                cache: self.cache.root().to_path_buf(),
                why: why.clone(),
                cached: self.cache.repo(repo).ids(),
            });
        }
        let about = About { repo: repo.as_str(), revision, file: Some(file) };
        self.retrying(|| self.http.remote(about)).map_err(|error| self.with_near_names(repo, error))
    }

    /// Tries as often as this client's patience allows.
    pub(crate) fn retrying<T>(&self, attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        self.retry.run(&*self.progress, attempt)
    }

    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    /// The cached file, if it is as long as the Hub says.
    fn whole(&self, cache: &RepoCache, commit: &str, file: &str, size: Option<u64>) -> Option<PathBuf> {
        let path = cache.cached(commit, file)?;
        let length = std::fs::metadata(&path).ok()?.len();
        size.is_none_or(|size| size == length).then_some(path)
    }

    /// What a repository holds, with sizes.
    ///
    /// # Errors
    /// [`Error::UnsafeName`] if a `.gguf` file has a name that leads out of its folder; else as for a download.
    pub fn list_files(&self, repo: &RepoId, revision: &str) -> Result<RepoListing, Error> {
        if let Some(why) = &self.offline {
            return Err(Error::Offline {
                wanted: format!("the list of files of {repo}"),
                cache: self.cache.root().to_path_buf(),
                why: why.clone(),
                cached: self.cache.repo(repo).ids(),
            });
        }
        self.listing(repo, revision, &self.retry)
    }

    fn listing(&self, repo: &RepoId, revision: &str, retry: &Retry) -> Result<RepoListing, Error> {
        let path = format!("/api/models/{repo}/revision/{}?blobs=true", encode(revision, false));
        let about = About { repo: repo.as_str(), revision, file: None };
        let info: ModelInfo = retry.run(&*self.progress, || self.http.json(&path, about))?;
        if !is_commit(&info.sha) {
            let url = format!("{}{path}", self.http.endpoint());
            return Err(not_a_hub(&url, &format!("the commit {:?} is none", info.sha)));
        }
        let mut files = Vec::with_capacity(info.siblings.len());
        for Sibling { rfilename: path, size } in info.siblings {
            if is_safe_path(&path) {
                files.push(RepoFile { path, size });
            } else if is_gguf(&path) {
                return Err(Error::UnsafeName { repo: repo.to_string(), name: path });
            }
        }
        Ok(RepoListing { commit: info.sha, files })
    }

    /// Adds the most similar names of the repository to "no such file".
    fn with_near_names(&self, repo: &RepoId, error: Error) -> Error {
        let Error::FileNotFound { repo: name, revision, file, .. } = error else { return error };
        // Nobody misses the names of an optional file.
        let near = match is_gguf(&file).then(|| self.list_files(repo, &revision)) {
            Some(Ok(listing)) => near(&file, &listing.files),
            _ => Vec::new(),
        };
        Error::FileNotFound { repo: name, revision, file, near }
    }
}

/// The repository as ids write it, with the revision where it is not the usual one.
fn place(repo: &RepoId, revision: &str) -> String {
    if revision == DEFAULT_REVISION { repo.to_string() } else { format!("{repo}@{revision}") }
}
