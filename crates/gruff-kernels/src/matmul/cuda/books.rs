//! What codes are looked up in, copied to the card when first needed.

use std::collections::HashMap;
use std::sync::Mutex;

use cudarc::driver::sys::CUdeviceptr;
use gruff_blocks::BlockType;

use crate::Result;
use crate::cuda::CudaDevice;
use crate::cuda::phase::Phase;
use crate::cuda::strips::book;

/// The books on a card, by type.
#[derive(Default)]
pub(crate) struct Books {
    copied: Mutex<HashMap<BlockType, CUdeviceptr>>,
}

/// 32-bit words of a type's book.
pub(crate) fn book_words(block_type: BlockType) -> usize {
    book(block_type).words()
}

impl CudaDevice {
    /// The address of a type's book, 0 if it has none.
    pub(crate) fn book(&self, block_type: BlockType) -> Result<CUdeviceptr> {
        let book = book(block_type);
        if book.words() == 0 {
            return Ok(0);
        }
        let mut copied = self.books().copied.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = copied.get(&block_type) {
            return Ok(*known);
        }
        let pointer = self.constant(&book.bytes())?;
        if self.context().phase() != Phase::Rehearsing {
            copied.insert(block_type, pointer);
        }
        Ok(pointer)
    }
}
