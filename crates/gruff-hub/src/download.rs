//! One file from the Hub into the cache.

use std::io::Read;

use ureq::Body;
use ureq::http::Response;

use crate::cache::RepoCache;
use crate::http::{About, Http, Remote, text};
use crate::partial::{CHUNK, Partial};
use crate::retry::pause;
use crate::{Error, Progress, Retry};

/// How often a file may change on the server while it is being downloaded.
const CHANGES: u32 = 3;

/// What a download needs to know.
pub(crate) struct Download<'a> {
    pub(crate) http: &'a Http,
    pub(crate) cache: &'a RepoCache,
    pub(crate) retry: &'a Retry,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) repo: &'a str,
    pub(crate) file: &'a str,
}

/// How an attempt at one blob ended.
enum Outcome {
    /// The blob is there; `true` if it was not before.
    There(bool),
    /// The server has other content now.
    Changed(Remote),
}

impl Download<'_> {
    /// Brings the content that `remote` describes into the cache and links it into the commit's snapshot.
    pub(crate) fn run(&self, mut remote: Remote) -> Result<(std::path::PathBuf, String), Error> {
        for _ in 0..CHANGES {
            self.cache.prepare(&remote.commit, self.file)?;
            match self.blob(&remote)? {
                Outcome::There(new) => {
                    let path = self.cache.link(&remote.etag, &remote.commit, self.file, new)?;
                    return Ok((path, remote.commit));
                }
                Outcome::Changed(other) => {
                    self.progress.notice(&format!("{} has changed on the server; starting over", self.file));
                    remote = other;
                }
            }
        }
        Err(crate::http::not_a_hub(&remote.url, "the file changes each time it is asked for"))
    }

    fn blob(&self, remote: &Remote) -> Result<Outcome, Error> {
        let blob = self.cache.blob(&remote.etag);
        let lock = self.cache.lock(&remote.etag, || {
            self.progress.notice(&format!("waiting for another process that downloads {}", self.file));
        })?;
        let whole =
            |data: std::fs::Metadata| data.is_file() && remote.size.is_none_or(|size| data.len() == size);
        if std::fs::metadata(&blob).is_ok_and(whole) {
            return Ok(Outcome::There(false));
        }
        let mut partial = Partial::open(lock.partial(&blob), self.file, remote.size)?;
        self.progress.start(self.file, remote.size, partial.len());
        let outcome = self.fill(remote, &mut partial);
        match outcome {
            Ok(None) => {
                partial.finish(&blob)?;
                self.progress.finish();
                Ok(Outcome::There(true))
            }
            Ok(Some(other)) => {
                partial.discard();
                Ok(Outcome::Changed(other))
            }
            Err(error) => {
                // Damaged bytes are of no use to the next try; nothing at all is not worth a file.
                if matches!(error, Error::Damaged { .. }) || partial.len() == 0 {
                    partial.discard();
                }
                Err(error)
            }
        }
    }

    /// Transfers until the content is whole and checked, over as many connections as it takes. Gives the server's new
    /// description if the content changes meanwhile.
    fn fill(&self, remote: &Remote, partial: &mut Partial) -> Result<Option<Remote>, Error> {
        let mut url = remote.url.clone();
        // Only bytes beyond the furthest point so far count as gain: a server that begins anew each time would
        // otherwise be tried for ever.
        let (mut furthest, mut failures) = (partial.len(), 0);
        let mut clean = partial.len() == 0;
        loop {
            let error = match self.transfer(&url, remote, partial) {
                Ok(()) => match partial.verify(&remote.etag, remote.size) {
                    Ok(()) => return Ok(None),
                    // What an earlier try left may be to blame. Once, all of it is fetched again.
                    Err(Error::Damaged { .. }) if !clean => {
                        self.progress
                            .notice(&format!("{} is damaged; downloading all of it again", self.file));
                        clean = true;
                        self.restart(remote, partial)?;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                Err(error) => error,
            };
            failures = if partial.len() > furthest { 1 } else { failures + 1 };
            furthest = furthest.max(partial.len());
            let Some(wait) = self.retry.wait(failures, &error) else {
                return Err(self.interrupted(error, remote, partial));
            };
            pause(self.progress, wait, &error);
            clean &= partial.len() == 0;
            // Signed addresses run out, and the content may be another by now.
            let about = About { repo: self.repo, revision: &remote.commit, file: Some(self.file) };
            match self.http.remote(about) {
                Ok(now) if now.etag != remote.etag || now.size != remote.size => return Ok(Some(now)),
                Ok(now) => url = now.url,
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// One connection: from where the partial file ends to the end of the content.
    fn transfer(&self, url: &str, remote: &Remote, partial: &mut Partial) -> Result<(), Error> {
        if remote.size == Some(partial.len()) {
            return Ok(());
        }
        let about = About { repo: self.repo, revision: &remote.commit, file: Some(self.file) };
        let from = partial.len();
        let response = self.http.bytes(url, from, about)?;
        let range = text(&response, "content-range").and_then(|value| ContentRange::parse(&value));
        match response.status().as_u16() {
            206 if range.is_some_and(|r| r.fits(from, remote.size)) => {}
            // Nothing lies beyond the end: all bytes are here already.
            416 if range.is_some_and(|r| r.total == Some(from)) && remote.size.is_none() => return Ok(()),
            // The server sends all of it, whatever was asked for.
            200 if from == 0 => {}
            200 => self.restart(remote, partial)?,
            status => {
                self.restart(remote, partial)?;
                return Err(Error::Server { url: url_of(url), status, retry_after: None });
            }
        }
        self.read(response, remote, partial)
    }

    fn read(&self, response: Response<Body>, remote: &Remote, partial: &mut Partial) -> Result<(), Error> {
        // One byte more than announced is enough to know that something is wrong.
        let limit = remote.size.map_or(u64::MAX, |size| (size - partial.len()).saturating_add(1));
        let mut reader = response.into_body().into_reader().take(limit);
        let mut buffer = vec![0; CHUNK];
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.broken(&error.to_string(), remote, partial)),
            };
            partial.push(&buffer[..n], remote.size)?;
            self.progress.advance(n as u64);
        }
        if remote.size.is_some_and(|size| partial.len() < size) {
            return Err(self.broken("the server closed the connection", remote, partial));
        }
        Ok(())
    }

    fn restart(&self, remote: &Remote, partial: &mut Partial) -> Result<(), Error> {
        partial.reset()?;
        self.progress.start(self.file, remote.size, 0);
        Ok(())
    }

    fn broken(&self, reason: &str, remote: &Remote, partial: &Partial) -> Error {
        Error::Interrupted {
            file: self.file.to_string(),
            got: partial.len(),
            total: remote.size,
            reason: reason.to_string(),
            partial: partial.path().to_path_buf(),
        }
    }

    /// The last error, with what is kept where some bytes have arrived.
    fn interrupted(&self, error: Error, remote: &Remote, partial: &Partial) -> Error {
        match error {
            Error::Unreachable { reason, .. } if partial.len() > 0 => self.broken(&reason, remote, partial),
            Error::Server { status, .. } if partial.len() > 0 => {
                self.broken(&format!("the server failed with status {status}"), remote, partial)
            }
            other => other,
        }
    }
}

fn url_of(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_string()
}

/// `bytes 5-9/10`, or `bytes */10` with status 416.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContentRange {
    start: Option<u64>,
    total: Option<u64>,
}

impl ContentRange {
    fn parse(value: &str) -> Option<Self> {
        let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
        let start = match range {
            "*" => None,
            range => Some(range.split_once('-')?.0.trim().parse().ok()?),
        };
        Some(ContentRange { start, total: total.trim().parse().ok() })
    }

    /// Whether these are the bytes asked for, of a file of the right size.
    fn fits(&self, from: u64, size: Option<u64>) -> bool {
        self.start == Some(from) && (size.is_none() || self.total.is_none() || self.total == size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let range = ContentRange::parse("bytes 5-9/10").unwrap();
        assert!(range.fits(5, Some(10)) && range.fits(5, None));
        assert!(!range.fits(4, Some(10)) && !range.fits(5, Some(11)));
        assert!(ContentRange::parse("bytes 5-9/*").unwrap().fits(5, Some(10)));
        assert_eq!(ContentRange::parse("bytes */10"), Some(ContentRange { start: None, total: Some(10) }));
        assert_eq!(ContentRange::parse("lines 1-2/3"), None);
        assert_eq!(ContentRange::parse("bytes x-2/3"), None);
    }
}
