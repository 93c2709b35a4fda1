//! Importance matrices as llama-imatrix writes them: a GGUF file, or the older binary form.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gruff_blocks::{BlockType, mix::Role};
use gruff_gguf::Gguf;

use super::Plan;
use crate::{Error, Result};

/// What follows a tensor's name: sums of squared activations, a row for each expert.
const SUMS: &str = ".in_sum2";
/// What follows a tensor's name: how many activations were summed, for each expert.
const COUNTS: &str = ".counts";

/// How much each column of each matrix matters: the mean square of the activations that it was multiplied with.
#[derive(Clone, Debug)]
pub struct ImportanceMatrix {
    path: PathBuf,
    datasets: Vec<String>,
    chunks: u32,
    entries: BTreeMap<String, Vec<f32>>,
}

/// Importance beyond this, or all of it below the inverse, would leave the range of f32 in sums of weighted squares.
const LARGEST: f32 = 1e12;

/// Only proportions count: values of an odd size are brought near 1.
fn keep_in_range(values: &mut [f32]) {
    let largest = values.iter().copied().fold(0.0, f32::max);
    if largest > LARGEST || (largest > 0.0 && largest < 1.0 / LARGEST) {
        values.iter_mut().for_each(|value| *value /= largest);
    }
}

impl ImportanceMatrix {
    /// Reads either form, told apart by the first bytes.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be read, [`Error::Gguf`] or [`Error::File`] when it is not sound.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut magic = [0; 4];
        let mut file = std::fs::File::open(path).map_err(Error::io("read", path))?;
        let begins = std::io::Read::read_exact(&mut file, &mut magic);
        let matrix = match begins {
            Ok(()) if &magic == b"GGUF" => Self::from_gguf(path, &Gguf::open(path)?)?,
            Ok(()) => Self::from_binary(path, &std::fs::read(path).map_err(Error::io("read", path))?)?,
            Err(_) => return Err(Error::file(path, "is too short for an importance matrix")),
        };
        for (name, values) in &matrix.entries {
            if let Some(value) = values.iter().find(|value| !value.is_finite() || **value < 0.0) {
                return Err(Error::tensor(
                    path,
                    name,
                    format!("has the importance {value}; make the matrix anew"),
                ));
            }
        }
        let mut matrix = matrix;
        matrix.entries.values_mut().for_each(|values| keep_in_range(values));
        if matrix.entries.is_empty() {
            return Err(Error::file(path, "has no importance in it"));
        }
        Ok(matrix)
    }

    fn from_gguf(path: &Path, gguf: &Gguf) -> Result<Self> {
        let metadata = gguf.metadata();
        let datasets = metadata.str_array("imatrix.datasets")?;
        let datasets = datasets.map(|all| all.iter().map(|name| String::from_utf8_lossy(name).into_owned()));
        let mut entries = BTreeMap::new();
        for sums in gguf.tensors() {
            let Some(name) = sums.name().strip_suffix(SUMS) else { continue };
            let refuse = |fault: &str| Error::tensor(path, sums.name(), fault);
            let counts =
                gguf.tensor(&format!("{name}{COUNTS}")).ok_or_else(|| refuse("has no counts beside it"))?;
            if sums.block_type()? != BlockType::F32 || counts.block_type()? != BlockType::F32 {
                return Err(refuse("is not in F32, as importance has to be"));
            }
            let mut values = BlockType::F32.unpack_to_vec(&gguf.data(sums)?)?;
            let counts = BlockType::F32.unpack_to_vec(&gguf.data(counts)?)?;
            if counts.is_empty() || !values.len().is_multiple_of(counts.len()) {
                return Err(refuse("does not divide by the number of its counts"));
            }
            let columns = values.len() / counts.len();
            if let Some(count) = counts.iter().find(|count| !count.is_finite() || **count < 0.0) {
                return Err(refuse(&format!("has a count of {count}; make the matrix anew")));
            }
            for (row, count) in values.chunks_exact_mut(columns).zip(counts) {
                if count > 0.0 {
                    row.iter_mut().for_each(|value| *value /= count);
                } else {
                    // An expert that no token chose: all columns alike.
                    row.fill(1.0);
                }
            }
            entries.insert(name.to_owned(), values);
        }
        Ok(ImportanceMatrix {
            path: path.to_owned(),
            datasets: datasets.into_iter().flatten().collect(),
            chunks: metadata.u32_or("imatrix.chunk_count", 0)?,
            entries,
        })
    }

    /// The older form: the number of entries, then for each the length of its name, the name, the number of calls, the
    /// number of values and the values times the calls; then perhaps the number of chunks and the dataset. Numbers are
    /// `i32` and `f32`, little-endian.
    fn from_binary(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut bytes = Bytes(bytes);
        let cut =
            || Error::file(path, "is neither a GGUF file nor a whole importance matrix of the older form");
        let count = bytes.size().filter(|count| *count > 0).ok_or_else(cut)?;
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let name = bytes.text().ok_or_else(cut)?;
            let calls = bytes.size().ok_or_else(cut)?.max(1) as f32;
            let values = bytes.size().filter(|values| *values > 0).ok_or_else(cut)?;
            let values = bytes.take(values.checked_mul(4).ok_or_else(cut)?).ok_or_else(cut)?;
            let mut values = BlockType::F32.unpack_to_vec(values)?;
            values.iter_mut().for_each(|value| *value /= calls);
            entries.insert(name, values);
        }
        let chunks = bytes.size().and_then(|chunks| u32::try_from(chunks).ok()).unwrap_or(0);
        let datasets = bytes.text().filter(|name| !name.is_empty()).into_iter().collect();
        Ok(ImportanceMatrix { path: path.to_owned(), datasets, chunks, entries })
    }

    /// The file's name, as it is noted in quantized files.
    pub fn file(&self) -> String {
        self.path.display().to_string()
    }

    /// The texts that it was made with.
    pub fn datasets(&self) -> &[String] {
        &self.datasets
    }

    /// Chunks of text that it was made with.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Matrices that it knows.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it knows none; [`open`](Self::open) gives no such matrix.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it knows the matrix called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The importance of the columns of matrix `expert` (0 where there are no experts) of the tensor called `name`.
    pub fn of(&self, name: &str, columns: usize, expert: usize) -> Option<&[f32]> {
        let begin = expert.checked_mul(columns)?;
        self.entries.get(name)?.get(begin..begin.checked_add(columns)?)
    }

    /// Refuses a matrix that was made for another model.
    pub(super) fn check_fit(&self, plan: &Plan, model: &Gguf) -> Result<()> {
        let mut known = 0;
        for tensor in plan.tensors() {
            let Some(values) = self.entries.get(&tensor.name) else { continue };
            known += 1;
            let expected: u64 =
                tensor.shape.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, size)| size).product();
            // Embeddings are looked up, not multiplied: their entry, if any, is of the output's side.
            if values.len() as u64 != expected && Role::of(&tensor.name) != Role::TokenEmbedding {
                let fault = format!(
                    "has {} columns of importance, where {} has {expected}: the importance matrix was made for another model",
                    values.len(),
                    super::file_of(model).display()
                );
                return Err(Error::tensor(&self.path, &tensor.name, fault));
            }
        }
        if known == 0 {
            let fault = format!(
                "none of its {} entries is a tensor of {}: the importance matrix was made for another model",
                self.len(),
                super::file_of(model).display()
            );
            return Err(Error::file(&self.path, fault));
        }
        Ok(())
    }
}

/// Bytes still to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number that is not negative.
    fn size(&mut self) -> Option<usize> {
        let number = i32::from_le_bytes(self.take(4)?.try_into().ok()?);
        usize::try_from(number).ok()
    }

    fn text(&mut self) -> Option<String> {
        let length = self.size()?;
        Some(String::from_utf8_lossy(self.take(length)?).into_owned())
    }
}
