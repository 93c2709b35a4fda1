//! The code books that decoding looks values up in, copied to the card when first needed.

use std::collections::HashMap;
use std::sync::Mutex;

use cudarc::driver::sys::CUdeviceptr;
use gruff_blocks::BlockType;
use gruff_blocks::codebooks::{
    IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, IQ4_NL_VALUES,
};
use gruff_blocks::microscaling::E2M1_DOUBLED;

use crate::Result;
use crate::cuda::CudaDevice;
use crate::cuda::phase::Phase;

/// The books on a card, by type.
#[derive(Default)]
pub(crate) struct Books {
    copied: Mutex<HashMap<BlockType, CUdeviceptr>>,
}

/// A type's book as the kernels read it, an entry's values one after the other, but of each four the second and the third have changed
/// places; none for most types.
fn book(block_type: BlockType) -> Vec<u8> {
    let mut book = values(block_type);
    if !has_levels(block_type) {
        book.chunks_exact_mut(4).for_each(|four| four.swap(1, 2));
    }
    book
}

/// Whether codes are numbers of sixteen levels, which are the book, moved by 128.
fn has_levels(block_type: BlockType) -> bool {
    matches!(block_type, BlockType::IQ4_NL | BlockType::IQ4_XS | BlockType::MXFP4 | BlockType::NVFP4)
}

fn values(block_type: BlockType) -> Vec<u8> {
    match block_type {
        BlockType::IQ2_XXS => IQ2XXS_GRID.as_flattened().to_vec(),
        BlockType::IQ2_XS => IQ2XS_GRID.as_flattened().to_vec(),
        BlockType::IQ2_S => IQ2S_GRID.as_flattened().to_vec(),
        BlockType::IQ3_XXS => IQ3XXS_GRID.as_flattened().to_vec(),
        BlockType::IQ3_S => IQ3S_GRID.as_flattened().to_vec(),
        // Room for the eighth that is added or taken, and no negative bytes; see `IQ1_S` in `blocks.cuh`.
        BlockType::IQ1_S | BlockType::IQ1_M => {
            IQ1S_GRID.as_flattened().iter().map(|g| (8 * g + 16) as u8).collect()
        }
        BlockType::IQ4_NL | BlockType::IQ4_XS => moved(&IQ4_NL_VALUES),
        BlockType::MXFP4 | BlockType::NVFP4 => moved(&E2M1_DOUBLED),
        _ => Vec::new(),
    }
}

fn moved(levels: &[i8; 16]) -> Vec<u8> {
    levels.iter().map(|level| (*level as u8).wrapping_add(128)).collect()
}

/// 32-bit words of a type's book.
pub(crate) fn book_words(block_type: BlockType) -> usize {
    match block_type {
        BlockType::IQ2_XXS => 2 * IQ2XXS_GRID.len(),
        BlockType::IQ2_XS => 2 * IQ2XS_GRID.len(),
        BlockType::IQ2_S => 2 * IQ2S_GRID.len(),
        BlockType::IQ3_XXS => IQ3XXS_GRID.len(),
        BlockType::IQ3_S => IQ3S_GRID.len(),
        BlockType::IQ1_S | BlockType::IQ1_M => 2 * IQ1S_GRID.len(),
        _ if has_levels(block_type) => 4,
        _ => 0,
    }
}

impl CudaDevice {
    /// The address of a type's book, 0 if it has none.
    pub(crate) fn book(&self, block_type: BlockType) -> Result<CUdeviceptr> {
        if book_words(block_type) == 0 {
            return Ok(0);
        }
        let mut copied = self.books().copied.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = copied.get(&block_type) {
            return Ok(*known);
        }
        let pointer = self.constant(&book(block_type))?;
        if self.context().phase() != Phase::Rehearsing {
            copied.insert(block_type, pointer);
        }
        Ok(pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_have_the_words_that_kernels_copy() {
        for block_type in BlockType::ALL {
            assert_eq!(book(*block_type).len(), 4 * book_words(*block_type), "{block_type}");
        }
    }
}
