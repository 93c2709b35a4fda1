use std::path::{Path, PathBuf};

use gruff_gguf::{Gguf, Split, Writer};

use crate::{Error, Progress, Result};

/// Bytes that are handed on at once.
const CHUNK: usize = 16 << 20;

/// Writes the model anew, its tensors as they are. Gives the files' paths.
pub(super) fn copy(
    gguf: &Gguf,
    out: &Path,
    split: Option<Split>,
    overwrite: bool,
    progress: &dyn Progress,
) -> Result<Vec<PathBuf>> {
    let mut writer = Writer::new(gguf.metadata().clone()).endian(gguf.endian());
    if let Some(split) = split {
        writer = writer.split(split);
    }
    for tensor in gguf.tensors() {
        writer.add(tensor.name(), tensor.shape(), tensor.block_type()?)?;
    }
    let mut file = writer.create(out)?;
    if let Some(path) = file.paths().iter().find(|path| path.exists() && !overwrite) {
        return Err(Error::Exists { path: path.clone() });
    }
    progress.start(gguf.tensors().filter_map(|tensor| tensor.bytes()).sum());
    for tensor in gguf.tensors() {
        let data = gguf.data(tensor)?;
        // Whole blocks: a big-endian file is written block by block.
        let block = tensor.block_type()?.bytes();
        for bytes in data.chunks((CHUNK / block).max(1) * block) {
            file.write(tensor.name(), bytes)?;
            progress.advance(bytes.len() as u64);
        }
    }
    let paths = file.finish()?;
    progress.finish();
    Ok(paths)
}
