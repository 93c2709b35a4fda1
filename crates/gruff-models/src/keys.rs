//! The metadata of one architecture, every value checked.

use gruff_gguf::{Gguf, Metadata};

use crate::{Error, Result};

/// The widest dimension any model has, with a margin: products of two fit in 64 bits.
const LARGEST_SIZE: usize = 1 << 24;

/// A file's keys under its architecture's prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    /// The keys `{architecture}.*` of a file.
    pub(crate) fn new(gguf: &'a Gguf, architecture: &'a str) -> Self {
        Self { gguf, architecture }
    }

    pub(crate) fn gguf(&self) -> &'a Gguf {
        self.gguf
    }

    pub(crate) fn architecture(&self) -> &'a str {
        self.architecture
    }

    fn metadata(&self) -> &'a Metadata {
        self.gguf.metadata()
    }

    /// The full key: `llama.block_count`.
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// An error about `key`: what it holds and what it should be, as a clause.
    pub(crate) fn refuse(&self, key: &str, found: impl ToString, expected: impl Into<String>) -> Error {
        Error::Key {
            file: file_name(self.gguf, 0),
            key: self.key(key),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// A size of at least 1, if the key exists.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>> {
        let size = self.metadata().usize(&self.key(key))?;
        size.map(|size| self.check_size(key, size, 1)).transpose()
    }

    /// A size of at least 1.
    pub(crate) fn require_size(&self, key: &str) -> Result<usize> {
        let size = self.metadata().require_usize(&self.key(key))?;
        self.check_size(key, size, 1)
    }

    /// A count, which may be 0; 0 where the key is missing.
    pub(crate) fn count(&self, key: &str) -> Result<usize> {
        let size = self.metadata().usize_or(&self.key(key), 0)?;
        self.check_size(key, size, 0)
    }

    /// One size for all of `layers` layers, or an array with one for each; 0 is allowed, since not every
    /// layer has every part.
    pub(crate) fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>> {
        let Some(sizes) = self.metadata().u32_per_layer(&self.key(key), layers)? else { return Ok(None) };
        let sizes = sizes.into_iter().map(|size| self.check_size(key, size as usize, 0));
        sizes.collect::<Result<Vec<_>>>().map(Some)
    }

    fn check_size(&self, key: &str, size: usize, least: usize) -> Result<usize> {
        if (least..=LARGEST_SIZE).contains(&size) {
            return Ok(size);
        }
        Err(self.refuse(key, size, format!("sizes from {least} to {LARGEST_SIZE} are possible")))
    }

    /// The tokens of context the model was trained for.
    pub(crate) fn context_length(&self) -> Result<usize> {
        let key = "context_length";
        let tokens = self.metadata().require_usize(&self.key(key))?;
        if tokens == 0 || u32::try_from(tokens).is_err() {
            return Err(self.refuse(key, tokens, "a context has from 1 to 2^32 - 1 tokens"));
        }
        Ok(tokens)
    }

    /// A finite number above 0, if the key exists.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.metadata().f64(&self.key(key))? {
            Some(number) if !(number.is_finite() && number > 0.0) => {
                Err(self.refuse(key, number, "it should be a finite number above 0"))
            }
            other => Ok(other),
        }
    }

    /// A finite number above 0.
    pub(crate) fn require_positive(&self, key: &str) -> Result<f64> {
        match self.positive(key)? {
            Some(number) => Ok(number),
            None => Ok(self.metadata().require_f64(&self.key(key))?),
        }
    }

    /// A truth value, if the key exists.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        Ok(self.metadata().bool(&self.key(key))?)
    }

    /// Text, if the key exists.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        Ok(self.metadata().str(&self.key(key))?)
    }

    /// An array of truth values, or of integers that stand for them, one a layer, if the key exists and is an
    /// array.
    pub(crate) fn flags(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
        let full = self.key(key);
        let Some(array) = self.metadata().get(&full).and_then(|value| value.as_array()) else {
            return Ok(None);
        };
        let flags = match array.ints() {
            Some(ints) => ints.map(|value| value != 0).collect(),
            None => self.metadata().require_bool_array(&full)?.to_vec(),
        };
        if flags.len() != layers {
            let found = format!("an array of {}", flags.len());
            return Err(self.refuse(key, found, format!("there are {layers} layers")));
        }
        Ok(Some(flags))
    }

    /// An array of integers, if the key exists.
    pub(crate) fn ints(&self, key: &str) -> Result<Option<Vec<u32>>> {
        Ok(self.metadata().u32_array(&self.key(key))?.map(|ints| ints.into_owned()))
    }

    /// `block_count`, checked against the blocks that the file has.
    pub(crate) fn block_count(&self) -> Result<usize> {
        let key = "block_count";
        let count = self.require_size(key)?;
        let block = |name: &str| name.strip_prefix("blk.")?.split_once('.')?.0.parse::<usize>().ok();
        let last = self.gguf.tensors().filter_map(|tensor| block(tensor.name())).max();
        let blocks = last.map_or(0, |last| last.saturating_add(1));
        if blocks != count {
            return Err(self.refuse(key, count, format!("the file's tensors make {blocks} blocks")));
        }
        Ok(count)
    }
}

/// The name of a part of a model, for messages.
pub(crate) fn file_name(gguf: &Gguf, part: usize) -> String {
    gguf.paths().get(part).map_or_else(|| "GGUF in memory".to_owned(), |path| path.display().to_string())
}
