//! Counter-based random numbers.

/// A number in [0, 1) that depends on `(seed, position)` alone, with 53 random bits: the 64-bit finaliser of
/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over both words.
pub fn uniform(seed: u64, position: u64) -> f64 {
    let word = mix(mix(seed.wrapping_add(GAMMA)) ^ position.wrapping_mul(GAMMA));
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// The golden ratio in 64 bits, SplitMix64's increment.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_uniform_and_depends_on_both_words() {
        let n = 20_000;
        for by_seed in [false, true] {
            let draws = (0..n).map(|i| if by_seed { uniform(i, 7) } else { uniform(7, i) });
            let mean: f64 = draws.sum::<f64>() / n as f64;
            assert!((mean - 0.5).abs() < 0.01, "{mean}");
        }
        assert_ne!(uniform(1, 2), uniform(2, 1));
    }
}
