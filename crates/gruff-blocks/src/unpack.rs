//! From packed blocks to `f32`: one entry for every type.

use crate::{Block, BlockType, Error, binary, iq, k_quants, legacy, microscaling, scalar, ternary};

impl BlockType {
    /// Unpacks whole blocks into `f32`, the values of block 0 first.
    ///
    /// This is the specification that faster code is checked against: every operation is an `f32` operation in a
    /// fixed order, and the results equal those of the `gguf` Python package bit for bit. Integers and `F64` are
    /// converted as Rust's `as` does (nearest, ties to even). The per-tensor scale that may stand beside an
    /// [`NVFP4`](BlockType::NVFP4) tensor is not part of its blocks and is not applied.
    ///
    /// # Errors
    /// [`Error::Length`] unless `packed` is a whole number of blocks that hold exactly `out.len()` values.
    pub fn unpack(self, packed: &[u8], out: &mut [f32]) -> Result<(), Error> {
        self.check_lengths(packed.len(), out.len())?;
        match self {
            BlockType::F32 => scalar::each(packed, out, f32::from_le_bytes),
            BlockType::F64 => scalar::each(packed, out, |b| f64::from_le_bytes(b) as f32),
            BlockType::F16 => scalar::each(packed, out, |b| half::f16::from_le_bytes(b).to_f32()),
            BlockType::BF16 => scalar::each(packed, out, |b| half::bf16::from_le_bytes(b).to_f32()),
            BlockType::I8 => scalar::each(packed, out, |b| i8::from_le_bytes(b) as f32),
            BlockType::I16 => scalar::each(packed, out, |b| i16::from_le_bytes(b) as f32),
            BlockType::I32 => scalar::each(packed, out, |b| i32::from_le_bytes(b) as f32),
            BlockType::I64 => scalar::each(packed, out, |b| i64::from_le_bytes(b) as f32),
            BlockType::Q4_0 => blocks::<legacy::Q4_0>(packed, out),
            BlockType::Q4_1 => blocks::<legacy::Q4_1>(packed, out),
            BlockType::Q5_0 => blocks::<legacy::Q5_0>(packed, out),
            BlockType::Q5_1 => blocks::<legacy::Q5_1>(packed, out),
            BlockType::Q8_0 => blocks::<legacy::Q8_0>(packed, out),
            BlockType::Q8_1 => blocks::<legacy::Q8_1>(packed, out),
            BlockType::Q2_K => blocks::<k_quants::Q2_K>(packed, out),
            BlockType::Q3_K => blocks::<k_quants::Q3_K>(packed, out),
            BlockType::Q4_K => blocks::<k_quants::Q4_K>(packed, out),
            BlockType::Q5_K => blocks::<k_quants::Q5_K>(packed, out),
            BlockType::Q6_K => blocks::<k_quants::Q6_K>(packed, out),
            BlockType::Q8_K => blocks::<k_quants::Q8_K>(packed, out),
            BlockType::IQ1_S => blocks::<iq::IQ1_S>(packed, out),
            BlockType::IQ1_M => blocks::<iq::IQ1_M>(packed, out),
            BlockType::IQ2_XXS => blocks::<iq::IQ2_XXS>(packed, out),
            BlockType::IQ2_XS => blocks::<iq::IQ2_XS>(packed, out),
            BlockType::IQ2_S => blocks::<iq::IQ2_S>(packed, out),
            BlockType::IQ3_XXS => blocks::<iq::IQ3_XXS>(packed, out),
            BlockType::IQ3_S => blocks::<iq::IQ3_S>(packed, out),
            BlockType::IQ4_NL => blocks::<iq::IQ4_NL>(packed, out),
            BlockType::IQ4_XS => blocks::<iq::IQ4_XS>(packed, out),
            BlockType::TQ1_0 => blocks::<ternary::TQ1_0>(packed, out),
            BlockType::TQ2_0 => blocks::<ternary::TQ2_0>(packed, out),
            BlockType::MXFP4 => blocks::<microscaling::MXFP4>(packed, out),
            BlockType::NVFP4 => blocks::<microscaling::NVFP4>(packed, out),
            BlockType::Q1_0 => blocks::<binary::Q1_0>(packed, out),
            BlockType::Q2_0 => blocks::<binary::Q2_0>(packed, out),
        }
        Ok(())
    }

    /// Unpacks whole blocks into a new vector.
    ///
    /// # Errors
    /// [`Error::Length`] unless `packed` is a whole number of blocks.
    pub fn unpack_to_vec(self, packed: &[u8]) -> Result<Vec<f32>, Error> {
        let mut out = vec![0.0; packed.len() / self.bytes() * self.values()];
        self.unpack(packed, &mut out)?;
        Ok(out)
    }

    /// Whether `bytes` packed bytes are whole blocks of exactly `values` values.
    pub(crate) fn check_lengths(self, bytes: usize, values: usize) -> Result<(), Error> {
        let whole = bytes.is_multiple_of(self.bytes()) && values.is_multiple_of(self.values());
        if whole && bytes / self.bytes() == values / self.values() {
            Ok(())
        } else {
            Err(Error::Length { block_type: self, bytes, values })
        }
    }
}

/// Unpacks every block; the lengths have been checked.
fn blocks<B: Block>(packed: &[u8], out: &mut [f32]) {
    const {
        assert!(size_of::<B::Values>() == B::TYPE.values() * size_of::<f32>());
    }
    let packed: &[B] = bytemuck::cast_slice(packed);
    let out: &mut [B::Values] = bytemuck::cast_slice_mut(out);
    for (block, values) in packed.iter().zip(out) {
        block.unpack(values);
    }
}
