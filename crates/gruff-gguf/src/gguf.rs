//! An opened model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::{Source, TensorData};
use crate::index::{self, Index};
use crate::metadata::Metadata;
use crate::part::Part;
use crate::tensor::TensorInfo;
use crate::{Endian, Error, Fault, Limits, swap};

/// An opened model: one file, or all parts of a split one.
///
/// Opening maps the files and reads their headers; tensor data stay on disk until they are read, so a large
/// model opens in milliseconds.
///
/// The files must not be shortened or overwritten while the model, or a [`TensorData`] of it, is in use.
/// Replacing a file by renaming another over it is safe: the map keeps the old one. A file shortened in place is noticed by the next call of [`data`](Self::data); bytes
/// read past its new end before that end the program with SIGBUS, as with every memory map.
pub struct Gguf {
    parts: Vec<Part>,
    paths: Vec<PathBuf>,
    tensors: Vec<TensorInfo>,
    index: Index,
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gguf")
            .field("file", &self.first().file)
            .field("parts", &self.parts.len())
            .field("keys", &self.metadata().len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

impl Gguf {
    /// Opens a file with the default [`Limits`].
    ///
    /// # Errors
    /// When a file cannot be opened or its header is not sound.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, &Limits::default())
    }

    /// Opens a file whose claims may go up to `limits`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Self, Error> {
        let path = path.as_ref();
        let file: Arc<str> = path.display().to_string().into();
        let source = Arc::new(Source::map(path, &file)?);
        Self::from_parts(vec![Part::read(file, source, 0, limits)?], vec![path.to_owned()])
    }

    /// Reads a file held in memory.
    ///
    /// # Errors
    /// When its header is not sound.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self, Error> {
        Self::from_source(Source::Shared(bytes.into()), &Limits::default())
    }

    /// Reads a file that is part of the program (`include_bytes!`).
    ///
    /// # Errors
    /// When its header is not sound.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, Error> {
        Self::from_source(Source::Static(bytes), &Limits::default())
    }

    /// Reads a file held in memory whose claims may go up to `limits`.
    ///
    /// # Errors
    /// When its header is not sound.
    pub fn from_bytes_with(bytes: impl Into<Arc<[u8]>>, limits: &Limits) -> Result<Self, Error> {
        Self::from_source(Source::Shared(bytes.into()), limits)
    }

    fn from_source(source: Source, limits: &Limits) -> Result<Self, Error> {
        let part = Part::read("GGUF in memory".into(), Arc::new(source), 0, limits)?;
        Self::from_parts(vec![part], Vec::new())
    }

    fn from_parts(mut parts: Vec<Part>, paths: Vec<PathBuf>) -> Result<Self, Error> {
        let tensors: Vec<TensorInfo> =
            parts.iter_mut().flat_map(|part| std::mem::take(&mut part.tensors)).collect();
        let index = Index::new(&tensors).map_err(|twice| {
            let tensor = &tensors[twice];
            Fault::Duplicate.of(tensor.file(), format!("tensor {:?}", tensor.name()))
        })?;
        Ok(Gguf { parts, paths, tensors, index })
    }

    /// The part that has the model's metadata. There is always one.
    fn first(&self) -> &Part {
        &self.parts[0]
    }

    /// The version of the format: 1, 2 or 3.
    pub fn version(&self) -> u32 {
        self.first().version
    }

    /// The byte order of the file. [`data`](Self::data) is little-endian in any case.
    pub fn endian(&self) -> Endian {
        self.first().endian
    }

    /// The files, in the order of the parts; none for a model in memory.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Bytes of all files together.
    pub fn file_size(&self) -> u64 {
        self.parts.iter().map(|part| part.source.len() as u64).sum()
    }

    /// The model's key-value pairs: those of the first part.
    pub fn metadata(&self) -> &Metadata {
        &self.first().metadata
    }

    /// Every tensor, in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> + Clone {
        self.tensors.iter()
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.find(&self.tensors, name).map(|at| &self.tensors[at])
    }

    /// The tensor called `name`, which has to be there.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] names the tensor, the file and the names that come close.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.tensor(name).ok_or_else(|| Error::MissingTensor {
            file: self.first().file.clone(),
            name: name.to_owned(),
            similar: index::similar(name, self.tensors().map(TensorInfo::name)),
        })
    }

    /// The packed bytes of a tensor of this model.
    ///
    /// For a little-endian file nothing is read or copied. For a big-endian file each call makes a copy in
    /// little-endian order.
    ///
    /// # Errors
    /// [`Error::TensorType`] when the tensor's type is unknown or retired, [`Error::ByteOrder`] for a
    /// lattice-codebook type (IQ1, IQ2, IQ3) in a big-endian file, [`Error::Changed`] when the file has become
    /// shorter, [`Error::ForeignTensor`] when the tensor is of another model.
    pub fn data(&self, tensor: &TensorInfo) -> Result<TensorData, Error> {
        let block_type = tensor.block_type()?;
        let foreign =
            || Error::ForeignTensor { file: self.first().file.clone(), tensor: tensor.name().to_owned() };
        let own = self.tensor(tensor.name()).filter(|&own| own == tensor).ok_or_else(foreign)?;
        let part = self.parts.get(own.part()).ok_or_else(foreign)?;
        part.source.check_length(&part.file)?;
        let begin = usize::try_from(own.offset()).ok();
        let bytes = own.bytes().and_then(|bytes| usize::try_from(bytes).ok());
        let range = begin.zip(bytes).and_then(|(begin, bytes)| Some(begin..begin.checked_add(bytes)?));
        let data = range.and_then(|range| TensorData::new(part.source.clone(), range)).ok_or_else(foreign)?;
        if part.endian == Endian::Little {
            return Ok(data);
        }
        let mut swapped = data.to_vec();
        if !swap::swap(block_type, &mut swapped) {
            let (file, tensor) = (part.file.clone(), tensor.name().to_owned());
            return Err(Error::ByteOrder { file, tensor, block_type });
        }
        Ok(swapped.into())
    }
}
