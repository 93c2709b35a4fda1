//! Packed rows, read from the files piece by piece.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use gruff_gguf::{Endian, Gguf, TensorInfo};

use super::file_of;
use crate::{Error, Result};

/// Reads rows of one model, for one thread.
///
/// Rows are read into a buffer and not from the map: pages of a map stay with the process, so that its memory would
/// grow with the file.
pub(super) struct Source<'a> {
    model: &'a Gguf,
    /// The files, opened when they are first needed.
    files: Vec<Option<File>>,
    buffer: Vec<u8>,
}

impl<'a> Source<'a> {
    pub(super) fn new(model: &'a Gguf) -> Self {
        let files = model.paths().iter().map(|_| None).collect();
        Source { model, files, buffer: Vec::new() }
    }

    /// The little-endian bytes at `range` of a tensor's data.
    pub(super) fn read(&mut self, tensor: &TensorInfo, range: Range<usize>) -> Result<&[u8]> {
        let model = self.model;
        let fault = || Error::tensor(&file_of(model), tensor.name(), "has too few bytes");
        let (Some(path), Some(slot), Endian::Little) =
            (model.paths().get(tensor.part()), self.files.get_mut(tensor.part()), model.endian())
        else {
            // In memory already, or to be put in order as a whole.
            self.buffer.clear();
            self.buffer.extend_from_slice(model.data(tensor)?.get(range).ok_or_else(fault)?);
            return Ok(&self.buffer);
        };
        if tensor.bytes().is_none_or(|bytes| range.end as u64 > bytes) {
            return Err(fault());
        }
        let file = match slot {
            Some(file) => file,
            None => slot.insert(File::open(path).map_err(Error::io("read", path))?),
        };
        self.buffer.resize(range.len(), 0);
        file.seek(SeekFrom::Start(tensor.offset() + range.start as u64))
            .and_then(|_| file.read_exact(&mut self.buffer))
            .map_err(Error::io("read", path))?;
        Ok(&self.buffer)
    }
}
