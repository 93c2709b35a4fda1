//! What the machine could do at most, and measurements beside it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId};
use gruff_kernels::{Result, bandwidth, compute};

/// What one call has to do: bytes that memory must give or take, multiplications with additions.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    /// Bytes.
    pub(crate) bytes: usize,
    /// Multiplications.
    pub(crate) products: usize,
    /// Whether these are of bytes, and not of f32.
    pub(crate) int8: bool,
}

/// The speeds that `gruff bench --profile` measures against too, of all cores together.
pub(crate) struct Ceilings {
    read: f64,
    int8: Option<f64>,
    f32: f64,
}

impl Ceilings {
    /// Measures them, and says what they are.
    pub(crate) fn measure() -> Self {
        let read = bandwidth::measure(None).expect("threads");
        let compute::Compute { f32, int8 } = compute::measure(None).expect("threads");
        let bytes = int8.map_or("none made for it".to_owned(), |speed| format!("{:.0}", speed / 1e9));
        println!(
            "ceilings of this machine: memory is read at {:.1} GB/s; {bytes} GMAC/s of int8, {:.0} of f32",
            read / 1e9,
            f32 / 1e9
        );
        Self { read, int8, f32 }
    }

    /// Measures a call, and prints what it reaches at its least time.
    pub(crate) fn bench(
        &self,
        group: &mut BenchmarkGroup<WallTime>,
        id: BenchmarkId,
        work: Work,
        mut call: impl FnMut() -> Result<()>,
    ) {
        let least = Cell::new(Duration::MAX);
        group.bench_function(id, |bencher| {
            bencher.iter_custom(|runs| {
                let start = Instant::now();
                for _ in 0..runs {
                    call().expect("ran");
                }
                let time = start.elapsed();
                least.set(least.get().min(time / u32::try_from(runs).unwrap_or(u32::MAX).max(1)));
                time
            });
        });
        // Left out by a filter.
        if least.get() == Duration::MAX {
            return;
        }
        let seconds = least.get().as_secs_f64();
        let beside = |amount: usize, unit: &str, ceiling: Option<f64>| {
            let speed = amount as f64 / seconds;
            let share = ceiling.map_or(String::new(), |most| format!(" ({:.0} %)", 100.0 * speed / most));
            if amount == 0 { String::new() } else { format!("  {:.1} {unit}{share}", speed / 1e9) }
        };
        let most = if work.int8 { self.int8 } else { Some(self.f32) };
        println!(
            "    {:.1} us{}{}",
            seconds * 1e6,
            beside(work.bytes, "GB/s", Some(self.read)),
            beside(work.products, "GMAC/s", most)
        );
    }
}
