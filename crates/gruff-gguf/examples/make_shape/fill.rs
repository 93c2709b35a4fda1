//! The values of the tensors.

use gruff_blocks::{BlockType, synthetic};
use gruff_gguf::{Error, FileWriter};

use crate::shape::{Tensor, Values};

/// Blocks made and written at a time.
const CHUNK: u64 = 1 << 14;

/// Writes the whole tensor, a chunk of blocks at a time.
pub(crate) fn write(
    file: &mut FileWriter,
    tensor: &Tensor,
    block_type: BlockType,
    seed: u64,
) -> Result<(), Error> {
    let stream =
        tensor.name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let blocks = tensor.shape.iter().product::<u64>() / block_type.values() as u64;
    let mut chunk = vec![0; CHUNK as usize * block_type.bytes()];
    for first in (0..blocks).step_by(CHUNK as usize) {
        let count = (blocks - first).min(CHUNK) as usize;
        let bytes = &mut chunk[..count * block_type.bytes()];
        match tensor.values {
            Values::Weights(deviation) => {
                // Blocks of a real matrix differ; this range has a root mean square of about one deviation.
                let range = 0.7 * deviation..1.4 * deviation;
                synthetic::fill_blocks(block_type, stream, first, range, bytes);
            }
            Values::Norm => map_normal(stream, first, bytes, |normal| 1.0 + 0.1 * normal),
            Values::Decay => map_normal(stream, first, bytes, |normal| -(1.0 + 0.8 * normal).exp()),
            Values::TimeStep => map_normal(stream, first, bytes, |normal| normal - 4.5),
        }
        file.write(&tensor.name, bytes)?;
    }
    Ok(())
}

/// Fills `F32` bytes with a function of near-normal numbers of deviation 1.
fn map_normal(stream: u64, first: u64, bytes: &mut [u8], map: impl Fn(f32) -> f32) {
    synthetic::fill_blocks(BlockType::F32, stream, first, 1.0..1.0, bytes);
    for value in bytes.as_chunks_mut::<4>().0 {
        *value = map(f32::from_le_bytes(*value)).to_le_bytes();
    }
}
