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

#[cfg(test)]
mod tests {
    use gruff_blocks::BlockType;
    use gruff_gguf::{Error as GgufError, Metadata, Writer};

    use super::*;

    #[test]
    fn scales_beside_a_tensor_are_applied() {
        let mut writer = Writer::new(Metadata::new());
        writer.add("a.weight", &[2, 1, 2], BlockType::F32).unwrap();
        writer.add("a.scale", &[2], BlockType::F32).unwrap();
        writer.add("b.weight", &[2], BlockType::F32).unwrap();
        writer.add("b.scale", &[1], BlockType::F32).unwrap();
        let numbers =
            |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let bytes = writer.to_bytes(|tensor| {
            Ok::<_, GgufError>(match tensor.name() {
                "a.weight" => numbers(&[1.0, 2.0, 3.0, 4.0]),
                "a.scale" => numbers(&[10.0, 100.0]),
                "b.weight" => numbers(&[5.0, 6.0]),
                _ => numbers(&[0.5]),
            })
        });
        let gguf = Gguf::from_bytes(bytes.unwrap()).unwrap();
        let mut values = [0.0; 4];
        Values(&gguf).read("a.weight", 0, &mut values).unwrap();
        assert_eq!(values, [10.0, 20.0, 300.0, 400.0]);
        let mut row = [0.0; 2];
        Values(&gguf).read("a.weight", 2, &mut row).unwrap();
        assert_eq!(row, [300.0, 400.0]);
        Values(&gguf).read("b.weight", 0, &mut row).unwrap();
        assert_eq!(row, [2.5, 3.0]);
        assert!(Values(&gguf).read("a.weight", 4, &mut row).is_err());
    }
}
