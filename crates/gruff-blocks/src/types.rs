//! The table of ggml tensor types: id, name, values and bytes a block.

use std::fmt;
use std::str::FromStr;

use crate::Error;

macro_rules! block_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $values:literal values, $bytes:literal bytes;)*) => {
        /// A ggml tensor type: how a run of consecutive values of a row is stored.
        ///
        /// Ids, names and sizes are those of the GGUF format. A *block* is the smallest unit that can be
        /// unpacked on its own: [`values`](Self::values) numbers in [`bytes`](Self::bytes) bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        #[repr(u32)]
        pub enum BlockType {
            $($(#[$doc])* $variant = $id,)*
        }

        impl BlockType {
            /// Every type, in the order of their ids.
            pub const ALL: &[BlockType] = &[$(BlockType::$variant,)*];

            /// The name that ggml gives the type (`"Q4_K"`).
            pub const fn name(self) -> &'static str {
                match self { $(BlockType::$variant => $name,)* }
            }

            /// Values in one block.
            pub const fn values(self) -> usize {
                match self { $(BlockType::$variant => $values,)* }
            }

            /// Bytes of one block.
            pub const fn bytes(self) -> usize {
                match self { $(BlockType::$variant => $bytes,)* }
            }

            const fn lookup(id: u32) -> Option<BlockType> {
                match id { $($id => Some(BlockType::$variant),)* _ => None }
            }
        }
    };
}

block_types! {
    /// IEEE single precision.
    F32 = 0, "F32", 1 values, 4 bytes;
    /// IEEE half precision.
    F16 = 1, "F16", 1 values, 2 bytes;
    /// 4-bit, one scale.
    Q4_0 = 2, "Q4_0", 32 values, 18 bytes;
    /// 4-bit, scale and minimum.
    Q4_1 = 3, "Q4_1", 32 values, 20 bytes;
    /// 5-bit, one scale.
    Q5_0 = 6, "Q5_0", 32 values, 22 bytes;
    /// 5-bit, scale and minimum.
    Q5_1 = 7, "Q5_1", 32 values, 24 bytes;
    /// 8-bit, one scale.
    Q8_0 = 8, "Q8_0", 32 values, 34 bytes;
    /// 8-bit, scale and sum (an activation format, rarely in files). Two f16 before the quants, as in ggml's C code.
    Q8_1 = 9, "Q8_1", 32 values, 36 bytes;
    /// 2-bit super-blocks of 16 x 16.
    Q2_K = 10, "Q2_K", 256 values, 84 bytes;
    /// 3-bit super-blocks of 16 x 16.
    Q3_K = 11, "Q3_K", 256 values, 110 bytes;
    /// 4-bit super-blocks of 8 x 32.
    Q4_K = 12, "Q4_K", 256 values, 144 bytes;
    /// 5-bit super-blocks of 8 x 32.
    Q5_K = 13, "Q5_K", 256 values, 176 bytes;
    /// 6-bit super-blocks of 16 x 16.
    Q6_K = 14, "Q6_K", 256 values, 210 bytes;
    /// 8-bit super-blocks (an activation format).
    Q8_K = 15, "Q8_K", 256 values, 292 bytes;
    /// 2.06-bit, lattice codebook.
    IQ2_XXS = 16, "IQ2_XXS", 256 values, 66 bytes;
    /// 2.31-bit, lattice codebook.
    IQ2_XS = 17, "IQ2_XS", 256 values, 74 bytes;
    /// 3.06-bit, lattice codebook.
    IQ3_XXS = 18, "IQ3_XXS", 256 values, 98 bytes;
    /// 1.56-bit, lattice codebook.
    IQ1_S = 19, "IQ1_S", 256 values, 50 bytes;
    /// 4-bit, non-linear values.
    IQ4_NL = 20, "IQ4_NL", 32 values, 18 bytes;
    /// 3.44-bit, lattice codebook.
    IQ3_S = 21, "IQ3_S", 256 values, 110 bytes;
    /// 2.56-bit, lattice codebook.
    IQ2_S = 22, "IQ2_S", 256 values, 82 bytes;
    /// 4.25-bit, non-linear values in super-blocks.
    IQ4_XS = 23, "IQ4_XS", 256 values, 136 bytes;
    /// Signed 8-bit integer.
    I8 = 24, "I8", 1 values, 1 bytes;
    /// Signed 16-bit integer.
    I16 = 25, "I16", 1 values, 2 bytes;
    /// Signed 32-bit integer.
    I32 = 26, "I32", 1 values, 4 bytes;
    /// Signed 64-bit integer.
    I64 = 27, "I64", 1 values, 8 bytes;
    /// IEEE double precision.
    F64 = 28, "F64", 1 values, 8 bytes;
    /// 1.75-bit, lattice codebook.
    IQ1_M = 29, "IQ1_M", 256 values, 56 bytes;
    /// The upper half of an IEEE single.
    BF16 = 30, "BF16", 1 values, 2 bytes;
    /// Ternary, 1.69 bits.
    TQ1_0 = 34, "TQ1_0", 256 values, 54 bytes;
    /// Ternary, 2.06 bits.
    TQ2_0 = 35, "TQ2_0", 256 values, 66 bytes;
    /// OCP microscaling 4-bit float, an E8M0 scale for 32 values.
    MXFP4 = 39, "MXFP4", 32 values, 17 bytes;
    /// NVIDIA 4-bit float, four UE4M3 scales for 64 values.
    NVFP4 = 40, "NVFP4", 64 values, 36 bytes;
    /// Binary, one f16 scale for 128 values.
    Q1_0 = 41, "Q1_0", 128 values, 18 bytes;
    /// 2-bit, one f16 scale for 64 values.
    Q2_0 = 42, "Q2_0", 64 values, 18 bytes;
}

/// Ids that older files carried and the format has retired, with the names they had.
const RETIRED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl BlockType {
    /// The id stored in a GGUF tensor table.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Looks an id up.
    ///
    /// # Errors
    /// [`Error::RetiredType`] names a type the format dropped, [`Error::UnknownType`] any other id.
    pub fn from_id(id: u32) -> Result<Self, Error> {
        if let Some(found) = Self::lookup(id) {
            return Ok(found);
        }
        match RETIRED.iter().find(|(retired, _)| *retired == id) {
            Some((_, name)) => Err(Error::RetiredType { id, name }),
            None => Err(Error::UnknownType { id }),
        }
    }

    /// Bits a value, scales included.
    pub fn bits_per_value(self) -> f64 {
        self.bytes() as f64 * 8.0 / self.values() as f64
    }

    /// Bytes of a row of `values` values.
    ///
    /// # Errors
    /// [`Error::RowLength`] when the row is not a whole number of blocks or its size does not fit in `usize`.
    pub fn row_bytes(self, values: usize) -> Result<usize, Error> {
        if !values.is_multiple_of(self.values()) {
            return Err(Error::RowLength { block_type: self, values });
        }
        (values / self.values())
            .checked_mul(self.bytes())
            .ok_or(Error::RowLength { block_type: self, values })
    }

    /// Whether values are stored one by one (floats and integers) instead of in shared-scale blocks.
    pub const fn is_scalar(self) -> bool {
        self.values() == 1
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BlockType {
    type Err = Error;

    /// Accepts ggml's names in any case (`"q4_k"`).
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .iter()
            .copied()
            .find(|t| t.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| Error::UnknownName { name: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_lead_back() {
        for block_type in BlockType::ALL {
            assert_eq!(BlockType::from_id(block_type.id()), Ok(*block_type));
            assert_eq!(block_type.name().to_lowercase().parse(), Ok(*block_type));
        }
    }

    #[test]
    fn retired_and_unknown_ids_are_told_apart() {
        assert_eq!(BlockType::from_id(31), Err(Error::RetiredType { id: 31, name: "Q4_0_4_4" }));
        assert_eq!(BlockType::from_id(43), Err(Error::UnknownType { id: 43 }));
        assert!(RETIRED.iter().all(|(id, _)| BlockType::lookup(*id).is_none()));
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(BlockType::Q4_K.row_bytes(1024), Ok(4 * 144));
        let error = BlockType::Q4_K.row_bytes(1000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a row of 1000 values is not a whole number of Q4_K blocks (256 values each)"
        );
        assert!(BlockType::F64.row_bytes(usize::MAX).is_err());
    }
}
