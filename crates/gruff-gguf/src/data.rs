//! A file's bytes: mapped, or in memory.

use std::fmt;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::Error;

/// Where a file's bytes are.
pub(crate) enum Source {
    /// A map of a file, which stays open so that its length can be checked again.
    Mapped { map: Mmap, file: File },
    /// Bytes shared with others.
    Shared(Arc<[u8]>),
    /// Bytes in the program itself.
    Static(&'static [u8]),
    /// Bytes made here.
    Owned(Vec<u8>),
}

impl Source {
    /// Maps the file at `path`.
    pub(crate) fn map(path: &Path, label: &Arc<str>) -> Result<Self, Error> {
        let refused = |action| move |source| Error::Io { action, file: label.clone(), source };
        // Looked at before it is opened: opening a pipe would wait for a writer.
        let found = std::fs::metadata(path).map_err(refused("open"))?;
        if !found.is_file() {
            let found = if found.is_dir() { "it is a folder" } else { "it is not a regular file" };
            return Err(Error::NotGguf { file: label.clone(), found: found.to_owned() });
        }
        let file = File::open(path).map_err(refused("open"))?;
        // SAFETY: the map is private to this process and read-only, and is only ever read as bytes, for which
        // every bit pattern is valid. Another process that writes to the file can change what is read, which
        // no later check depends on for memory safety; one that shortens the file makes reads beyond its new
        // end fault (SIGBUS), which ends the program and cannot be told apart from it without copying the
        // file. `Gguf` documents this.
        let map = unsafe { Mmap::map(&file) }.map_err(refused("map"))?;
        Ok(Source::Mapped { map, file })
    }

    /// Checks that the file is still as long as its map.
    pub(crate) fn check_length(&self, label: &Arc<str>) -> Result<(), Error> {
        let Source::Mapped { map, file } = self else { return Ok(()) };
        let now = file
            .metadata()
            .map_err(|source| Error::Io { action: "look at", file: label.clone(), source })?
            .len();
        let opened = map.len() as u64;
        if now < opened {
            return Err(Error::Changed { file: label.clone(), opened, now });
        }
        Ok(())
    }
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Source::Mapped { map, .. } => map,
            Source::Shared(bytes) => bytes,
            Source::Static(bytes) => bytes,
            Source::Owned(bytes) => bytes,
        }
    }
}

/// The packed bytes of a tensor, or of some of its rows.
///
/// Cheap to clone and to slice; keeps the file mapped for as long as it lives. Multi-byte fields are in
/// little-endian order whatever the file's. Data of a mapped file begin at a multiple of the file's alignment
/// (8 or more, 32 by default) in memory; data of a file held in memory may begin anywhere.
#[derive(Clone)]
pub struct TensorData {
    source: Arc<Source>,
    range: Range<usize>,
}

impl TensorData {
    /// The bytes at `range` of `source`, if it has them.
    pub(crate) fn new(source: Arc<Source>, range: Range<usize>) -> Option<Self> {
        source.get(range.clone())?;
        Some(TensorData { source, range })
    }

    /// Some of these bytes, if `range` lies within them.
    pub fn slice(&self, range: Range<usize>) -> Option<TensorData> {
        self.get(range.clone())?;
        let start = self.range.start;
        Some(TensorData { source: self.source.clone(), range: start + range.start..start + range.end })
    }

    /// Whether the bytes are a map of a file, so that they need no memory of their own.
    pub fn is_mapped(&self) -> bool {
        matches!(*self.source, Source::Mapped { .. })
    }
}

impl From<Vec<u8>> for TensorData {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        TensorData { source: Arc::new(Source::Owned(bytes)), range }
    }
}

impl Deref for TensorData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.source[self.range.clone()]
    }
}

impl AsRef<[u8]> for TensorData {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for TensorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorData({} bytes at {})", self.range.len(), self.range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside() {
        let data = TensorData::from((0..10).collect::<Vec<u8>>());
        let middle = data.slice(2..8).unwrap();
        assert_eq!(*middle, [2, 3, 4, 5, 6, 7]);
        assert_eq!(*middle.slice(1..3).unwrap(), [3, 4]);
        assert!(middle.slice(1..7).is_none());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = middle.slice(4..2);
        assert!(reversed.is_none());
    }

    #[test]
    fn data_can_cross_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<TensorData>();
    }
}
