//! Lookup through `gruff-blocks`.

use super::EmbeddingOps;
use crate::reference::{ReferenceDevice, store};
use crate::{PackedTensor, Result, Tensor};

impl EmbeddingOps for ReferenceDevice {
    fn embed(&self, ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()> {
        let mut row = vec![0f32; table.cols()];
        for (t, id) in ids.iter().enumerate() {
            table.unpack_row_unlocked(0, *id as usize, &mut row)?;
            let values: Vec<f64> = row.iter().map(|v| f64::from(*v * scale)).collect();
            store(&out.narrow(0, t, 1)?, &values)?;
        }
        Ok(())
    }
}
