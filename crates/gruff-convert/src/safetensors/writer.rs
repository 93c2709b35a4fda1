use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::Dtype;
use crate::{Error, Result};

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(crate) struct ShardTensor {
    pub(crate) name: String,
    /// Outermost first.
    pub(crate) shape: Vec<u64>,
}

/// Writes a model's tensors, in the order given, to as many files as it takes, and the index of them.
pub(crate) struct ShardWriter {
    folder: PathBuf,
    dtype: Dtype,
    /// The tensors of each file.
    shards: Vec<Vec<ShardTensor>>,
    shard: usize,
    tensor: usize,
    /// Values that the current tensor lacks yet.
    left: u64,
    out: Option<BufWriter<File>>,
}

impl ShardWriter {
    /// Plans files of at most `shard_bytes`; a larger tensor has a file to itself.
    pub(crate) fn new(folder: &Path, dtype: Dtype, tensors: Vec<ShardTensor>, shard_bytes: u64) -> Self {
        let (mut shards, mut bytes) = (vec![Vec::new()], 0_u64);
        for tensor in tensors {
            let size = size_of_tensor(&tensor, dtype);
            if let Some(last) = shards.last()
                && !last.is_empty()
                && bytes.saturating_add(size) > shard_bytes
            {
                shards.push(Vec::new());
                bytes = 0;
            }
            bytes = bytes.saturating_add(size);
            shards.last_mut().into_iter().for_each(|shard| shard.push(tensor.clone()));
        }
        ShardWriter { folder: folder.to_owned(), dtype, shards, shard: 0, tensor: 0, left: 0, out: None }
    }

    /// Values of all tensors.
    pub(crate) fn total(&self) -> u64 {
        self.shards.iter().flatten().map(|tensor| tensor.shape.iter().product::<u64>()).sum()
    }

    fn file_name(&self, shard: usize) -> String {
        match self.shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
        }
    }

    /// Appends values of the current tensor; tensors follow each other in the order given.
    pub(crate) fn write(&mut self, values: &[f32]) -> Result<()> {
        if self.left == 0 {
            self.next_tensor()?;
        }
        let mut bytes = Vec::with_capacity(values.len() * self.dtype.bytes());
        self.dtype.pack(values, &mut bytes);
        self.left = self.left.saturating_sub(values.len() as u64);
        let path = self.folder.join(self.file_name(self.shard));
        match &mut self.out {
            Some(out) => out.write_all(&bytes).map_err(Error::io("written", &path)),
            None => Ok(()),
        }
    }

    fn next_tensor(&mut self) -> Result<()> {
        if self.out.is_none() {
            self.begin_file()?;
        } else {
            self.tensor += 1;
            if self.tensor == self.shards[self.shard].len() {
                self.end_file()?;
                self.shard += 1;
                self.tensor = 0;
                self.begin_file()?;
            }
        }
        let tensor = &self.shards[self.shard][self.tensor];
        self.left = tensor.shape.iter().product();
        Ok(())
    }

    fn begin_file(&mut self) -> Result<()> {
        let path = self.folder.join(self.file_name(self.shard));
        let file = File::create_new(&path).map_err(Error::io("created", &path))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&header(&self.shards[self.shard], self.dtype)).map_err(Error::io("written", &path))?;
        self.out = Some(out);
        Ok(())
    }

    fn end_file(&mut self) -> Result<()> {
        let path = self.folder.join(self.file_name(self.shard));
        let Some(out) = self.out.take() else { return Ok(()) };
        let file = out.into_inner().map_err(|error| Error::io("written", &path)(error.into_error()))?;
        file.sync_all().map_err(Error::io("written", &path))
    }

    /// Ends the last file and writes the index, if there are several.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.end_file()?;
        if self.shards.len() == 1 {
            return Ok(());
        }
        let mut map = Map::new();
        let mut total = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            for tensor in shard {
                map.insert(tensor.name.clone(), self.file_name(number).into());
                total += size_of_tensor(tensor, self.dtype);
            }
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        let path = self.folder.join("model.safetensors.index.json");
        std::fs::write(&path, format!("{index:#}\n")).map_err(Error::io("written", &path))
    }
}

fn size_of_tensor(tensor: &ShardTensor, dtype: Dtype) -> u64 {
    tensor.shape.iter().product::<u64>().saturating_mul(dtype.bytes() as u64)
}

/// The header of a file with these tensors one after the other, filled up so that values are aligned.
fn header(tensors: &[ShardTensor], dtype: Dtype) -> Vec<u8> {
    let mut object = Map::new();
    object.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut begin = 0;
    for tensor in tensors {
        let end = begin + size_of_tensor(tensor, dtype);
        let entry: Value =
            json!({"dtype": dtype.name(), "shape": tensor.shape, "data_offsets": [begin, end]});
        object.insert(tensor.name.clone(), entry);
        begin = end;
    }
    let mut json = Value::Object(object).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::Shards;

    fn tensor(name: &str, shape: &[u64]) -> ShardTensor {
        ShardTensor { name: name.to_owned(), shape: shape.to_vec() }
    }

    #[test]
    fn files_are_read_back() {
        for (most, files) in [(u64::MAX, 1), (24, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let tensors = vec![tensor("b", &[2, 2]), tensor("a", &[2]), tensor("c", &[8])];
            let mut writer = ShardWriter::new(folder.path(), Dtype::F32, tensors, most);
            assert_eq!((writer.total(), writer.shards.len()), (14, files - usize::from(files == 3)));
            writer.write(&[1.0, 2.0]).unwrap();
            writer.write(&[3.0, 4.0]).unwrap();
            writer.write(&[5.0, 6.0]).unwrap();
            writer.write(&[7.0; 8]).unwrap();
            writer.finish().unwrap();
            let shards = Shards::open(folder.path()).unwrap();
            assert_eq!(shards.names().collect::<Vec<_>>(), ["a", "b", "c"]);
            let mut values = [0.0; 2];
            shards.read("b", 2, &mut values).unwrap();
            assert_eq!(values, [3.0, 4.0]);
            shards.read("c", 6, &mut values).unwrap();
            assert_eq!(values, [7.0, 7.0]);
            assert!(shards.read("a", 1, &mut values).is_err());
            assert!(shards.read("d", 0, &mut values).is_err());
        }
    }
}
