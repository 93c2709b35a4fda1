//! A download on its way: bytes that are not a blob yet.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::cache::{cache_error, write_all};
use crate::name::is_lower_hex;

/// Bytes read at a time.
pub(crate) const CHUNK: usize = 256 << 10;

/// An `.incomplete` file, with the checksum of what is in it so far.
pub(crate) struct Partial {
    file: File,
    path: PathBuf,
    name: String,
    len: u64,
    hash: Sha256,
}

impl Partial {
    /// Opens what an earlier try has left, or begins. Bytes beyond `size` cannot be right: the file begins again.
    pub(crate) fn open(path: PathBuf, name: &str, size: Option<u64>) -> Result<Self, Error> {
        let file = File::options().create(true).read(true).append(true).open(&path);
        let file = file.map_err(|e| cache_error("write", &path, e))?;
        let mut partial = Partial { file, path, name: name.to_string(), len: 0, hash: Sha256::new() };
        let left = partial.file.metadata().map_err(|e| cache_error("read", &partial.path, e))?.len();
        if size.is_some_and(|size| left > size) {
            partial.reset()?;
        } else if left > 0 {
            let (mut file, hash) = (&partial.file, &mut partial.hash);
            partial.len = each_chunk(&mut file, |bytes| hash.update(bytes))
                .map_err(|e| cache_error("read", &partial.path, e))?;
        }
        Ok(partial)
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes. `size` is that of the whole file, for the message about a full disk.
    pub(crate) fn push(&mut self, bytes: &[u8], size: Option<u64>) -> Result<(), Error> {
        let needed = size.map(|size| size.saturating_sub(self.len));
        if let Err(error) = write_all(&mut self.file, bytes, &self.path, &self.name, needed) {
            // Part of the bytes may have been written. What is counted and hashed must be what is there.
            let _ = self.file.set_len(self.len);
            return Err(error);
        }
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Begins again with nothing.
    pub(crate) fn reset(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(|e| cache_error("write", &self.path, e))?;
        self.hash = Sha256::new();
        self.len = 0;
        Ok(())
    }

    /// Compares size and checksum with what the Hub announced. A tag of 64 hexadecimal digits is a SHA-256, one of 40
    /// the id that git gives the file; any other (some mirrors have them) says nothing about the bytes.
    pub(crate) fn verify(&mut self, etag: &str, size: Option<u64>) -> Result<(), Error> {
        let damaged = |what, expected: String, found: String| {
            if expected == found {
                Ok(())
            } else {
                Err(Error::Damaged { file: self.name.clone(), what, expected, found })
            }
        };
        if let Some(size) = size {
            damaged("its size", size.to_string(), self.len.to_string())?;
        }
        match etag.len() {
            64 if is_lower_hex(etag) => {
                damaged("its SHA-256", etag.to_string(), hex(&self.hash.clone().finalize()))
            }
            40 if is_lower_hex(etag) => {
                let mut hash = Sha1::new();
                hash.update(format!("blob {}\0", self.len));
                let mut file = &self.file;
                file.seek(SeekFrom::Start(0))
                    .and_then(|_| each_chunk(&mut file, |bytes| hash.update(bytes)))
                    .map_err(|e| cache_error("read", &self.path, e))?;
                damaged("its git id", etag.to_string(), hex(&hash.finalize()))
            }
            _ => Ok(()),
        }
    }

    /// Makes the bytes a blob. They are on the disk before they have the name.
    pub(crate) fn finish(self, blob: &Path) -> Result<(), Error> {
        self.file.sync_all().map_err(|e| cache_error("write", &self.path, e))?;
        fs::rename(&self.path, blob).map_err(|e| cache_error("write", blob, e))
    }

    /// Throws the bytes away.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn each_chunk(file: &mut impl Read, mut f: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut sum = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(sum),
            Ok(n) => {
                f(&buffer[..n]);
                sum += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    /// `printf abc | git hash-object --stdin`
    const GIT_ID_OF_ABC: &str = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";

    #[test]
    fn bytes_of_two_tries_make_one_blob() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        let mut first = Partial::open(path.clone(), "f", Some(3)).unwrap();
        first.push(b"ab", Some(3)).unwrap();
        assert!(matches!(first.verify(SHA256_OF_ABC, Some(3)), Err(Error::Damaged { what: "its size", .. })));
        drop(first);
        let mut second = Partial::open(path.clone(), "f", Some(3)).unwrap();
        assert_eq!(second.len(), 2);
        second.push(b"c", Some(3)).unwrap();
        second.verify(SHA256_OF_ABC, Some(3)).unwrap();
        second.verify(GIT_ID_OF_ABC, Some(3)).unwrap();
        second.verify("some-mirror-s-tag", None).unwrap();
        let wrong = GIT_ID_OF_ABC.replace('f', "e");
        assert!(matches!(second.verify(&wrong, None), Err(Error::Damaged { what: "its git id", .. })));
        second.finish(&folder.path().join("x")).unwrap();
        assert_eq!(fs::read(folder.path().join("x")).unwrap(), b"abc");
        assert!(!path.exists());
    }

    #[test]
    fn bytes_beyond_the_size_are_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        fs::write(&path, b"abcd").unwrap();
        assert_eq!(Partial::open(path, "f", Some(3)).unwrap().len(), 0);
    }
}
