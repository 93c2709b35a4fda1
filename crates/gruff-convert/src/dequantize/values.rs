use gruff_gguf::{Gguf, TensorInfo};

use crate::stream::ReadValues;
use crate::{Error, Result};

/// The values of a GGUF file, unpacked a few rows at a time, scales that stand beside a tensor included.
pub(super) struct Values<'a>(pub(super) &'a Gguf);

impl ReadValues for Values<'_> {
    fn read(&self, name: &str, first: u64, out: &mut [f32]) -> Result<()> {
        let tensor = self.0.require(name)?;
        let block_type = tensor.block_type()?;
        let data = self.0.data(tensor)?;
        let per_block = block_type.values() as u64;
        let outside = || Error::tensor(&path_of(self.0), name, "has fewer values than its shape takes");
        let begin =
            usize::try_from(first / per_block).ok().and_then(|block| block.checked_mul(block_type.bytes()));
        let range =
            begin.zip(block_type.row_bytes(out.len()).ok()).filter(|_| first.is_multiple_of(per_block));
        let (begin, bytes) = range.ok_or_else(outside)?;
        let end = begin.checked_add(bytes).ok_or_else(outside)?;
        block_type.unpack(data.get(begin..end).ok_or_else(outside)?, out)?;
        self.scale(tensor, first, out)
    }
}

impl Values<'_> {
    /// Applies `NAME.scale`: one number, or one for each matrix of a stack.
    fn scale(&self, tensor: &TensorInfo, first: u64, out: &mut [f32]) -> Result<()> {
        let Some(stem) = tensor.name().strip_suffix(".weight") else { return Ok(()) };
        let Some(scale) = self.0.tensor(&format!("{stem}.scale")) else { return Ok(()) };
        let scales = scale.block_type()?.unpack_to_vec(&self.0.data(scale)?)?;
        let matrices = tensor.shape().get(2).copied().unwrap_or(1);
        if scales.len() != 1 && scales.len() as u64 != matrices {
            let fault = format!("has {} values for {matrices} matrices", scales.len());
            return Err(Error::tensor(&path_of(self.0), scale.name(), fault));
        }
        let each = (tensor.values() / matrices).max(1);
        for (at, value) in (first..).zip(out) {
            let matrix = if scales.len() == 1 { 0 } else { (at / each) as usize };
            *value *= scales.get(matrix).copied().unwrap_or(1.0);
        }
        Ok(())
    }
}

/// The file, for messages.
pub(super) fn path_of(gguf: &Gguf) -> std::path::PathBuf {
    gguf.paths().first().cloned().unwrap_or_else(|| "GGUF in memory".into())
}
