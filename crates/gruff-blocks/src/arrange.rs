//! Where the bits of quants go in each block: the inverses of what `unpack` reads.

use crate::k_quants::SUPER_BLOCK;

/// The low 4 bits of 32 quants, as the legacy types arrange them.
pub(crate) fn nibbles(q: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4)
}

/// The fifth bits of 32 quants.
pub(crate) fn fifth_bits(q: &[u8; 32]) -> [u8; 4] {
    let bits = (0..32).fold(0, |bits: u32, i| bits | u32::from(q[i] >> 4) << i);
    bits.to_le_bytes()
}

/// The low 4 bits of quants as Q4_K and Q5_K arrange them.
pub(crate) fn nibbles_k4(q: &[u8; SUPER_BLOCK]) -> [u8; 128] {
    std::array::from_fn(|k| {
        let i = 64 * (k / 32) + k % 32;
        q[i] & 15 | q[i + 32] << 4
    })
}

/// Bit `bit` of each quant: eight quants, 32 apart, a byte.
fn one_bit(q: &[u8; SUPER_BLOCK], bit: u32) -> [u8; 32] {
    std::array::from_fn(|j| (0..8).fold(0, |bits, k| bits | (q[32 * k + j] >> bit & 1) << k))
}

/// The fifth bits of Q5_K's quants.
pub(crate) fn fifth_bits_k5(q: &[u8; SUPER_BLOCK]) -> [u8; 32] {
    one_bit(q, 4)
}

/// The third bits of Q3_K's quants.
pub(crate) fn third_bits(q: &[u8; SUPER_BLOCK]) -> [u8; 32] {
    one_bit(q, 2)
}

/// Two bits of each quant, from bit `shift` up: four quants, 32 apart, a byte.
fn two_bits_from(q: &[u8; SUPER_BLOCK], shift: u32) -> [u8; 64] {
    std::array::from_fn(|k| {
        let i = 128 * (k / 32) + k % 32;
        (0..4).fold(0, |bits, n| bits | (q[i + 32 * n] >> shift & 3) << (2 * n))
    })
}

/// The low 2 bits of quants as Q2_K, Q3_K and TQ2_0 arrange them.
pub(crate) fn two_bits(q: &[u8; SUPER_BLOCK]) -> [u8; 64] {
    two_bits_from(q, 0)
}

/// The low 4 and the high 2 bits of Q6_K's quants.
pub(crate) fn six_bits(q: &[u8; SUPER_BLOCK]) -> ([u8; 128], [u8; 64]) {
    let low = std::array::from_fn(|k| {
        let i = 128 * (k / 64) + k % 64;
        q[i] & 15 | q[i + 64] << 4
    });
    (low, two_bits_from(q, 4))
}

/// Sixteen scales of 0..64 as Q3_K arranges them; see [`q3_k_scales`](crate::k_quants::q3_k_scales).
pub(crate) fn six_bit_scales(scales: &[u8; 16]) -> [u8; 12] {
    std::array::from_fn(|j| match j {
        0..8 => scales[j] & 15 | scales[j + 8] << 4,
        _ => (0..4).fold(0, |bits, n| bits | (scales[j - 8 + 4 * n] >> 4) << (2 * n)),
    })
}
