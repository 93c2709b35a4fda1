//! From what lies on a card back to a file's bytes: for tools, and for what a card cannot do itself.
//!
//! All but two types change nothing but places (and signs of bytes), so that laying out a group in which one bit is set says where
//! that bit went.

use std::sync::OnceLock;

use gruff_blocks::BlockType;

use super::lanes::{Lanes, trit_byte, trit_place};
use super::{GROUP, Group, LANES, MOST, MOST_OWN, MOST_ROW, RUN};

/// What a group's lanes have, one after the other, and what they share.
fn image<L: Lanes>(group: &Group) -> Vec<u8> {
    let mut image = Vec::with_capacity(LANES * L::OWN + L::ROW);
    for lane in 0..LANES {
        let mut own = [0; MOST_OWN];
        L::own(group, lane, &mut own);
        image.extend_from_slice(&own[..L::OWN]);
    }
    let mut shared = [0; MOST_ROW];
    L::shared(group, &mut shared);
    image.extend_from_slice(&shared[..L::ROW]);
    image
}

/// Where a group's bits go, and what a group of zeros becomes.
struct Places {
    /// Of each bit of the group its bit of the image, if it has one.
    bits: Vec<Option<usize>>,
    zeros: Vec<u8>,
}

impl Places {
    fn of<L: Lanes>(group_bytes: usize) -> Self {
        let zeros = image::<L>(&[0; MOST]);
        let place = |bit: usize| {
            let mut group = [0; MOST];
            group[bit / 8] = 1 << (bit % 8);
            let with = image::<L>(&group);
            let byte = with.iter().zip(&zeros).position(|(with, without)| with != without)?;
            Some(8 * byte + (with[byte] ^ zeros[byte]).trailing_zeros() as usize)
        };
        Self { bits: (0..8 * group_bytes).map(place).collect(), zeros }
    }
}

/// The bytes of a group of a type.
pub(super) fn group<L: Lanes>(block_type: BlockType, image: &[u8]) -> Vec<u8> {
    /// One more than the highest number of a type in files.
    const TYPES: usize = 64;
    static PLACES: [OnceLock<Places>; TYPES] = [const { OnceLock::new() }; TYPES];
    let bytes = GROUP / block_type.values() * block_type.bytes();
    if block_type == BlockType::TQ1_0 {
        return trits(image, bytes);
    }
    let places = PLACES[block_type.id() as usize].get_or_init(|| Places::of::<L>(bytes));
    let mut group = vec![0; bytes];
    for (bit, place) in places.bits.iter().enumerate() {
        let Some(place) = place else { continue };
        let set = (image[place / 8] ^ places.zeros[place / 8]) >> (place % 8) & 1;
        group[bit / 8] |= set << (bit % 8);
    }
    if block_type == BlockType::Q8_K {
        add_sums(&mut group);
    }
    group
}

/// The sums of 16 codes each that Q8_K has behind them, which the card does without.
fn add_sums(group: &mut [u8]) {
    let (codes, sums) = group[4..].split_at_mut(GROUP);
    for (sum, codes) in sums.chunks_exact_mut(2).zip(codes.chunks_exact(16)) {
        let total: i16 = codes.iter().map(|code| i16::from(*code as i8)).sum();
        sum.copy_from_slice(&total.to_le_bytes());
    }
}

/// A group of TQ1_0: the digits in other bytes.
fn trits(image: &[u8], bytes: usize) -> Vec<u8> {
    const OWN: usize = 13;
    let digit = |value: usize| {
        let (own, value) = (&image[value / RUN * OWN..], value % RUN);
        let (word, k) = (value / 4, [0, 2, 1, 3][value % 4]);
        let (byte, n) = if word < 15 { (own[word / 5 * 4 + k], word % 5) } else { (own[12], value % 4) };
        ((u16::from(byte.wrapping_mul(3_u8.pow(n as u32))) * 3) >> 8) as u8
    };
    let mut digits = vec![[0; 5]; bytes - 2];
    for value in 0..GROUP {
        let (byte, n) = trit_place(value);
        digits[byte][n as usize] = digit(value);
    }
    let mut group: Vec<u8> = digits.into_iter().map(trit_byte).collect();
    group.extend_from_slice(&image[LANES * OWN..]);
    group
}
