//! The header of one file, read and checked.

use std::sync::Arc;

use crate::cursor::Cursor;
use crate::journal::MARK;
use crate::metadata::{Entry, Metadata};
use crate::tensor::{self, TensorInfo};
use crate::value::{Endian, Number};
use crate::{Error, Fault, Limits};

/// The first four bytes of every file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// The newest version of the format.
pub(crate) const NEWEST: u32 = 3;
/// Where tensor data begin on multiples of, unless the file says otherwise.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// The smallest alignment the format allows.
pub(crate) const LEAST_ALIGNMENT: u64 = 8;
/// The key that changes the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Everything before tensor data, checked.
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) endian: Endian,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    /// Where the data section begins in the file.
    pub(crate) section: u64,
}

impl Header {
    /// Reads the header that `bytes` begin with, of a file of `file_bytes` bytes called `file` in messages.
    pub(crate) fn read(
        bytes: &[u8],
        file_bytes: u64,
        file: &Arc<str>,
        limits: &Limits,
    ) -> Result<Self, Error> {
        let (version, endian) = read_version(bytes, file)?;
        let mut cursor = Cursor::new(bytes, 8, endian, version > 1, limits);
        let in_header = |fault: Fault| fault.of(file, "header");
        let tensor_count = cursor.size().map_err(in_header)?;
        // A pair is at least a length, a character, a type and a byte; a tensor a length, a character, the
        // number of dimensions and the type of 4 bytes each and an offset of 8.
        let least_pair = cursor.size_width() + 6;
        let least_tensor = cursor.size_width() + 17;
        let keys = cursor.count("key-value pairs", least_pair, limits.keys, "keys").map_err(in_header)?;
        cursor
            .check_count("tensors", tensor_count, least_tensor, limits.tensors, "tensors")
            .map_err(in_header)?;
        let metadata = read_metadata(&mut cursor, keys, file, limits)?;
        let alignment = alignment(&metadata, limits).map_err(|f| f.of(file, key_subject(ALIGNMENT_KEY)))?;
        let mut tensors = tensor::read_table(&mut cursor, tensor_count, file, limits)?;
        // Cannot overflow: the position is within bytes in memory, the alignment at most 2^63.
        let section = cursor.position().next_multiple_of(alignment);
        tensor::check_layout(&mut tensors, section, alignment, file_bytes)?;
        Ok(Header { version, endian, metadata, tensors, section })
    }
}

fn key_subject(key: &str) -> String {
    format!("key {key:?}")
}

fn read_version(bytes: &[u8], file: &Arc<str>) -> Result<(u32, Endian), Error> {
    let Some((magic, rest)) = bytes.split_first_chunk::<4>().filter(|(magic, _)| *magic == MAGIC) else {
        return Err(Error::NotGguf { file: file.clone(), found: looks_like(bytes) });
    };
    let Some(version) = rest.first_chunk::<4>() else {
        let fault = Fault::Truncated { at: magic.len() as u64, need: 4, left: rest.len() as u64 };
        return Err(fault.of(file, "header"));
    };
    for endian in [Endian::Little, Endian::Big] {
        let version = u32::read(version, endian);
        if (1..=NEWEST).contains(&version) {
            return Ok((version, endian));
        }
    }
    // A small number in one order is a huge one in the other.
    let version = u32::from_le_bytes(*version).min(u32::from_be_bytes(*version));
    Err(Error::Version { file: file.clone(), version })
}

/// What a file that is not GGUF probably is, in words.
fn looks_like(bytes: &[u8]) -> String {
    const KNOWN: &[(usize, &[u8], &str)] = &[
        (0, MARK, "an edit of it was interrupted, or is going on; `gruff edit FILE` finishes it"),
        (0, b"lmgg", "it is in the older GGML format; convert the original model again"),
        (0, b"fmgg", "it is in the older GGMF format; convert the original model again"),
        (0, b"tjgg", "it is in the older GGJT format; convert the original model again"),
        (0, b"algg", "it is a GGLA adapter; convert the original adapter again"),
        (0, b"version https://git-lfs", "it is a Git LFS pointer; fetch the file itself with `git lfs pull`"),
        (0, b"PK\x03\x04", "it is a zip archive or a PyTorch checkpoint; convert it to GGUF"),
        (0, b"\x1f\x8b", "it is gzip-compressed; unpack it first"),
        (8, b"{\"", "it is a safetensors file; convert it to GGUF"),
        (0, b"<", "it is a web page or XML; the download went wrong"),
        (0, b"{", "it is JSON"),
    ];
    let starts = |at: usize, mark: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(mark));
    if bytes.is_empty() {
        return "it is empty".to_owned();
    }
    match KNOWN.iter().find(|(at, mark, _)| starts(*at, mark)) {
        Some((_, _, found)) => (*found).to_owned(),
        None => {
            format!("it begins with \"{}\" instead of \"GGUF\"", bytes[..bytes.len().min(4)].escape_ascii())
        }
    }
}

fn read_metadata(
    cursor: &mut Cursor<'_>,
    count: u64,
    file: &Arc<str>,
    limits: &Limits,
) -> Result<Metadata, Error> {
    let mut entries: Vec<Entry> = cursor.room(count);
    for number in 0..count {
        let key = cursor
            .name(limits.key_bytes, "key_bytes")
            .map_err(|fault| fault.of(file, format!("key {number}")))?;
        let value = cursor.value().map_err(|fault| fault.of(file, key_subject(key)))?;
        entries.push(Entry { key: key.into(), value });
    }
    Metadata::from_entries(file.clone(), entries)
        .map_err(|twice| Fault::Duplicate.of(file, key_subject(&twice)))
}

fn alignment(metadata: &Metadata, limits: &Limits) -> Result<u64, Fault> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let found = match value.as_int() {
        Some(found) => u64::try_from(found).unwrap_or(0),
        None => return Err(Fault::AlignmentType { found: value.describe_type() }),
    };
    if !found.is_power_of_two() || found < LEAST_ALIGNMENT || found > limits.alignment {
        return Err(Fault::Alignment { found, limit: limits.alignment });
    }
    Ok(found)
}
