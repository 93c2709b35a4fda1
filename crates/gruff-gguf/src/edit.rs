//! Other key-value pairs for a file that exists, its tensors left where they are if possible.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use crate::data::Source;
use crate::encode::{self, Entry};
use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Header};
use crate::split;
use crate::unfinished::Unfinished;
use crate::{Error, Limits, Metadata, journal};

/// A key whose value is spaces: it fills a header up to where the data begin.
const FILLER_KEY: &str = "gruff.padding";

/// How key-value pairs were replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The new header had room before the data: only it was written.
    InPlace,
    /// The data were copied behind the new header, to a new file that took the old one's place.
    Rewritten,
}

/// Gives the file at `path` the key-value pairs of `metadata` in place of its own; of a split model, the one part
/// that is at `path`, whose `split.*` keys stay.
///
/// Where the new header fits into the room of the old one, only the header is written; a pair `gruff.padding` fills
/// up what is left. A copy of the new header, `NAME.journal`, lies beside the file meanwhile: should the machine stop,
/// the file is the old or the new one, or no program reads it until [`finish_edit`](crate::finish_edit) has written
/// the rest. Otherwise a new file is written beside the old one and renamed over it when it is whole. With `out`, the
/// new file takes that name, and the old one stays as it is.
///
/// A file must not be in use by a program that reads its header while that is written in place; data that are mapped
/// stay valid.
///
/// # Errors
/// When the file cannot be read or is not sound, a pair is one that the reader would refuse, the alignment would
/// change ([`Error::Alignment`]), or the file cannot be written ([`Error::Io`]).
pub fn replace_metadata(path: &Path, out: Option<&Path>, metadata: &Metadata) -> Result<Replaced, Error> {
    let file: Arc<str> = path.display().to_string().into();
    let old = {
        let source = Source::map(path, &file)?;
        Header::read(&source, source.len() as u64, &file, &Limits::default())?
    };
    let alignment = old.metadata.u64_or(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)?;
    if metadata.u64_or(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)? != alignment {
        return Err(Error::Alignment { file });
    }
    let mut metadata = metadata.clone();
    metadata.remove(FILLER_KEY);
    for key in [split::NUMBER_KEY, split::COUNT_KEY, split::TENSORS_KEY] {
        match old.metadata.get(key) {
            Some(value) => drop(metadata.insert(key, value.clone())),
            None => drop(metadata.remove(key)),
        }
    }
    let new = |metadata: &Metadata| header(&old, metadata);
    if out.is_none()
        && let Some(bytes) = filled(&metadata, old.section, alignment, new)
    {
        check(&bytes, &old, alignment, path, &file)?;
        journal::write_over(path, &bytes).map_err(|source| Error::Io { action: "write", file, source })?;
        return Ok(Replaced::InPlace);
    }
    let bytes = new(&metadata);
    check(&bytes, &old, alignment, path, &file)?;
    let section = (bytes.len() as u64).next_multiple_of(alignment);
    let target = out.unwrap_or(path);
    let refused = |source| Error::Io { action: "write", file: target.display().to_string().into(), source };
    let (unfinished, mut new) = Unfinished::file(target).map_err(refused)?;
    let copied = (|| {
        let mut source = File::open(path)?;
        let end = source.metadata()?.len();
        source.seek(SeekFrom::Start(old.section.min(end)))?;
        new.write_all(&bytes)?;
        new.write_all(&vec![0; (section - bytes.len() as u64) as usize])?;
        io::copy(&mut source.take(end), &mut new)?;
        new.sync_all()
    })();
    copied.map_err(refused)?;
    unfinished.put_in_place().map_err(refused)?;
    Ok(Replaced::Rewritten)
}

/// The header with these pairs and the old tensors, which keep their places in the data section.
fn header(old: &Header, metadata: &Metadata) -> Vec<u8> {
    let entries: Vec<Entry> = old
        .tensors
        .iter()
        .map(|tensor| Entry {
            name: tensor.name(),
            shape: tensor.shape(),
            type_id: tensor.type_id(),
            offset: tensor.offset() - old.section,
        })
        .collect();
    // Version 1 has narrower lengths, which are not written any more.
    encode::header(old.version.max(2), old.endian, metadata, &entries)
}

/// A header that the data section at `section` follows, if there is one: with a filler, if it needs one.
fn filled(
    metadata: &Metadata,
    section: u64,
    alignment: u64,
    encode: impl Fn(&Metadata) -> Vec<u8>,
) -> Option<Vec<u8>> {
    let mut bytes = encode(metadata);
    let room = section.checked_sub(bytes.len() as u64)?;
    if room >= alignment {
        let mut filler = metadata.clone();
        filler.insert(FILLER_KEY, "");
        let least = encode(&filler).len() as u64;
        filler.insert(FILLER_KEY, " ".repeat(usize::try_from(section.checked_sub(least)?).ok()?));
        bytes = encode(&filler);
    }
    bytes.resize(usize::try_from(section).ok()?, 0);
    Some(bytes)
}

/// Reads a new header as any reader would, so that nothing is written that one would refuse.
fn check(bytes: &[u8], old: &Header, alignment: u64, path: &Path, file: &Arc<str>) -> Result<(), Error> {
    let size = std::fs::metadata(path)
        .map_err(|source| Error::Io { action: "read", file: file.clone(), source })?
        .len();
    let section = (bytes.len() as u64).next_multiple_of(alignment);
    let file_bytes = section.saturating_add(size.saturating_sub(old.section));
    Header::read(bytes, file_bytes, file, &Limits::default()).map(|_| ())
}
