//! What can go wrong, told to the person at the keyboard.

use std::io;
use std::sync::Arc;

use gruff_blocks::BlockType;

/// Why a container could not be read or written. Every message names the file and the key, tensor or part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {file}: {source}")]
    Io {
        /// What was tried ("open", "map").
        action: &'static str,
        /// The file.
        file: Arc<str>,
        /// The system's answer.
        source: io::Error,
    },
    /// The file does not begin like a GGUF file.
    #[error("{file} is not a GGUF file: {found}")]
    NotGguf {
        /// The file.
        file: Arc<str>,
        /// What it looks like instead.
        found: String,
    },
    /// A version that this build does not know.
    #[error("{file} is GGUF version {version}; this version of gruff reads 1, 2 and 3")]
    Version {
        /// The file.
        file: Arc<str>,
        /// The version it states.
        version: u32,
    },
    /// The header contradicts itself, the file or the limits.
    #[error("{file}: {subject}: {fault}")]
    Malformed {
        /// The file.
        file: Arc<str>,
        /// The key, tensor or part of the header that is wrong.
        subject: String,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A part of a split model is missing or does not belong to the others.
    #[error("{file}: {fault}")]
    Split {
        /// The part at fault.
        file: Arc<str>,
        /// What is wrong with it.
        fault: String,
    },
    /// The metadata lack a key that the model needs.
    #[error("{file}: the key {key:?} is missing, so the file is incomplete or of another kind than it says")]
    MissingKey {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: String,
    },
    /// A key holds a value of another type than it should, or one out of range.
    #[error("{file}: the key {key:?} should hold {expected}, but holds {found}")]
    KeyType {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: String,
        /// The type asked for.
        expected: String,
        /// The type, or the value, in the file.
        found: String,
    },
    /// No tensor has this name.
    #[error("{file}: there is no tensor {name:?}{}", did_you_mean(similar))]
    MissingTensor {
        /// The file.
        file: Arc<str>,
        /// The name asked for.
        name: String,
        /// The closest names that exist, best first.
        similar: Vec<String>,
    },
    /// A tensor's type is unknown or retired: the rest of the file stays usable.
    #[error("{file}: tensor {tensor:?}: {source}")]
    TensorType {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: String,
        /// What is wrong with the type.
        source: gruff_blocks::Error,
    },
    /// A big-endian file holds a type whose byte order on such machines no tool defines.
    #[error(
        "{file}: tensor {tensor:?}: {block_type} data cannot be read from a big-endian file; \
         use a little-endian copy"
    )]
    ByteOrder {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: String,
        /// Its type.
        block_type: BlockType,
    },
    /// The file has become shorter since it was opened.
    #[error(
        "{file} shrank from {opened} to {now} bytes while it was open; load it again when it is complete"
    )]
    Changed {
        /// The file.
        file: Arc<str>,
        /// Bytes when it was opened.
        opened: u64,
        /// Bytes now.
        now: u64,
    },
    /// The bytes written for a tensor are not as many as its shape and type ask for.
    #[error("{file}: tensor {tensor:?} takes {expected} bytes of data, but was given {given}")]
    TensorSize {
        /// The file being written.
        file: Arc<str>,
        /// The tensor.
        tensor: String,
        /// Bytes that its shape and type ask for.
        expected: u64,
        /// Bytes it was given.
        given: u64,
    },
    /// A piece of data that cannot be put into big-endian order because it ends within a block.
    #[error("{file}: tensor {tensor:?}: for a big-endian file, data must be written in whole blocks")]
    PartialBlock {
        /// The file being written.
        file: Arc<str>,
        /// The tensor.
        tensor: String,
    },
    /// Pairs that would move every tensor.
    #[error(
        "{file}: general.alignment cannot be changed in a file that exists; leave it as it is, or write the model anew"
    )]
    Alignment {
        /// The file.
        file: Arc<str>,
    },
    /// An edit was interrupted, and what would finish it is not there.
    #[error(
        "{file}: an edit was interrupted and cannot be finished with {journal}: {fault}; \
         put that file back, or download or convert the model again"
    )]
    Journal {
        /// The file.
        file: Arc<str>,
        /// The file with the rest of the edit.
        journal: String,
        /// What is wrong with it.
        fault: String,
    },
    /// A version of the format that cannot be written.
    #[error("GGUF version {version} cannot be written; choose 2 or 3")]
    WriteVersion {
        /// The version asked for.
        version: u32,
    },
    /// A tensor description of one model was used with another.
    #[error("{file}: tensor {tensor:?} does not belong to this model")]
    ForeignTensor {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: String,
    },
}

/// One thing wrong with a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file ends too early.
    #[error(
        "needs {need} bytes at offset {at}, where the file has {left} left; \
         it is cut short or damaged, download or convert it again"
    )]
    Truncated {
        /// Offset in the file.
        at: u64,
        /// Bytes needed there.
        need: u64,
        /// Bytes there are.
        left: u64,
    },
    /// The header goes on past its limit.
    #[error("the header does not end within {limit} bytes (Limits::header_bytes)")]
    HeaderTooLong {
        /// The limit.
        limit: u64,
    },
    /// A claim above its limit.
    #[error("claims {count} {what}, where at most {limit} are accepted (Limits::{name})")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// How many the file claims.
        count: u64,
        /// How many are accepted.
        limit: u64,
        /// The field of [`Limits`](crate::Limits).
        name: &'static str,
    },
    /// A count that the rest of the file cannot hold.
    #[error(
        "claims {count} {what}, which cannot fit in the {left} bytes left; the file is cut short or damaged"
    )]
    Count {
        /// What is counted.
        what: &'static str,
        /// How many the file claims.
        count: u64,
        /// Bytes left.
        left: u64,
    },
    /// A key or tensor name without a character.
    #[error("the name is empty")]
    EmptyName,
    /// A name that is not text.
    #[error("the name is not valid UTF-8")]
    NameNotUtf8,
    /// A name that occurs twice.
    #[error("occurs twice")]
    Duplicate,
    /// A value type that the format does not have.
    #[error("value type {id} does not exist; the file is damaged or newer than this version of gruff")]
    ValueType {
        /// The id in the file.
        id: u32,
    },
    /// A truth value that is neither 0 nor 1.
    #[error("a bool is stored as {found}, where only 0 and 1 are allowed")]
    Bool {
        /// The byte in the file.
        found: u8,
    },
    /// Arrays within arrays beyond the limit.
    #[error("arrays are nested more than {limit} deep (Limits::array_depth)")]
    Nested {
        /// The limit.
        limit: u32,
    },
    /// `general.alignment` is not usable.
    #[error("an alignment of {found} is not a power of two from 8 to {limit} (Limits::alignment)")]
    Alignment {
        /// The value in the file.
        found: u64,
        /// The largest accepted.
        limit: u64,
    },
    /// `general.alignment` is not a whole number.
    #[error("the alignment should be a uint32, but is {found}")]
    AlignmentType {
        /// The type in the file.
        found: String,
    },
    /// More dimensions than the format has.
    #[error("has {found} dimensions, where at most 4 exist")]
    Dimensions {
        /// The number in the file.
        found: u32,
    },
    /// A dimension of zero.
    #[error("dimension {at} is zero")]
    ZeroDimension {
        /// Which one, 0 is the row length.
        at: usize,
    },
    /// A shape whose size cannot be expressed.
    #[error("the shape {shape:?} has more values than can be counted")]
    TooManyValues {
        /// The shape in the file.
        shape: Vec<u64>,
    },
    /// A row that is not a whole number of blocks.
    #[error("rows of {row} values are not whole {block_type} blocks of {} values", block_type.values())]
    Row {
        /// Values in a row.
        row: u64,
        /// The tensor's type.
        block_type: BlockType,
    },
    /// Data that begin off the alignment.
    #[error("data offset {offset} is not a multiple of the alignment {alignment}")]
    OffsetAlignment {
        /// The offset within the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Data outside the file.
    #[error(
        "its data, {bytes} bytes from offset {offset} of the data section at {section}, end past the file's \
         {file_bytes} bytes; it is cut short or damaged, download it again"
    )]
    OutsideFile {
        /// Where the data section begins in the file.
        section: u64,
        /// The offset within the data section.
        offset: u64,
        /// Bytes of the tensor.
        bytes: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// Data shared with another tensor.
    #[error("its data overlap those of tensor {other:?}")]
    Overlap {
        /// The other tensor.
        other: String,
    },
}

impl Fault {
    /// The error that tells which file and which part of it the fault is in.
    pub(crate) fn of(self, file: &Arc<str>, subject: impl Into<String>) -> Error {
        Error::Malformed { file: file.clone(), subject: subject.into(), fault: self }
    }
}

fn did_you_mean(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        names => {
            let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            format!("; similar names are {}", quoted.join(", "))
        }
    }
}
