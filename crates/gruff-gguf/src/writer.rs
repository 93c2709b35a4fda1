//! Making GGUF files.

use std::fs::File;
use std::io::{Cursor, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gruff_blocks::BlockType;

use crate::encode::{self, NewTensor};
use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Header, NEWEST};
use crate::index::{self, Index};
use crate::metadata::Metadata;
use crate::split;
use crate::tensor::{self, TensorInfo};
use crate::unfinished::Unfinished;
use crate::{Endian, Error, Limits, swap};

/// Bytes that no file has more of: offsets are signed in the operating system.
const LARGEST_FILE: u64 = i64::MAX as u64;

/// When a model is written as several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// At most this many tensors in a file.
    Tensors(usize),
    /// At most this many bytes of tensor data in a file; a larger tensor has a file to itself.
    Bytes(u64),
}

/// Describes a model and writes it: first its metadata and the names, shapes and types of its tensors, then
/// their data, in any order and in pieces.
///
/// ```
/// use gruff_gguf::{Gguf, Metadata, Writer};
/// # use gruff_blocks::BlockType;
/// # fn main() -> Result<(), gruff_gguf::Error> {
/// # let folder = std::env::temp_dir().join(format!("gruff-writer-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("model.gguf");
/// let mut metadata = Metadata::new();
/// metadata.insert("general.architecture", "llama");
/// let mut writer = Writer::new(metadata);
/// writer.add("output_norm.weight", &[2], BlockType::F32)?;
/// let mut file = writer.create(&path)?;
/// file.write("output_norm.weight", &1.0_f32.to_le_bytes())?;
/// file.write("output_norm.weight", &2.0_f32.to_le_bytes())?;
/// file.finish()?;
/// assert_eq!(Gguf::open(&path)?.require("output_norm.weight")?.shape(), [2]);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Writer {
    version: u32,
    endian: Endian,
    split: Option<Split>,
    metadata: Metadata,
    tensors: Vec<NewTensor>,
}

impl Writer {
    /// A model with these key-value pairs and no tensors yet, of version 3, little-endian, in one file.
    ///
    /// `general.alignment` in `metadata` is obeyed; the `split.*` keys are set by the writer.
    pub fn new(mut metadata: Metadata) -> Self {
        for key in [split::NUMBER_KEY, split::COUNT_KEY, split::TENSORS_KEY] {
            metadata.remove(key);
        }
        Writer { version: NEWEST, endian: Endian::Little, split: None, metadata, tensors: Vec::new() }
    }

    /// Writes version 2 or 3 of the format.
    ///
    /// # Errors
    /// [`Error::WriteVersion`] for any other.
    pub fn version(mut self, version: u32) -> Result<Self, Error> {
        if !(2..=NEWEST).contains(&version) {
            return Err(Error::WriteVersion { version });
        }
        self.version = version;
        Ok(self)
    }

    /// Writes in this byte order. Data are given in little-endian order all the same.
    pub fn endian(mut self, endian: Endian) -> Self {
        self.endian = endian;
        self
    }

    /// Writes several files, `NAME-00001-of-0000N.gguf`, if the model is larger than one of them may be.
    pub fn split(mut self, split: Split) -> Self {
        self.split = Some(split);
        self
    }

    /// The key-value pairs.
    pub fn metadata(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Adds a tensor of `shape`, row length first.
    ///
    /// # Errors
    /// [`Error::Malformed`] when rows are not whole blocks, a dimension is zero, or there are more than four;
    /// [`Error::ByteOrder`] when the type cannot be written in big-endian order. Names are checked by
    /// [`create`](Self::create).
    pub fn add(
        &mut self,
        name: impl Into<String>,
        shape: &[u64],
        block_type: BlockType,
    ) -> Result<(), Error> {
        let name = name.into();
        let file: Arc<str> = "new file".into();
        let bytes =
            tensor::packed_bytes(block_type, shape).map_err(|f| f.of(&file, tensor::subject(&name)))?;
        if self.endian == Endian::Big && !swap::swap(block_type, &mut []) {
            return Err(Error::ByteOrder { file, tensor: name, block_type });
        }
        self.tensors.push(NewTensor { name, shape: shape.to_vec(), block_type, bytes });
        Ok(())
    }

    /// Begins the file at `path`, or the parts of a split model beside it.
    ///
    /// Everything is written to temporary files beside their final places, which they take when
    /// [`FileWriter::finish`] is called: an interrupted write leaves what was there before.
    ///
    /// # Errors
    /// [`Error::Malformed`] when a name or value is one that the reader would refuse, [`Error::Io`] when a
    /// file cannot be written.
    pub fn create(self, path: impl AsRef<Path>) -> Result<FileWriter, Error> {
        let path = path.as_ref();
        let plan = self.plan(path)?;
        let paths = match plan.len() {
            1 => vec![path.to_owned()],
            count => split::part_paths(path, count as u64),
        };
        let (mut places, mut outputs) = (Vec::new(), Vec::new());
        for path in &paths {
            let file: Arc<str> = path.display().to_string().into();
            let refused = |source| Error::Io { action: "create", file: file.clone(), source };
            let (place, new) = Unfinished::file(path).map_err(refused)?;
            places.push(place);
            outputs.push((file, new));
        }
        Ok(FileWriter { inner: DataWriter::begin(&self, plan, outputs)?, places, paths })
    }

    /// The whole file as bytes, in one part, with the data that `data` gives for each tensor.
    ///
    /// # Errors
    /// As [`create`](Self::create), [`Error::TensorSize`] when data have the wrong length, and what `data`
    /// returns.
    pub fn to_bytes<E: From<Error>>(
        &self,
        mut data: impl FnMut(&TensorInfo) -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let whole = vec![(self.metadata.clone(), self.tensors.clone())];
        let output = ("GGUF in memory".into(), Cursor::new(Vec::new()));
        let mut writer = DataWriter::begin(self, whole, vec![output])?;
        for at in 0..writer.tensors.len() {
            let bytes = data(&writer.tensors[at])?;
            let name = writer.tensors[at].name().to_owned();
            writer.write(&name, &bytes)?;
        }
        writer.check_complete()?;
        Ok(writer.outputs.pop().map(|(_, cursor)| cursor.into_inner()).unwrap_or_default())
    }

    /// The pairs and tensors of each file.
    fn plan(&self, path: &Path) -> Result<Vec<(Metadata, Vec<NewTensor>)>, Error> {
        let groups = self.groups();
        let count = groups.len();
        if count == 1 {
            return Ok(groups.into_iter().map(|group| (self.metadata.clone(), group)).collect());
        }
        let most = Limits::default().parts;
        // Other tools write, and expect, these types.
        let (Ok(parts), Ok(tensors), true) =
            (u16::try_from(count), i32::try_from(self.tensors.len()), count as u64 <= most)
        else {
            let fault =
                format!("would have {count} parts, where at most {most} are possible; make them larger");
            return Err(Error::Split { file: path.display().to_string().into(), fault });
        };
        let mut plan = Vec::new();
        for (number, group) in (0..parts).zip(groups) {
            let mut metadata = if number == 0 { self.metadata.clone() } else { Metadata::new() };
            if let Some(alignment) = self.metadata.get(ALIGNMENT_KEY) {
                metadata.insert(ALIGNMENT_KEY, alignment.clone());
            }
            metadata.insert(split::NUMBER_KEY, number);
            metadata.insert(split::COUNT_KEY, parts);
            metadata.insert(split::TENSORS_KEY, tensors);
            plan.push((metadata, group));
        }
        Ok(plan)
    }

    /// The tensors of each file.
    fn groups(&self) -> Vec<Vec<NewTensor>> {
        let (mut groups, mut group, mut bytes) = (Vec::new(), Vec::new(), 0_u64);
        for tensor in &self.tensors {
            let full = match self.split {
                None => false,
                Some(Split::Tensors(most)) => group.len() >= most.max(1),
                Some(Split::Bytes(most)) => bytes.saturating_add(tensor.bytes) > most,
            };
            if full && !group.is_empty() {
                groups.push(std::mem::take(&mut group));
                bytes = 0;
            }
            bytes = bytes.saturating_add(tensor.bytes);
            group.push(tensor.clone());
        }
        groups.push(group);
        groups
    }
}

/// Takes the data of the tensors that a [`Writer`] described. Dropped before [`finish`](Self::finish), it
/// leaves nothing behind.
pub struct FileWriter {
    inner: DataWriter<File>,
    places: Vec<Unfinished>,
    paths: Vec<PathBuf>,
}

impl FileWriter {
    /// The tensors, with their places in the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.inner.tensors
    }

    /// The files that [`finish`](Self::finish) puts in place.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Appends little-endian packed bytes to the data of the tensor called `name`.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] when no such tensor was added, [`Error::TensorSize`] when it is more than the
    /// tensor takes, [`Error::PartialBlock`] when a big-endian file is not given whole blocks, [`Error::Io`]
    /// when the file cannot be written.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write(name, bytes)
    }

    /// Makes sure that everything is on disk and puts the files in their places, over files of the same
    /// names. Gives back their paths.
    ///
    /// # Errors
    /// [`Error::TensorSize`] when a tensor lacks data, [`Error::Io`] when a file cannot be written. Nothing is
    /// put in place then.
    pub fn finish(self) -> Result<Vec<PathBuf>, Error> {
        self.inner.check_complete()?;
        let refused = |action, file: &Arc<str>, source| Error::Io { action, file: file.clone(), source };
        for (label, output) in &self.inner.outputs {
            output.sync_all().map_err(|source| refused("write", label, source))?;
        }
        Unfinished::put_all_in_place(self.places).map_err(|(path, source)| Error::Io {
            action: "put in place",
            file: path.display().to_string().into(),
            source,
        })?;
        Ok(self.paths)
    }
}

/// Writes tensor data behind headers.
struct DataWriter<W> {
    endian: Endian,
    outputs: Vec<(Arc<str>, W)>,
    tensors: Vec<TensorInfo>,
    index: Index,
    /// Bytes written of each tensor.
    written: Vec<u64>,
}

impl<W: Write + Seek> DataWriter<W> {
    /// Writes the headers of the planned files. Each is read back first, so that nothing is written that the
    /// reader would refuse, and so that there is one truth about where data go.
    fn begin(
        writer: &Writer,
        plan: Vec<(Metadata, Vec<NewTensor>)>,
        mut outputs: Vec<(Arc<str>, W)>,
    ) -> Result<Self, Error> {
        let alignment = writer.metadata.u64_or(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)?.max(1);
        let mut tensors = Vec::new();
        for (part, ((metadata, group), (file, output))) in plan.iter().zip(&mut outputs).enumerate() {
            let entries = encode::in_order(group, alignment);
            let bytes = encode::header(writer.version, writer.endian, metadata, &entries);
            let header = Header::read(&bytes, LARGEST_FILE, file, &Limits::default())?;
            let end = header.tensors.last().map_or(bytes.len() as u64, |tensor| {
                (tensor.offset() + tensor.bytes().unwrap_or(0)).next_multiple_of(alignment)
            });
            let refused = |source| Error::Io { action: "write", file: file.clone(), source };
            output.write_all(&bytes).map_err(refused)?;
            // The last byte: everything between is zero until it is written.
            if end > bytes.len() as u64 {
                output.seek(SeekFrom::Start(end - 1)).map_err(refused)?;
                output.write_all(&[0]).map_err(refused)?;
            }
            tensors.extend(header.tensors.into_iter().map(|tensor| tensor.in_part(part)));
        }
        let index = Index::new(&tensors).map_err(|twice| tensor::duplicate(&tensors[twice]))?;
        let written = vec![0; tensors.len()];
        Ok(DataWriter { endian: writer.endian, outputs, tensors, index, written })
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let Some(at) = self.index.find(&self.tensors, name) else {
            let similar = index::similar(name, self.tensors.iter().map(TensorInfo::name));
            let file = self.outputs.first().map_or("new file".into(), |(file, _)| file.clone());
            return Err(Error::MissingTensor { file, name: name.to_owned(), similar });
        };
        let tensor = &self.tensors[at];
        let (file, output) = &mut self.outputs[tensor.part()];
        let (expected, given) = (tensor.bytes().unwrap_or(0), self.written[at] + bytes.len() as u64);
        if given > expected {
            return Err(Error::TensorSize { file: file.clone(), tensor: name.to_owned(), expected, given });
        }
        let mut swapped = Vec::new();
        let mut bytes = bytes;
        if self.endian == Endian::Big {
            let block_type = tensor.block_type()?;
            if !bytes.len().is_multiple_of(block_type.bytes()) {
                return Err(Error::PartialBlock { file: file.clone(), tensor: name.to_owned() });
            }
            swapped.extend_from_slice(bytes);
            if !swap::swap(block_type, &mut swapped) {
                return Err(Error::ByteOrder { file: file.clone(), tensor: name.to_owned(), block_type });
            }
            bytes = &swapped;
        }
        output
            .seek(SeekFrom::Start(tensor.offset() + self.written[at]))
            .and_then(|_| output.write_all(bytes))
            .map_err(|source| Error::Io { action: "write", file: file.clone(), source })?;
        self.written[at] = given;
        Ok(())
    }

    fn check_complete(&self) -> Result<(), Error> {
        for (tensor, &given) in self.tensors.iter().zip(&self.written) {
            let expected = tensor.bytes().unwrap_or(0);
            if given != expected {
                let (file, tensor) = (tensor.file().clone(), tensor.name().to_owned());
                return Err(Error::TensorSize { file, tensor, expected, given });
            }
        }
        Ok(())
    }
}
