//! An opened model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::{Source, TensorData};
use crate::header::{ALIGNMENT_KEY, Header};
use crate::index::{self, Index};
use crate::metadata::Metadata;
use crate::split::{self, Place};
use crate::tensor::{self, TensorInfo};
use crate::{Endian, Error, Fault, Limits, swap};

/// One file of a model.
struct Part {
    file: Arc<str>,
    source: Arc<Source>,
    header: Header,
}

impl Part {
    fn read(file: Arc<str>, source: Source, limits: &Limits) -> Result<Self, Error> {
        let header = Header::read(&source, source.len() as u64, &file, limits)?;
        Ok(Part { file, source: Arc::new(source), header })
    }

    fn open(path: &Path, limits: &Limits) -> Result<Self, Error> {
        let file: Arc<str> = path.display().to_string().into();
        let source = Source::map(path, &file)?;
        Self::read(file, source, limits)
    }

    /// An error about this file as a part of a split model.
    fn misfit(&self, fault: impl Into<String>) -> Error {
        Error::Split { file: self.file.clone(), fault: fault.into() }
    }
}

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
    /// Opens a model with the default [`Limits`]. Of a split model, `path` may be any part; the others are
    /// found beside it by their names (`NAME-00001-of-00003.gguf`).
    ///
    /// # Errors
    /// When a file cannot be opened, its header is not sound, or the parts do not belong together.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, &Limits::default())
    }

    /// Opens a model whose claims may go up to `limits`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Self, Error> {
        let path = path.as_ref();
        let opened = Part::open(path, limits)?;
        let Some(place) = Place::in_metadata(&opened.header.metadata)? else {
            return Self::from_parts(vec![opened], vec![path.to_owned()]);
        };
        let paths = split::paths_around(path, place, limits).map_err(|fault| opened.misfit(fault))?;
        let mut opened = Some(opened);
        let mut parts: Vec<Part> = Vec::new();
        for (number, path) in (0..).zip(&paths) {
            let part = match opened.take_if(|_| number == place.number) {
                Some(part) => part,
                None => Part::open(path, limits)
                    .map_err(|error| missing_part(error, number, place, paths.len()))?,
            };
            check_fit(parts.first(), &part, Place { number, ..place })?;
            parts.push(part);
        }
        Self::from_parts(parts, paths)
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

    /// Reads the header that `bytes`, the beginning of a file of `file_bytes` bytes, begin with. `None` when it goes on
    /// behind them. Tensors can be looked at; [`data`](Self::data) has none of those that lie behind `bytes`.
    ///
    /// # Errors
    /// When the header is not sound.
    pub fn from_beginning(bytes: impl Into<Arc<[u8]>>, file_bytes: u64) -> Result<Option<Self>, Error> {
        let (file, source): (Arc<str>, _) = ("GGUF in memory".into(), Source::Shared(bytes.into()));
        let partial = (source.len() as u64) < file_bytes;
        match Header::read(&source, file_bytes, &file, &Limits::default()) {
            Ok(header) => {
                let part = Part { file, source: Arc::new(source), header };
                Self::from_parts(vec![part], Vec::new()).map(Some)
            }
            Err(Error::Malformed { fault: Fault::Truncated { .. } | Fault::Count { .. }, .. }) if partial => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn from_source(source: Source, limits: &Limits) -> Result<Self, Error> {
        let part = Part::read("GGUF in memory".into(), source, limits)?;
        match Place::in_metadata(&part.header.metadata)? {
            None => Self::from_parts(vec![part], Vec::new()),
            Some(place) => Err(part.misfit(format!("is {place} of a split model; open the files on disk"))),
        }
    }

    fn from_parts(mut parts: Vec<Part>, paths: Vec<PathBuf>) -> Result<Self, Error> {
        let mut tensors: Vec<TensorInfo> = Vec::new();
        for (number, part) in parts.iter_mut().enumerate() {
            let own = std::mem::take(&mut part.header.tensors);
            tensors.extend(own.into_iter().map(|tensor| tensor.in_part(number)));
        }
        let index = Index::new(&tensors).map_err(|twice| tensor::duplicate(&tensors[twice]))?;
        let model = Gguf { parts, paths, tensors, index };
        if model.parts.len() > 1 {
            let (found, first) = (model.tensors.len() as u64, model.first());
            let stated = first.header.metadata.u64_or(split::TENSORS_KEY, found)?;
            if stated != found {
                let fault = format!("{} is {stated}, but the parts have {found} tensors", split::TENSORS_KEY);
                return Err(first.misfit(fault));
            }
        }
        Ok(model)
    }

    /// The part that has the model's metadata. There is always one.
    fn first(&self) -> &Part {
        &self.parts[0]
    }

    /// The version of the format: 1, 2 or 3.
    pub fn version(&self) -> u32 {
        self.first().header.version
    }

    /// The byte order of the file. [`data`](Self::data) is little-endian in any case.
    pub fn endian(&self) -> Endian {
        self.first().header.endian
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
        &self.first().header.metadata
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
        if part.header.endian == Endian::Little {
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

/// Says which part is missing, if that is why it could not be opened.
fn missing_part(error: Error, number: u64, place: Place, count: usize) -> Error {
    match error {
        Error::Io { file, source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            let missing = Place { number, ..place };
            let fault = format!("{missing} of the model is missing; put all {count} files in one folder");
            Error::Split { file, fault }
        }
        other => other,
    }
}

/// Checks that `part` belongs in `place` of the model whose first part is `first`.
fn check_fit(first: Option<&Part>, part: &Part, place: Place) -> Result<(), Error> {
    match Place::in_metadata(&part.header.metadata)? {
        Some(found) if found == place => {}
        Some(found) => {
            return Err(part.misfit(format!("is {found} of a model, where {place} belongs")));
        }
        None => return Err(part.misfit(format!("is a whole model, where {place} of another belongs"))),
    }
    let Some(first) = first else { return Ok(()) };
    let (header, model) = (&part.header, &first.header);
    if (header.version, header.endian) != (model.version, model.endian) {
        return Err(part.misfit(format!("has another version or byte order than {}", first.file)));
    }
    for (key, value) in header.metadata.iter() {
        // Each part has its own number, and may align its own data.
        let own = [split::NUMBER_KEY, ALIGNMENT_KEY].contains(&key);
        if !own && model.metadata.get(key).is_some_and(|other| other != value) {
            return Err(part.misfit(format!("its key {key:?} differs from that of {}", first.file)));
        }
    }
    Ok(())
}
