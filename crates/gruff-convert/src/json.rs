//! JSON files beside a model, read with messages that name file and key.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{Error, Result};

/// The largest JSON file that is read: tokenizers with 260,000 tokens take 35 MB.
const MOST_BYTES: u64 = 512 << 20;

/// A JSON file that holds an object.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    path: PathBuf,
    object: Map<String, Value>,
}

impl Document {
    /// Reads a file that has to be there.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let size = std::fs::metadata(path).map_err(Error::io("read", path))?.len();
        if size > MOST_BYTES {
            return Err(Error::file(path, format!("{size} bytes of JSON are more than any model has")));
        }
        let text = std::fs::read(path).map_err(Error::io("read", path))?;
        match serde_json::from_slice(&text) {
            Ok(Value::Object(object)) => Ok(Document { path: path.to_owned(), object }),
            Ok(_) => Err(Error::file(path, "should hold a JSON object")),
            Err(error) => Err(Error::file(path, format!("is not sound JSON: {error}"))),
        }
    }

    /// Reads a file if it is there.
    pub(crate) fn read_optional(path: &Path) -> Result<Option<Self>> {
        if path.is_file() { Self::read(path).map(Some) } else { Ok(None) }
    }

    /// An object that stands for the file at `path`.
    pub(crate) fn from_object(path: &Path, object: Map<String, Value>) -> Self {
        Document { path: path.to_owned(), object }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn object(&self) -> &Map<String, Value> {
        &self.object
    }

    /// The value under a key; null counts as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn insert(&mut self, key: &str, value: impl Into<Value>) {
        self.object.insert(key.to_owned(), value.into());
    }

    pub(crate) fn refuse(&self, key: &str, fault: impl Into<String>) -> Error {
        Error::key(&self.path, key, fault)
    }

    /// A whole number from 0 to 2^32 - 1, if the key is there.
    pub(crate) fn u32(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let whole = value.as_u64().or_else(|| {
            value.as_f64().filter(|v| v.fract() == 0.0 && (0.0..4e9).contains(v)).map(|v| v as u64)
        });
        match whole.and_then(|whole| u32::try_from(whole).ok()) {
            Some(whole) => Ok(Some(whole)),
            None => Err(self.refuse(key, format!("is {value}, but should be a whole number"))),
        }
    }

    pub(crate) fn require_u32(&self, key: &str) -> Result<u32> {
        self.u32(key)?.ok_or_else(|| self.refuse(key, "is missing"))
    }

    /// A finite number, if the key is there.
    pub(crate) fn f64(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(self.refuse(key, format!("is {value}, but should be a number"))),
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => Err(self.refuse(key, format!("is {value}, but should be true or false"))),
        }
    }

    /// Text, if the key is there.
    pub(crate) fn str(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(self.refuse(key, "should be text")),
        }
    }

    /// The object under a key, if it is there, as a document of its own.
    pub(crate) fn section(&self, key: &str) -> Result<Option<Document>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self::from_object(&self.path, object.clone()))),
            Some(_) => Err(self.refuse(key, "should be an object")),
        }
    }
}
