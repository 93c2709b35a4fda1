use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::header::{self, MOST_HEADER_BYTES, TensorEntry};
use crate::json::Document;
use crate::{Error, Result};

/// One safetensors file, its header read and checked. Values are read when asked for.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, TensorEntry>,
}

impl SafetensorsFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read, [`Error::File`] when its header is not sound or the file is cut
    /// short.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(Error::io("opened", path))?;
        let size = file.metadata().map_err(Error::io("read", path))?.len();
        let cut = |fault: String| Error::file(path, fault);
        if size < 8 {
            return Err(cut(format!("{size} bytes are no safetensors file; download it again")));
        }
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(Error::io("read", path))?;
        if length.starts_with(b"version ") {
            return Err(cut("is a Git LFS pointer; fetch the file itself with `git lfs pull`".to_owned()));
        }
        let length = u64::from_le_bytes(length);
        if length > MOST_HEADER_BYTES {
            return Err(cut(format!(
                "claims a header of {length} bytes, where at most {MOST_HEADER_BYTES} are possible; it is no \
                 safetensors file or damaged"
            )));
        }
        let section = 8 + length;
        if section > size {
            return Err(cut(format!(
                "the header should have {length} bytes, but the file ends after {}; it is cut short, download it \
                 again",
                size - 8
            )));
        }
        let mut json = vec![0; length as usize];
        file.read_exact(&mut json).map_err(Error::io("read", path))?;
        let tensors = header::parse(&json, section, size).map_err(cut)?;
        Ok(SafetensorsFile { path: path.to_owned(), file, tensors })
    }

    /// The tensors, by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorEntry> {
        &self.tensors
    }

    /// A tensor's values, in the order they are stored.
    ///
    /// # Errors
    /// [`Error::Tensor`] when there is no such tensor, or its values are of a type that is not read; [`Error::Io`].
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        let refuse = |fault: String| Error::tensor(&self.path, name, fault);
        let tensor = self.tensors.get(name).ok_or_else(|| refuse("does not exist".to_owned()))?;
        let dtype = tensor.known_dtype();
        let dtype = dtype.ok_or_else(|| {
            refuse(format!("is of type {}; only F32, F16, BF16 and F64 can be read", tensor.dtype))
        })?;
        let count = tensor.values() as usize;
        let (mut bytes, mut values) = (vec![0; count * dtype.bytes()], vec![0.0; count]);
        self.read(tensor, 0, &mut bytes)?;
        dtype.unpack(&bytes, &mut values);
        Ok(values)
    }

    /// Reads bytes of a tensor's values, from byte `from` of them.
    fn read(&self, tensor: &TensorEntry, from: u64, out: &mut [u8]) -> Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(tensor.offset + from))
            .and_then(|_| file.read_exact(out))
            .map_err(Error::io("read", &self.path))
    }
}

/// All safetensors files of a model's folder.
#[derive(Debug)]
pub struct Shards {
    folder: PathBuf,
    files: Vec<SafetensorsFile>,
    /// Which file has a tensor.
    places: BTreeMap<String, usize>,
}

const INDEX: &str = "model.safetensors.index.json";

impl Shards {
    /// Opens the files that `model.safetensors.index.json` lists, or every `model*.safetensors` where there is
    /// no index.
    ///
    /// # Errors
    /// [`Error::File`] when there are none, when one that is listed is missing or lacks a listed tensor, or
    /// when two have the same tensor.
    pub fn open(folder: &Path) -> Result<Self> {
        let index = folder.join(INDEX);
        let listed = if index.is_file() { Some(weight_map(&index)?) } else { None };
        let names = match &listed {
            Some(map) => {
                let mut names: Vec<String> = map.values().cloned().collect();
                names.sort();
                names.dedup();
                names
            }
            None => shard_names(folder)?,
        };
        let mut shards = Shards { folder: folder.to_owned(), files: Vec::new(), places: BTreeMap::new() };
        for (at, name) in names.iter().enumerate() {
            let file = SafetensorsFile::open(&folder.join(name))?;
            for tensor in file.tensors().keys() {
                if let Some(other) = shards.places.insert(tensor.clone(), at) {
                    let fault = format!("is in {} too", names[other]);
                    return Err(Error::tensor(&file.path, tensor, fault));
                }
            }
            shards.files.push(file);
        }
        for (tensor, name) in listed.iter().flatten() {
            if shards.places.get(tensor).map(|at| &names[*at]) != Some(name) {
                let fault = format!("should be in it according to {INDEX}, but is not");
                return Err(Error::tensor(&folder.join(name), tensor, fault));
            }
        }
        Ok(shards)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The tensors' names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.files.get(*self.places.get(name)?)?.tensors.get(name)
    }

    /// Reads `out.len()` values of a tensor, from value `first` on, in the order they are stored.
    ///
    /// # Errors
    /// [`Error::Tensor`] when there is no such tensor, it has fewer values, or they are of a type that is not
    /// read; [`Error::Io`].
    pub fn read(&self, name: &str, first: u64, out: &mut [f32]) -> Result<()> {
        let refuse = |fault: String| Error::tensor(&self.folder, name, fault);
        let place = self.places.get(name).and_then(|at| self.files.get(*at));
        let found = place.and_then(|file| Some((file, file.tensors.get(name)?)));
        let Some((file, tensor)) = found else { return Err(refuse("does not exist".to_owned())) };
        let Some(dtype) = tensor.known_dtype() else {
            return Err(refuse(format!(
                "is of type {}; only F32, F16, BF16 and F64 can be read: save the model in one of these",
                tensor.dtype
            )));
        };
        if first.checked_add(out.len() as u64).is_none_or(|end| end > tensor.values()) {
            return Err(refuse(format!("has {} values only", tensor.values())));
        }
        let mut bytes = vec![0; out.len() * dtype.bytes()];
        file.read(tensor, first * dtype.bytes() as u64, &mut bytes)?;
        dtype.unpack(&bytes, out);
        Ok(())
    }
}

fn weight_map(index: &Path) -> Result<BTreeMap<String, String>> {
    let document = Document::read(index)?;
    let Some(map) = document.get("weight_map").and_then(|map| map.as_object()) else {
        return Err(Error::key(index, "weight_map", "should be an object of tensor names and file names"));
    };
    let mut names = BTreeMap::new();
    for (tensor, file) in map {
        // Only names beside the index: a path could lead anywhere.
        let plain = file.as_str().filter(|name| {
            Path::new(name).file_name().is_some_and(|own| own == *name) && !name.contains(['/', '\\'])
        });
        let Some(file) = plain else {
            return Err(Error::key(index, format!("weight_map.{tensor}"), "should be a file name"));
        };
        names.insert(tensor.clone(), file.to_owned());
    }
    Ok(names)
}

fn shard_names(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::io("read", folder))?.file_name().to_string_lossy().into_owned();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            names.push(name);
        }
    }
    names.sort();
    if names.is_empty() {
        return Err(Error::file(
            folder,
            "has no model*.safetensors; give the folder of a model that transformers saved",
        ));
    }
    Ok(names)
}
