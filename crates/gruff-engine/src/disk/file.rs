//! A sequence of tokens with what was computed of it.
//!
//! `gruffpre`, the version (u32), the length of a JSON header (u32), the header and its SHA-256; then the pages of keys
//! and values and the snapshots of recurrent state that the header counts, each followed by its SHA-256. Numbers are
//! little endian. Sections can be read one by one: a prompt that begins like the tokens needs only the first pages and
//! one snapshot.

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use gruff_kernels::PAGE_LEN;
use gruff_models::{CachePlan, Snapshot};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(super) const EXTENSION: &str = "gruffpre";
/// What the names of files begin with that are being written.
pub(super) const UNFINISHED: &str = ".gruffpre-";
const MAGIC: &[u8; 8] = b"gruffpre";
const VERSION: u32 = 1;
/// Ids of some million tokens.
const LONGEST_HEADER: u32 = 64 << 20;
const DIGEST: usize = 32;
/// Magic, version, length of the header.
const HEAD: usize = 16;

/// What a file says of itself.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    /// Of model, types and program.
    pub(super) identity: String,
    pub(super) tokens: Vec<u32>,
    /// Lengths that snapshots stand behind, ascending.
    pub(super) snapshots: Vec<usize>,
}

impl Header {
    /// A file's name: equal tokens with equal snapshots have equal names.
    pub(super) fn name(&self) -> String {
        let mut hash = Sha256::new();
        self.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        self.snapshots.iter().for_each(|len| hash.update((*len as u64).to_le_bytes()));
        let digits: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{digits}.{EXTENSION}")
    }

    fn pages(&self) -> usize {
        self.tokens.len().div_ceil(PAGE_LEN)
    }

    /// Parts of the file behind the header.
    pub(super) fn sections(&self) -> usize {
        self.pages() + self.snapshots.len()
    }

    /// Whether another file has all that this one has.
    pub(super) fn is_part_of(&self, other: &Header) -> bool {
        other.tokens.starts_with(&self.tokens)
            && self.snapshots.iter().all(|len| other.snapshots.contains(len))
    }
}

/// Sizes of sections.
pub(super) struct Sizes {
    pub(super) page: usize,
    pub(super) caches: CachePlan,
}

/// Bytes of the file with this header; `None` when they cannot be counted.
pub(super) fn size(header: &Header, sizes: &Sizes) -> Option<u64> {
    let json = serde_json::to_vec(header).ok()?.len();
    total(header, json, sizes)
}

fn total(header: &Header, json: usize, sizes: &Sizes) -> Option<u64> {
    let pages = header.pages().checked_mul(sizes.page.checked_add(DIGEST)?)?;
    let snapshots = header.snapshots.iter().map(|len| sizes.caches.bytes_per_snapshot(*len) + DIGEST);
    let sum = snapshots.chain([pages, HEAD, json, DIGEST]).try_fold(0usize, usize::checked_add)?;
    u64::try_from(sum).ok()
}

/// A part of a file behind its header.
pub(super) enum Section {
    Page(Vec<u8>),
    Snapshot(Arc<Snapshot>),
}

impl Section {
    fn bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Section::Page(bytes) => Ok(bytes),
            Section::Snapshot(snapshot) => {
                let values = snapshot.values().map_err(|error| error.to_string())?;
                Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
            }
        }
    }
}

/// Writes a file, which gets its name when it is whole: the pages of the header's tokens, then its snapshots.
///
/// # Errors
/// What went wrong, also where there are fewer sections than the header counts; nothing is left behind then.
pub(super) fn write(
    path: &Path,
    header: Header,
    sections: impl Iterator<Item = Result<Section, String>>,
) -> Result<PrefixFile, String> {
    let io = |error: std::io::Error| error.to_string();
    let folder = path.parent().ok_or("it has no folder")?;
    let temporary = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder).map_err(io)?;
    let mut out = BufWriter::new(temporary);
    let json = serde_json::to_vec(&header).map_err(|error| error.to_string())?;
    let length = u32::try_from(json.len()).ok().filter(|length| *length <= LONGEST_HEADER);
    let length = length.ok_or("there are more tokens than a file can hold")?;
    out.write_all(MAGIC).map_err(io)?;
    out.write_all(&VERSION.to_le_bytes()).map_err(io)?;
    out.write_all(&length.to_le_bytes()).map_err(io)?;
    let mut put = |bytes: &[u8]| -> Result<(), String> {
        out.write_all(bytes).map_err(io)?;
        out.write_all(&Sha256::digest(bytes)).map_err(io)
    };
    put(&json)?;
    let mut count = 0;
    for section in sections {
        put(&section?.bytes()?)?;
        count += 1;
    }
    if count != header.sections() {
        return Err(format!("{count} of its {} parts are all there is", header.sections()));
    }
    let temporary = out.into_inner().map_err(|error| error.to_string())?;
    temporary.persist(path).map_err(|error| error.to_string())?;
    Ok(PrefixFile { path: path.to_owned(), header, start: start(json.len()) })
}

/// Bytes before the first page.
fn start(json: usize) -> u64 {
    (HEAD + json + DIGEST) as u64
}

/// A file whose header was read and is right.
pub(super) struct PrefixFile {
    path: PathBuf,
    header: Header,
    /// Bytes before the first page.
    start: u64,
}

impl PrefixFile {
    /// Reads a header. What it counts is checked against the file's size before anything else is read.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence about it.
    pub(super) fn open(
        path: &Path,
        identity: &str,
        sizes: &Sizes,
        vocabulary: usize,
    ) -> Result<Self, String> {
        let io = |error: std::io::Error| format!("cannot be read: {error}");
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut input = Sections(BufReader::new(file));
        let mut head = [0; HEAD];
        input
            .0
            .read_exact(&mut head)
            .map_err(|_| "is too short to be a prefix cache of gruff's".to_owned())?;
        if !head.starts_with(MAGIC) {
            return Err("is no prefix cache of gruff's".to_owned());
        }
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (version, length) = (number(8), number(12));
        if version != VERSION {
            return Err(format!("is of version {version}; this gruff reads {VERSION}"));
        }
        if length > LONGEST_HEADER || u64::from(length) > size {
            return Err(format!("says that its header has {length} bytes, of {size} in all"));
        }
        let json = input.section(length as usize)?;
        let header: Header =
            serde_json::from_slice(&json).map_err(|error| format!("has a damaged header: {error}"))?;
        if header.identity != identity {
            return Err("was made with another model, other types or another gruff".to_owned());
        }
        let ascending = header.snapshots.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = header.snapshots.iter().all(|len| (1..=header.tokens.len()).contains(len));
        if !ascending || !inside || header.tokens.iter().any(|id| *id as usize >= vocabulary) {
            return Err("holds what this model cannot have computed".to_owned());
        }
        if total(&header, json.len(), sizes) != Some(size) {
            return Err(format!("has {size} bytes, but its header counts others; it is damaged"));
        }
        Ok(Self { path: path.to_owned(), header, start: start(json.len()) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether nobody has removed it.
    pub(super) fn is_there(&self) -> bool {
        !self.path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// A reader that stands before the first page.
    pub(super) fn reader(&self) -> Result<Sections, String> {
        let open = || -> std::io::Result<Sections> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.start))?;
            Ok(Sections(BufReader::new(file)))
        };
        open().map_err(|error| format!("cannot be read: {error}"))
    }

    /// The snapshot behind `len` tokens.
    pub(super) fn snapshot(
        &self,
        input: &mut Sections,
        len: usize,
        sizes: &Sizes,
    ) -> Result<Snapshot, String> {
        let before = self.header.snapshots.iter().take_while(|other| **other < len);
        let before: usize = before.map(|other| sizes.caches.bytes_per_snapshot(*other) + DIGEST).sum();
        let pages = self.header.pages() * (sizes.page + DIGEST);
        let at = self.start + (pages + before) as u64;
        input.0.seek(SeekFrom::Start(at)).map_err(|error| format!("cannot be read: {error}"))?;
        let bytes = input.section(sizes.caches.bytes_per_snapshot(len))?;
        let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Snapshot::from_values(&sizes.caches, len, values).map_err(|error| error.to_string())
    }

    /// It was used now: others make room first.
    pub(super) fn touch(&self) {
        let touched = File::options()
            .append(true)
            .open(&self.path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            tracing::debug!("{} keeps its age: {error}", self.path.display());
        }
    }
}

/// Reads sections.
pub(super) struct Sections(BufReader<File>);

impl Sections {
    /// The next `len` bytes, which have the checksum that follows them.
    pub(super) fn section(&mut self, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len];
        let mut digest = [0; DIGEST];
        let read = self.0.read_exact(&mut bytes).and_then(|()| self.0.read_exact(&mut digest));
        read.map_err(|error| format!("cannot be read: {error}"))?;
        if Sha256::digest(&bytes)[..] == digest {
            return Ok(bytes);
        }
        Err("does not have the checksums that it states; it is damaged".to_owned())
    }
}
