use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a model id did not lead to files on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a model id.
    #[error(
        "{id:?} is not a model id: {reason}. Write a path to a .gguf file or folder, owner/repo, \
         owner/repo:file.gguf, owner/repo:Q4_K_M or owner/repo@revision:file.gguf"
    )]
    BadId {
        /// The text given.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A local path that leads nowhere.
    #[error("{}: no such file or folder{hint}", path.display())]
    NoSuchPath {
        /// The path asked for.
        path: PathBuf,
        /// Empty, or a sentence that starts with its own separator.
        hint: String,
    },
    /// A repository or folder without any model file.
    #[error("{place} holds no .gguf model file; choose a repository or folder with GGUF files in it")]
    NoGguf {
        /// The repository or folder.
        place: String,
    },
    /// Nothing there answers to the quantization asked for.
    #[error("{place} has no {wanted} file; it has {}", list(choices))]
    NoMatch {
        /// The repository or folder.
        place: String,
        /// What was asked for.
        wanted: String,
        /// The ids that would work.
        choices: Vec<String>,
    },
    /// Several files fit and nothing says which one is meant.
    #[error("{place} has several files that {wanted} could mean; name one of {}", list(choices))]
    Ambiguous {
        /// The repository or folder.
        place: String,
        /// What was asked for, in words.
        wanted: String,
        /// The ids that would work.
        choices: Vec<String>,
    },
    /// A token that no Hub can have given out.
    #[error("the token {origin} has spaces or other characters that no token has; copy it again")]
    TokenText {
        /// Where it came from, in words; the token itself is nobody's business.
        origin: String,
    },
    /// Neither a file nor a folder, but a pipe or a device.
    #[error(
        "{} is no ordinary file; a model is mapped into memory, which a pipe or device cannot be: save it to a file first",
        path.display()
    )]
    NoFile {
        /// Where it is.
        path: PathBuf,
    },
    /// A split file without all of its parts.
    #[error(
        "{name} in {place} is one part of a split model, and {} missing; get the whole set",
        missing_parts(missing)
    )]
    MissingParts {
        /// The repository or folder.
        place: String,
        /// The part that was found.
        name: String,
        /// The parts that were not.
        missing: Vec<String>,
    },
    /// A file name that would leave the folder it belongs in.
    #[error(
        "{repo} names a file {name:?}, which is not a plain relative path; gruff refuses it: do not use this repository"
    )]
    UnsafeName {
        /// The repository.
        repo: String,
        /// The offending name.
        name: String,
    },
    /// The Hub knows no such repository, or hides it.
    #[error(
        "{endpoint} has no repository {repo}{}",
        if *signed_in { ", or the token in use may not see it; check the spelling and the token's permissions" }
        else { ", or it is private; check the spelling, or set HF_TOKEN to a token that may read it" }
    )]
    RepoNotFound {
        /// The Hub asked.
        endpoint: String,
        /// The repository asked for.
        repo: String,
        /// Whether a token was sent.
        signed_in: bool,
    },
    /// The repository exists and has no such branch, tag or commit.
    #[error(
        "{repo} has no revision {revision:?}; use a branch, a tag or a full commit id of that repository"
    )]
    RevisionNotFound {
        /// The repository.
        repo: String,
        /// The revision asked for.
        revision: String,
    },
    /// The repository and the revision exist, the file does not.
    #[error("{repo} has no file {file:?} at revision {revision}{}", near_names(near))]
    FileNotFound {
        /// The repository.
        repo: String,
        /// The revision asked for.
        revision: String,
        /// The file asked for.
        file: String,
        /// Files of the repository with the most similar names.
        near: Vec<String>,
    },
    /// The Hub does not accept the token.
    #[error(
        "{endpoint} does not accept the token in use ({origin}); make a new one at {endpoint}/settings/tokens, \
         or remove it to read public models"
    )]
    BadToken {
        /// The Hub asked.
        endpoint: String,
        /// Where the token came from.
        origin: String,
    },
    /// The authors of the repository want people to ask for access first.
    #[error(
        "{repo} is gated: open {endpoint}/{repo} in a browser, accept its conditions{}",
        if *signed_in { " with the account that the token belongs to, then try again" }
        else { ", then set HF_TOKEN to a token of that account" }
    )]
    Gated {
        /// The Hub asked.
        endpoint: String,
        /// The repository.
        repo: String,
        /// Whether a token was sent.
        signed_in: bool,
    },
    /// The Hub knows the token and does not allow this.
    #[error("{endpoint} forbids access to {repo}: {message}; check what the token in HF_TOKEN may read")]
    Forbidden {
        /// The Hub asked.
        endpoint: String,
        /// The repository.
        repo: String,
        /// The Hub's reason.
        message: String,
    },
    /// Too many requests.
    #[error(
        "{endpoint} asks for fewer requests{}; a token in HF_TOKEN raises the limit",
        retry_after.map_or(String::new(), |wait| format!("; try again in {} s", wait.as_secs()))
    )]
    RateLimited {
        /// The Hub asked.
        endpoint: String,
        /// How long the Hub wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// The server failed, and went on failing.
    #[error("{url}: the server failed with status {status}; try again later")]
    Server {
        /// What was asked for, without its query.
        url: String,
        /// The HTTP status, 408 or 5xx.
        status: u16,
        /// How long the server wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// A status that no rule covers.
    #[error("{url}: the server answered with status {status}{}", if message.is_empty() { String::new() } else { format!(": {message}") })]
    Http {
        /// What was asked for, without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// No connection, or it broke before an answer came.
    #[error(
        "cannot reach {host}: {reason}; check the connection, the proxy settings and HF_ENDPOINT, or set \
         HF_HUB_OFFLINE=1 to use only what is in the cache"
    )]
    Unreachable {
        /// The host that was called.
        host: String,
        /// What happened.
        reason: String,
    },
    /// The server cannot prove that it is the one that was meant.
    #[error(
        "no secure connection to {host}: {reason}; where a company's proxy reads along, set SSL_CERT_FILE to a PEM \
         file of the certificates to trust"
    )]
    Untrusted {
        /// The host that was called.
        host: String,
        /// What is wrong with its certificate or protocol.
        reason: String,
    },
    /// The connection broke in the middle of a file, more often than gruff retries.
    #[error(
        "the download of {file} broke off at {got} of {} bytes: {reason}; what has arrived is kept in {}, run the \
         same command again to go on from there",
        total.map_or("an unknown number of".to_string(), |n| n.to_string()), partial.display()
    )]
    Interrupted {
        /// The file.
        file: String,
        /// Bytes on disk.
        got: u64,
        /// Bytes of the whole file.
        total: Option<u64>,
        /// What happened.
        reason: String,
        /// Where the bytes are kept.
        partial: PathBuf,
    },
    /// The answer is not one that a Hub gives.
    #[error("{url}: {reason}; if HF_ENDPOINT is set, check that it is the address of a Hub")]
    NotAHub {
        /// What was asked for, without its query.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// What arrived is not what the Hub announced. Nothing of it is kept.
    #[error(
        "{file} arrived damaged: {what} should be {expected} and is {found}; the bytes were thrown away, try again"
    )]
    Damaged {
        /// The file.
        file: String,
        /// `its size`, `its SHA-256`, ...
        what: &'static str,
        /// What the Hub announced.
        expected: String,
        /// What arrived.
        found: String,
    },
    /// No room left.
    #[error(
        "the disk is full: {} could not take more of {file}{}; make room, or set HF_HOME to a larger disk; what has \
         arrived is kept", path.display(), needed.map_or(String::new(), |n| format!(" ({n} bytes still to come)"))
    )]
    DiskFull {
        /// The file that was being downloaded.
        file: String,
        /// Where it was being written.
        path: PathBuf,
        /// Bytes still to come, if known.
        needed: Option<u64>,
    },
    /// The cache cannot be written or read.
    #[error(
        "cannot {action} {}: {source}; check the permissions of the cache, or set HF_HOME (or HF_HUB_CACHE) to a \
         folder that can be written", path.display()
    )]
    Cache {
        /// What was tried: `create`, `write`, `lock`, ...
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A local model file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Offline, and the cache does not have it.
    #[error(
        "{wanted} is not in the cache {} and gruff is offline ({why}){}", cache.display(),
        if cached.is_empty() { String::new() } else { format!("; the cache has {}", list(cached)) }
    )]
    Offline {
        /// What was asked for.
        wanted: String,
        /// Where it was looked for.
        cache: PathBuf,
        /// What made gruff offline.
        why: String,
        /// What the cache has of the same repository.
        cached: Vec<String>,
    },
    /// A setting that cannot be used.
    #[error("{name} is {value:?}, which cannot be used: {reason}")]
    Setting {
        /// The environment variable or option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// There is no home directory to keep the cache in.
    #[error(
        "there is no home directory to keep the model cache in; set HF_HOME to a folder that can be written"
    )]
    NoHome,
}

impl Error {
    /// Whether the same request may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Error::RateLimited { .. }
                | Error::Server { .. }
                | Error::Unreachable { .. }
                | Error::Interrupted { .. }
        )
    }

    /// The message without its remedy, for when gruff helps itself.
    pub(crate) fn brief(&self) -> String {
        let text = self.to_string();
        text.split("; ").next().unwrap_or_default().to_string()
    }

    /// How long the server wants to be left alone, where it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::RateLimited { retry_after, .. } | Error::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// At most this many names go into a message.
const LISTED: usize = 24;

fn list(names: &[String]) -> String {
    match names {
        [] => "none at all".to_string(),
        [one] => one.clone(),
        _ => {
            let mut text = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
            if names.len() > LISTED {
                text.push_str(&format!(" and {} more", names.len() - LISTED));
            }
            text
        }
    }
}

fn missing_parts(missing: &[String]) -> String {
    format!("{} {}", list(missing), if missing.len() == 1 { "is" } else { "are" })
}

fn near_names(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}
