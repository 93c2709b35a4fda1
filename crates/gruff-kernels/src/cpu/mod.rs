//! The CPU device: SIMD kernels chosen at run time, a thread pool that sleeps when idle.

pub(crate) mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
pub mod bandwidth;
pub mod compute;
mod isa;
pub(crate) mod memory;
mod pool;
pub(crate) mod scratch;
pub(crate) mod simd;
pub mod topology;
pub(crate) mod view;

use std::ops::Range;

use crate::buffer::{ForeignBytes, Memory};
use crate::device::Backend;
use crate::{Activations, Result};

use memory::CpuMemory;

pub use isa::Isa;
pub(crate) use pool::Pool;

/// Choices for the CPU device.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads that compute, the calling one included; `None` for the physical cores.
    pub threads: Option<usize>,
    /// How activations enter products with packed weights.
    pub activations: Activations,
    /// The instruction set to use instead of the best one found (tests; `GRUFF_ISA` sets it too).
    pub isa: Option<Isa>,
}

/// See [`crate::Device::cpu`].
pub(crate) struct CpuDevice {
    name: String,
    activations: Activations,
    isa: Isa,
    pool: Pool,
}

impl CpuDevice {
    pub(crate) fn new(options: CpuOptions) -> Result<Self> {
        let isa = Isa::choose(options.isa)?;
        let pool = Pool::new(options.threads)?;
        let threads = pool.threads();
        let name = format!("cpu ({isa}, {threads} thread{})", if threads == 1 { "" } else { "s" });
        let activations = options.activations;
        if activations == Activations::Bf16 {
            return Err(crate::Error::Option {
                what:
                    "the CPU multiplies in int8, not bfloat16; choose Activations::Int8 or Activations::F32"
                        .to_owned(),
            });
        }
        Ok(Self { name, activations, isa, pool })
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Calls `range` with consecutive parts of `0..items` that cover it, on several threads when the work is
    /// worth waking them: `cost` is what one item takes, in values read or written (or as long as that).
    pub(crate) fn share(&self, items: usize, cost: usize, range: impl Fn(Range<usize>) + Sync) {
        /// Work below this is done before a second thread has begun: some 10 microseconds.
        const WORTH_WAKING: usize = 1 << 16;
        /// Pieces a thread, so that one that starts late holds up nobody.
        const PIECES: usize = 4;
        let threads = self.pool.threads();
        if threads == 1 || items < 2 || items.saturating_mul(cost) < WORTH_WAKING {
            return range(0..items);
        }
        let pieces = (threads * PIECES).min(items);
        self.pool.for_each(pieces, |i| range(i * items / pieces..(i + 1) * items / pieces));
    }
}

impl Backend for CpuDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn activations(&self) -> Activations {
        self.activations
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn allocate(&self, bytes: usize) -> Option<Memory> {
        CpuMemory::zeroed(bytes).map(Memory::Cpu)
    }

    fn import(&self, bytes: ForeignBytes) -> Option<Memory> {
        Some(Memory::Cpu(CpuMemory::foreign(bytes)))
    }
}
