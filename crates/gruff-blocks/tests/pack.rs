//! Packing against the gguf package (fixtures/pack.bin, written by tools/fixtures/blocks.py).

use gruff_blocks::BlockType;

const DATA: &[u8] = include_bytes!("fixtures/pack.bin");
const VALUES: usize = 1024;

/// The order in which the fixture holds the packed values.
const PACKED: [BlockType; 7] = [
    BlockType::F16,
    BlockType::BF16,
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
];

#[test]
fn equals_the_gguf_package_byte_for_byte() {
    let (values, mut rest) = DATA.split_at(VALUES * 4);
    let values = BlockType::F32.unpack_to_vec(values).unwrap();
    for block_type in PACKED {
        let (expected, left) = rest.split_at(block_type.row_bytes(VALUES).unwrap());
        let mut packed = vec![0; expected.len()];
        block_type.pack(&values, &mut packed).unwrap();
        let first_difference = packed.iter().zip(expected).position(|(a, b)| a != b);
        assert_eq!(first_difference, None, "{block_type}");
        rest = left;
    }
    assert!(rest.is_empty());
}
