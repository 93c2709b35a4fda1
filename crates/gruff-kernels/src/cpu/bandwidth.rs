//! The speed at which this machine reads memory: the ceiling of decoding, where every weight is read once a token.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::Pool;
use crate::Result;

/// More than any cache holds, so that reads come from memory.
const BUFFER: usize = 256 << 20;

/// What a thread reads at a time.
const PIECE: usize = 1 << 20;

/// Time spent measuring, and passes over the buffer at least.
const DURATION: Duration = Duration::from_millis(400);
const PASSES: usize = 3;

/// Measures how many bytes a second `threads` threads (`None`: one a physical core) read from memory together:
/// the best of several passes over 256 MiB, which takes about half a second.
///
/// # Errors
/// [`crate::Error::Option`] when there cannot be that many threads.
pub fn measure(threads: Option<usize>) -> Result<f64> {
    let pool = Pool::new(threads)?;
    // Not zero: pages of zeros may all be one page.
    let buffer = vec![0x5a_u8; BUFFER];
    let begin = Instant::now();
    let mut best = Duration::MAX;
    let mut passes = 0;
    while passes < PASSES || begin.elapsed() < DURATION {
        let start = Instant::now();
        pool.for_each(BUFFER / PIECE, |i| {
            black_box(sum(&buffer[i * PIECE..(i + 1) * PIECE]));
        });
        best = best.min(start.elapsed());
        passes += 1;
    }
    Ok(BUFFER as f64 / best.as_secs_f64())
}

/// Touches every byte, in wide loads whose sums do not wait for each other.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    for line in bytes.as_chunks::<128>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_read_at_some_speed() {
        let speed = super::measure(Some(1)).unwrap();
        assert!((1e8..1e13).contains(&speed), "{speed}");
        assert!(super::measure(Some(0)).is_err());
    }
}
