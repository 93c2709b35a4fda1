//! The byte order of tensor data.

use gruff_blocks::BlockType;

/// `count` numbers of `width` bytes each, beginning `at` bytes into a block.
type Field = (usize, usize, usize);

/// The multi-byte numbers in a block of this type. Everything else in a block is single bytes.
///
/// `None` for the lattice-codebook types: their words mix codebook indices and signs, the tools that write
/// big-endian files disagree with those that read them, and so no byte order is right.
fn fields(block_type: BlockType) -> Option<&'static [Field]> {
    use BlockType::*;
    Some(match block_type {
        I8 => &[],
        F16 | BF16 | I16 => &[(0, 2, 1)],
        F32 | I32 => &[(0, 4, 1)],
        F64 | I64 => &[(0, 8, 1)],
        // One f16 scale first.
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | Q1_0 | Q2_0 => &[(0, 2, 1)],
        // Two: scale and minimum, or scale and sum.
        Q4_1 | Q5_1 | Q8_1 | Q4_K | Q5_K => &[(0, 2, 2)],
        // Scale and minimum last, after 16 bytes of scales and 64 of quants.
        Q2_K => &[(80, 2, 2)],
        // One scale last.
        Q3_K => &[(108, 2, 1)],
        Q6_K => &[(208, 2, 1)],
        TQ1_0 => &[(52, 2, 1)],
        TQ2_0 => &[(64, 2, 1)],
        // An f32 scale, 256 quants, 16 sums.
        Q8_K => &[(0, 4, 1), (260, 2, 16)],
        // An f16 scale and the high bits of the sub-scales in one u16.
        IQ4_XS => &[(0, 2, 2)],
        // Scales of one byte.
        MXFP4 | NVFP4 => &[],
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S => return None,
    })
}

/// Turns whole blocks of big-endian data into little-endian order, or back. Says whether it could.
pub(crate) fn swap(block_type: BlockType, bytes: &mut [u8]) -> bool {
    let Some(fields) = fields(block_type) else { return false };
    for block in bytes.chunks_exact_mut(block_type.bytes()) {
        for &(at, width, count) in fields {
            for number in block[at..at + width * count].chunks_exact_mut(width) {
                number.reverse();
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_inside_their_blocks() {
        for &block_type in BlockType::ALL {
            for &(at, width, count) in fields(block_type).unwrap_or_default() {
                assert!(at + width * count <= block_type.bytes(), "{block_type}");
            }
        }
    }

    #[test]
    fn swapping_twice_changes_nothing() {
        for &block_type in BlockType::ALL {
            let before: Vec<u8> = (0..block_type.bytes() * 3).map(|i| i as u8).collect();
            let mut bytes = before.clone();
            if swap(block_type, &mut bytes) {
                assert!(swap(block_type, &mut bytes));
                assert_eq!(bytes, before, "{block_type}");
            }
        }
    }

    #[test]
    fn only_the_scales_move() {
        let mut bytes: Vec<u8> = (0..34).collect();
        assert!(swap(BlockType::Q8_0, &mut bytes));
        assert_eq!(bytes[..3], [1, 0, 2]);
        let mut bytes: Vec<u8> = (0..84).collect();
        assert!(swap(BlockType::Q2_K, &mut bytes));
        assert_eq!(bytes[79..], [79, 81, 80, 83, 82]);
        assert!(!swap(BlockType::IQ2_XXS, &mut bytes));
    }
}
