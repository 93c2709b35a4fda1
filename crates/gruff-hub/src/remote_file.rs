//! Parts of a file that stays on the Hub.

use std::io::Read;

use crate::http::{About, Remote, text};
use crate::{Error, Hub, RepoId};

/// A file of a repository, of which parts are read over the network. Nothing goes to the cache.
pub struct RemoteFile<'hub> {
    hub: &'hub Hub,
    repo: RepoId,
    revision: String,
    name: String,
    remote: Remote,
    size: u64,
}

impl Hub {
    /// Looks up a file without downloading it.
    ///
    /// # Errors
    /// As for [`Hub::fetch`]; [`Error::NotAHub`] when the server does not tell the size.
    pub fn remote_file(&self, repo: &RepoId, revision: &str, name: &str) -> Result<RemoteFile<'_>, Error> {
        let remote = self.look_up(repo, revision, name)?;
        let size = remote.size.ok_or_else(|| Error::NotAHub {
            url: remote.url.split(['?', '#']).next().unwrap_or_default().to_owned(),
            reason: "the answer does not tell the size of the file".to_owned(),
        })?;
        Ok(RemoteFile {
            hub: self,
            repo: repo.clone(),
            revision: revision.to_owned(),
            name: name.to_owned(),
            remote,
            size,
        })
    }
}

impl RemoteFile<'_> {
    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes from `from` to before `to`, fewer where the file ends. A server that sends all of the file instead
    /// is read to `to` at most, and hung up on.
    ///
    /// # Errors
    /// As for [`Hub::fetch`].
    pub fn read(&self, from: u64, to: u64) -> Result<Vec<u8>, Error> {
        let to = to.min(self.size);
        if from >= to {
            return Ok(Vec::new());
        }
        self.hub.retrying(|| self.read_once(from, to))
    }

    fn read_once(&self, from: u64, to: u64) -> Result<Vec<u8>, Error> {
        let about = About { repo: self.repo.as_str(), revision: &self.revision, file: Some(&self.name) };
        let mut response = self.hub.http().part(&self.remote.url, from, to, about)?;
        let broken = |reason: String| Error::Unreachable { host: self.hub.endpoint().to_owned(), reason };
        let skip = match response.status().as_u16() {
            206 if text(&response, "content-range").is_none_or(|range| begins_at(&range, from)) => 0,
            200 => from,
            status => return Err(broken(format!("a range was answered with other bytes (status {status})"))),
        };
        let mut body = response.body_mut().as_reader();
        let skipped = std::io::copy(&mut body.by_ref().take(skip), &mut std::io::sink());
        let mut bytes = Vec::new();
        skipped
            .and_then(|_| body.take(to - from).read_to_end(&mut bytes))
            .map_err(|error| broken(error.to_string()))?;
        if bytes.len() as u64 != to - from {
            return Err(broken(format!("the connection ended after {} of {} bytes", bytes.len(), to - from)));
        }
        Ok(bytes)
    }
}

/// Whether a `Content-Range` such as `bytes 100-199/1000` begins at `from`.
fn begins_at(range: &str, from: u64) -> bool {
    let begin = range.trim().strip_prefix("bytes").and_then(|rest| rest.trim().split('-').next());
    begin.and_then(|begin| begin.parse().ok()) == Some(from)
}
