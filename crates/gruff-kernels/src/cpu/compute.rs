//! The speed at which this machine multiplies and adds in registers: the ceiling of prefill, where every weight serves
//! many tokens.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::Pool;
use super::simd::{LANES, Simd, simd_fn};
use crate::{Isa, Result};

/// Time spent on each of the two, and runs at least.
const DURATION: Duration = Duration::from_millis(100);
const RUNS: usize = 5;

/// Accumulators that do not wait for each other: more than any processor's latency times its units.
const CHAINS: usize = 12;

/// Rounds over all accumulators that a thread computes at a time.
const ROUNDS: usize = 20_000;

/// Multiplications with their additions a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compute {
    /// Of f32, fused.
    pub f32: f64,
    /// Of bytes, summed in i32, by the best vector instructions that the machine has (tiles of AMX apart); `None` where none
    /// is made for it.
    pub int8: Option<f64>,
}

/// Measures `threads` threads (`None`: one a physical core) together: the best of some runs, which take a quarter of a
/// second.
///
/// # Errors
/// [`crate::Error::Option`] when there cannot be that many threads.
pub fn measure(threads: Option<usize>) -> Result<Compute> {
    let pool = Pool::new(threads)?;
    let isa = Isa::choose(None)?;
    let best = |work: &(dyn Fn() -> usize + Sync)| {
        let begin = Instant::now();
        let mut best = 0.0_f64;
        let mut runs = 0;
        while runs < RUNS || begin.elapsed() < DURATION {
            let pieces = 4 * pool.threads();
            let start = Instant::now();
            pool.for_each(pieces, |_| {
                work();
            });
            best = best.max((pieces * CHAINS * ROUNDS) as f64 / start.elapsed().as_secs_f64());
            runs += 1;
        }
        best * work() as f64
    };
    let f32 = best(&|| {
        #[cfg(target_arch = "x86_64")]
        if let Some(lanes) = x86::wide_f32() {
            return lanes;
        }
        black_box(chains(isa, black_box(0.5)));
        LANES
    });
    #[cfg(target_arch = "x86_64")]
    let int8 = (x86::int8() > 0).then(|| best(&x86::int8));
    #[cfg(target_arch = "aarch64")]
    let int8 = (aarch64::int8() > 0).then(|| best(&aarch64::int8));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let int8 = None;
    Ok(Compute { f32, int8 })
}

#[inline(always)]
fn fused<S: Simd>(s: S, factor: f32) -> f32 {
    let mut sums = [s.splat(1.0); CHAINS];
    let factor = s.splat(factor);
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = s.mul_add(*sum, factor, factor);
        }
    }
    let mut total = 0.0;
    for sum in sums {
        total += s.sum(sum);
    }
    total
}

simd_fn! {
    /// [`ROUNDS`] fused multiplications of eight lanes in each of the chains.
    fn chains = fused(factor: f32) -> f32
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::is_x86_feature_detected as detected;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{CHAINS, ROUNDS};

    /// The rounds in registers of sixteen lanes, where there are such; products an instruction.
    pub(super) fn wide_f32() -> Option<usize> {
        if !detected!("avx512f") {
            return None;
        }
        // SAFETY: detected.
        black_box(unsafe { fused512(black_box(0.5)) });
        Some(16)
    }

    /// The rounds with the widest products of bytes; products a round and chain, 0 without any.
    pub(super) fn int8() -> usize {
        if detected!("avx512f") && detected!("avx512vnni") {
            // SAFETY: detected.
            black_box(unsafe { bytes512(black_box(1)) });
            64
        } else if detected!("avxvnni") {
            // SAFETY: detected.
            black_box(unsafe { bytes_vnni(black_box(1)) });
            32
        } else if detected!("avx2") {
            // SAFETY: detected.
            black_box(unsafe { bytes256(black_box(1)) });
            32
        } else {
            0
        }
    }

    #[target_feature(enable = "avx512f")]
    fn fused512(factor: f32) -> f32 {
        let mut sums = [_mm512_set1_ps(1.0); CHAINS];
        let factor = _mm512_set1_ps(factor);
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, factor);
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += _mm512_reduce_add_ps(sum);
        }
        total
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn bytes512(value: i8) -> i32 {
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        let bytes = _mm512_set1_epi8(value);
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, bytes, bytes);
            }
        }
        let mut total = 0_i32;
        for sum in sums {
            total = total.wrapping_add(_mm512_reduce_add_epi32(sum));
        }
        total
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn bytes_vnni(value: i8) -> i32 {
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        let bytes = _mm256_set1_epi8(value);
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, bytes, bytes);
            }
        }
        total256(sums)
    }

    #[target_feature(enable = "avx2")]
    fn bytes256(value: i8) -> i32 {
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        let (bytes, ones) = (_mm256_set1_epi8(value), _mm256_set1_epi16(1));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                // Fed by the sum, so that it is not the same product every time.
                let pairs = _mm256_maddubs_epi16(_mm256_xor_si256(*sum, bytes), bytes);
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        total256(sums)
    }

    #[target_feature(enable = "avx2")]
    fn total256(sums: [__m256i; CHAINS]) -> i32 {
        let mut total = 0_i32;
        for sum in sums {
            let mut lanes = [0_i32; 8];
            // SAFETY: the array has the vector's size.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
            for lane in lanes {
                total = total.wrapping_add(lane);
            }
        }
        total
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use std::arch::aarch64::*;
    use std::arch::{asm, is_aarch64_feature_detected as detected};
    use std::hint::black_box;

    use super::{CHAINS, ROUNDS};

    /// The rounds with products of bytes; products a round and chain, 0 without any.
    pub(super) fn int8() -> usize {
        if !detected!("dotprod") {
            return 0;
        }
        // SAFETY: detected.
        black_box(unsafe { bytes(black_box(1)) });
        16
    }

    #[target_feature(enable = "neon,dotprod")]
    fn bytes(value: i8) -> i32 {
        let mut sums = [vdupq_n_s32(0); CHAINS];
        let bytes = vdupq_n_s8(value);
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                // SAFETY: reads and writes registers only; the feature is enabled. Its intrinsic is not stable yet.
                unsafe {
                    asm!(
                        "sdot {sum:v}.4s, {bytes:v}.16b, {bytes:v}.16b",
                        sum = inout(vreg) *sum,
                        bytes = in(vreg) bytes,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
            }
        }
        let mut total = 0_i32;
        for sum in sums {
            total = total.wrapping_add(vaddvq_s32(sum));
        }
        total
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn products_are_computed_at_some_speed() {
        let speed = super::measure(Some(1)).unwrap();
        assert!((1e7..1e13).contains(&speed.f32), "{speed:?}");
        assert!(speed.int8.is_none_or(|speed| (1e7..1e14).contains(&speed)), "{speed:?}");
        assert!(super::measure(Some(0)).is_err());
    }
}
