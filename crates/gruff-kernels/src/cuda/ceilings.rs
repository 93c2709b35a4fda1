//! What a card does at most: copies of its memory, products in registers.

use cudarc::driver::{result, sys};

use super::driver::Context;
use super::memory::CudaMemory;
use super::sources::Source;
use super::{CudaDevice, Launch};
use crate::{Ceilings, Error, Result};

pub(crate) static CEILINGS: Source =
    Source { name: "ceilings.cu", code: include_str!("ceilings.cu"), options: &[], variants: &[&[]] };

/// Threads of a block and sums of each warp or thread, as in `ceilings.cu`.
const THREADS: usize = 256;
const CHAINS: usize = 8;

/// Blocks of a multiprocessor.
const BLOCKS_EACH: usize = 4;

/// Runs that last so long, in milliseconds, are measured; shorter ones are made twice as long.
const LONG_ENOUGH: f32 = 2.0;

/// Of as many runs the fastest counts.
const RUNS: usize = 5;

/// Bytes of the first copy and the last.
const COPIES: std::ops::RangeInclusive<usize> = 32 << 20..=1 << 30;

/// Rounds of the first run and the last.
const ROUNDS: std::ops::RangeInclusive<usize> = 4..=1 << 20;

/// Two events, given back when dropped.
struct Watch<'a> {
    context: &'a Context,
    events: [sys::CUevent; 2],
}

impl<'a> Watch<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let event = || {
            let kind = sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
            context.call(|| "making an event".into(), || result::event::create(kind))
        };
        let mut watch = Self { context, events: [std::ptr::null_mut(); 2] };
        watch.events[0] = event()?;
        watch.events[1] = event()?;
        Ok(watch)
    }

    fn note(&self, which: usize) -> Result<()> {
        // SAFETY: event and stream live.
        let record = || unsafe { result::event::record(self.events[which], self.context.stream()) };
        self.context.call(|| "noting a time".into(), record)
    }

    /// Milliseconds that the card takes for what `work` puts on the stream.
    fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f32> {
        self.note(0)?;
        work()?;
        self.note(1)?;
        self.context.synchronize()?;
        // SAFETY: both were recorded, and waited for.
        let elapsed = || unsafe { result::event::elapsed(self.events[0], self.events[1]) };
        self.context.call(|| "reading times".into(), elapsed)
    }

    /// Amounts a second, of the fastest run with an amount that takes long enough.
    fn most(
        &self,
        amounts: std::ops::RangeInclusive<usize>,
        work: impl Fn(usize) -> Result<()>,
    ) -> Result<f64> {
        let mut amount = *amounts.start();
        // The first run loads kernels and wakes the card.
        self.time(|| work(amount))?;
        while self.time(|| work(amount))? < LONG_ENOUGH && 2 * amount <= *amounts.end() {
            amount *= 2;
        }
        let mut least = f32::MAX;
        for _ in 0..RUNS {
            least = least.min(self.time(|| work(amount))?);
        }
        Ok(amount as f64 / (f64::from(least) / 1e3).max(1e-9))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        for event in self.events.into_iter().filter(|event| !event.is_null()) {
            // Nothing can be done about a fault here.
            // SAFETY: made in `new`, and waited for.
            let _ = self
                .context
                .call(|| "giving an event back".into(), || unsafe { result::event::destroy(event) });
        }
    }
}

impl CudaDevice {
    /// See [`crate::Device::ceilings`].
    pub(super) fn measure_ceilings(&self) -> Result<Ceilings> {
        let watch = Watch::new(self.context())?;
        // Sums that are not looked at, but might be.
        let blocks = BLOCKS_EACH * self.card().multiprocessors;
        let sums = self.take(4 * blocks * THREADS)?;
        let launch = |kernel: &'static str, rounds: usize| -> Result<()> {
            let launch: Launch = self.launch(&CEILINGS, &[], kernel)?;
            launch.grid([blocks, 1, 1]).block(THREADS).arg(sums.pointer()).arg(rounds as i32).run()
        };
        let warps = blocks * THREADS / 32;
        let of_warps = |kernel, products: usize| -> Result<f64> {
            Ok(watch.most(ROUNDS, |rounds| launch(kernel, rounds))? * (warps * CHAINS * products) as f64)
        };
        let tensor = self.card().capability >= (8, 0);
        let mut bf16 = if tensor { Some(of_warps("products_bf16", 16 * 8 * 16)?) } else { None };
        if self.card().capability == (9, 0)
            // Not on what stands in for such a card.
            && let Ok(together) = of_warps("products_bf16_together", 64 * 128 * 16 / 4)
        {
            bf16 = bf16.map(|apart| apart.max(together));
        }
        Ok(Ceilings {
            copy: self.measure_copy(&watch)?,
            bf16,
            int8: if tensor { Some(of_warps("products_int8", 16 * 8 * 32)?) } else { None },
            f32: of_warps("products_f32", 32)?,
        })
    }

    fn take(&self, bytes: usize) -> Result<CudaMemory> {
        let memory = CudaMemory::take(self.context(), bytes);
        memory.ok_or_else(|| Error::OutOfMemory { device: self.name.clone(), bytes })
    }

    fn measure_copy(&self, watch: &Watch) -> Result<f64> {
        // Half of what is free is left to others.
        let most = self.context().free_bytes().unwrap_or(0) / 4;
        let most = most.clamp(*COPIES.start(), *COPIES.end());
        let [from, to] = [self.take(most)?, self.take(most)?];
        from.clear(most)?;
        let copied = watch.most(*COPIES.start()..=most, |bytes| {
            self.context().call(
                || format!("copying {bytes} bytes"),
                // SAFETY: both have room for the bytes.
                || unsafe {
                    result::memcpy_dtod_async(to.pointer(), from.pointer(), bytes, self.context().stream())
                },
            )
        })?;
        Ok(2.0 * copied)
    }
}
