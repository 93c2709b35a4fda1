//! Unpacking against other implementations (fixtures/unpack.*, written by tools/fixtures/blocks.py) and against any
//! bytes at all.

use gruff_blocks::{BlockType, Error};
use proptest::prelude::*;

const INDEX: &str = include_str!("fixtures/unpack.txt");
const DATA: &[u8] = include_bytes!("fixtures/unpack.bin");

struct Case {
    label: String,
    block_type: BlockType,
    packed: &'static [u8],
    expected: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let mut rest = DATA;
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at(count);
        rest = left;
        taken
    };
    let cases = INDEX
        .lines()
        .map(|line| {
            let mut fields = line.split('\t');
            let block_type: BlockType = fields.next().unwrap().parse().unwrap();
            let blocks: usize = fields.next().unwrap().parse().unwrap();
            let packed = take(blocks * block_type.bytes());
            let expected = take(blocks * block_type.values() * 4);
            let expected =
                expected.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            Case { label: line.replace('\t', ", "), block_type, packed, expected }
        })
        .collect();
    assert!(rest.is_empty(), "unpack.bin is longer than its index");
    cases
}

#[test]
fn equals_other_implementations_bit_for_bit() {
    for case in cases() {
        let actual = case.block_type.unpack_to_vec(case.packed).unwrap();
        assert_eq!(actual.len(), case.expected.len(), "{}", case.label);
        for (i, (a, e)) in actual.iter().zip(&case.expected).enumerate() {
            let same = a.to_bits() == e.to_bits() || (a.is_nan() && e.is_nan());
            assert!(same, "{}: value {i} is {a}, not {e}", case.label);
        }
    }
}

#[test]
fn every_type_has_a_case() {
    let covered: Vec<BlockType> = cases().iter().map(|case| case.block_type).collect();
    for block_type in BlockType::ALL {
        assert!(covered.contains(block_type), "no fixture for {block_type}");
    }
}

#[test]
fn lengths_must_agree() {
    let error = BlockType::Q4_0.unpack(&[0; 36], &mut [0.0; 32]).unwrap_err();
    assert_eq!(error, Error::Length { block_type: BlockType::Q4_0, bytes: 36, values: 32 });
    assert_eq!(error.to_string(), "36 bytes of Q4_0 hold 64 values, not 32");
    assert!(BlockType::Q4_0.unpack(&[0; 18], &mut [0.0; 64]).is_err());
    assert!(BlockType::Q4_0.unpack(&[0; 19], &mut [0.0; 32]).is_err());
    assert!(BlockType::Q4_0.unpack(&[0; 18], &mut [0.0; 33]).is_err());
    assert!(BlockType::Q4_0.unpack_to_vec(&[0; 17]).is_err());
    assert_eq!(BlockType::Q4_0.unpack_to_vec(&[]).unwrap(), []);
}

fn any_type() -> impl Strategy<Value = BlockType> {
    proptest::sample::select(BlockType::ALL)
}

proptest! {
    #[test]
    fn any_bytes_and_lengths_give_values_or_an_error(
        block_type in any_type(),
        packed in proptest::collection::vec(any::<u8>(), 0..700),
        values in 0_usize..700,
    ) {
        let fits = packed.len() % block_type.bytes() == 0
            && packed.len() / block_type.bytes() * block_type.values() == values;
        prop_assert_eq!(block_type.unpack(&packed, &mut vec![0.0; values]).is_ok(), fits);
    }

    #[test]
    fn any_whole_blocks_unpack_block_by_block(block_type in any_type(), seed in any::<[u8; 32]>(), blocks in 0_usize..4) {
        let packed: Vec<u8> = seed.iter().copied().cycle().take(blocks * block_type.bytes()).collect();
        let together = block_type.unpack_to_vec(&packed).unwrap();
        let apart: Vec<f32> =
            packed.chunks(block_type.bytes()).flat_map(|block| block_type.unpack_to_vec(block).unwrap()).collect();
        prop_assert!(together.iter().zip(&apart).all(|(a, b)| a.to_bits() == b.to_bits()));
        prop_assert_eq!(together.len(), blocks * block_type.values());
    }
}
