//! NVIDIA cards, through the driver and kernels in CUDA C++ that NVRTC compiles for the card found.
//!
//! Driver and compiler are looked for at run time: gruff builds and runs without either. Sources stand beside their
//! families' other kernels (`FAMILY/cuda/*.cu`); `sources.rs` lists them. Machine code is kept on disk.
//!
//! Everything runs on one stream, in the order of the calls; only copies to the host wait. Decode steps are recorded as
//! graphs (`record.rs`), and kernels can be compiled ahead by a rehearsal of what needs them (`phase.rs`).

mod aside;
mod cache;
mod ceilings;
mod clock;
mod driver;
mod early;
mod error;
mod kernels;
mod later;
mod launch;
mod libraries;
mod memory;
#[cfg(feature = "nccl")]
pub(crate) mod nccl;
mod nvrtc;
mod peer;
pub(crate) mod phase;
mod pinned;
mod record;
pub(crate) mod sources;
mod staging;
pub(crate) mod step;
pub(crate) mod strips;
mod uploads;

use std::collections::HashMap;
use std::iter;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use cudarc::driver::sys::CUdeviceptr;

use crate::buffer::{ForeignBytes, Memory, Reuse};
use crate::device::{Backend, Spare, take_or_make_room};
use crate::later::Coming;
use crate::profile::Clock;
use crate::reference::ReferenceDevice;
use crate::replay::Recording;
use crate::{Activations, Ceilings, Error, Result, Step, Tensor, Without};

use cache::KernelCache;
use driver::Context;
use early::Early;
use kernels::Kernels;
use later::Landings;
use memory::Pool;
use phase::Phase;
use sources::{Defines, Source};
use strips::Strips;
use uploads::Uploads;

pub use driver::{Card, cards};
pub use error::CudaError;
pub use nvrtc::Nvrtc;
pub use sources::{Compiled, compile_all};

pub(crate) use launch::Launch;
pub(crate) use memory::{CudaMemory, Pooled};

/// Choices for a CUDA device.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// How activations enter products with packed weights.
    pub activations: Activations,
    /// Where compiled kernels are kept; `None` for `GRUFF_KERNEL_CACHE` or the user's cache folder, an empty path for
    /// nowhere.
    pub kernel_cache: Option<PathBuf>,
    /// Whether decode steps are recorded as CUDA graphs and replayed. Results are the same.
    pub graphs: bool,
    /// Whether kernels begin before the one in front of them has ended, which they wait for (programmatic dependent
    /// launch). Results are the same.
    pub early_launch: bool,
    /// Kernels to leave out, to see what they contribute.
    pub without: Vec<Without>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            activations: Activations::Bf16,
            kernel_cache: None,
            graphs: true,
            early_launch: true,
            without: Vec::new(),
        }
    }
}

/// The most groups of blocks that [`CudaDevice::arrivals`] counts: more than any card has multiprocessors, twice.
pub(crate) const ARRIVALS: usize = 1024;

/// See [`crate::Device::cuda`].
pub(crate) struct CudaDevice {
    name: String,
    activations: Activations,
    fallback: ReferenceDevice,
    steps: step::Steps,
    books: crate::matmul::cuda::Books,
    pool: Arc<Pool>,
    /// Memory of operations that were recorded.
    recorded: Arc<Pool>,
    constants: Mutex<HashMap<Vec<u8>, Arc<Pooled>>>,
    arrivals: Mutex<Option<Arc<Pooled>>>,
    landings: Arc<Landings>,
    uploads: Uploads,
    graphs: bool,
    early: Early,
    without: Vec<Without>,
    /// What its device keeps.
    spare: OnceLock<Weak<dyn Spare>>,
    kernels: Kernels,
    context: Arc<Context>,
}

impl CudaDevice {
    pub(crate) fn new(ordinal: usize, options: CudaOptions) -> Result<Self> {
        if options.activations == Activations::Int8 {
            return Err(Error::Option {
                what: "cards multiply in bfloat16, not int8; choose Activations::Bf16 or Activations::F32"
                    .to_owned(),
            });
        }
        let context = Context::open(ordinal)?;
        let kernels = Kernels::new(&context, KernelCache::new(options.kernel_cache));
        kernels.check_compiler()?;
        let card = &context.card;
        let (major, minor) = card.capability;
        let mut name = format!("cuda:{ordinal} ({}, compute {major}.{minor})", card.name);
        let without: Vec<&str> = options.without.iter().map(|without| without.name()).collect();
        if !without.is_empty() {
            name += &format!(" without {}", without.join(", "));
        }
        // In the place of these there are copies from and to the host, which no recording takes.
        let host = [Without::Matmul, Without::Norm, Without::Moe];
        let graphs = options.graphs && !options.without.iter().any(|without| host.contains(without));
        Ok(Self {
            name,
            activations: options.activations,
            fallback: ReferenceDevice::new(options.activations),
            steps: step::Steps::default(),
            books: crate::matmul::cuda::Books::default(),
            pool: Arc::default(),
            recorded: Arc::default(),
            constants: Mutex::default(),
            arrivals: Mutex::default(),
            landings: Arc::default(),
            uploads: Uploads::default(),
            graphs,
            early: Early::new(options.early_launch, card),
            without: options.without,
            spare: OnceLock::new(),
            kernels,
            context,
        })
    }

    /// Computes with the operations in plain Rust, on operands copied to the host and back: for what has no kernel. A
    /// rehearsal computes nothing.
    pub(crate) fn on_host(&self, compute: impl FnOnce(&ReferenceDevice) -> Result<()>) -> Result<()> {
        if self.context.phase() == Phase::Rehearsing { Ok(()) } else { compute(&self.fallback) }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn card(&self) -> &Card {
        &self.context.card
    }

    /// Bytes of shared memory to ask for, of a block that needs so many, in a launch of so many blocks: with as many, no multiprocessor
    /// takes more of them than its share. Where kernels begin early, blocks come to the multiprocessors that are the first to have room;
    /// half of the others would get none.
    pub(crate) fn spread(&self, blocks: usize, bytes: usize) -> usize {
        if !self.early.is_on() {
            return bytes;
        }
        let card = self.card();
        bytes.max(more_than_a_share(card.shared_bytes, blocks.div_ceil(card.multiprocessors.max(1))))
    }

    /// Code books on the card.
    pub(crate) fn books(&self) -> &crate::matmul::cuda::Books {
        &self.books
    }

    fn steps(&self) -> &step::Steps {
        &self.steps
    }

    /// Begins a launch of the kernel `entry` of a source, compiled with these constants.
    pub(crate) fn launch(
        &self,
        source: &'static Source,
        defines: &Defines,
        entry: &'static str,
    ) -> Result<Launch<'_>> {
        Ok(Launch::new(self, self.kernels.get(source, defines, entry)?))
    }

    /// Memory for intermediate results of one operation, of undefined content.
    pub(crate) fn temporary(&self, bytes: usize) -> Result<Pooled> {
        let pool = if self.context.phase() == Phase::Recording { &self.recorded } else { &self.pool };
        self.take_from(pool, bytes)
    }

    /// Bytes of memory that are kept for operations which take so many beside their operands.
    pub(crate) fn temporary_bytes(&self, bytes: usize) -> usize {
        if bytes == 0 { 0 } else { memory::pooled_bytes(bytes).unwrap_or(bytes) }
    }

    fn take_from(&self, pool: &Arc<Pool>, bytes: usize) -> Result<Pooled> {
        let take = || pool.take(&self.context, bytes);
        let memory = match self.spare.get().and_then(Weak::upgrade) {
            Some(spare) => take_or_make_room(&*spare, take),
            None => take(),
        };
        memory.ok_or_else(|| Error::OutOfMemory { device: self.name.clone(), bytes })
    }

    /// Values copied to the card, for kernels that are launched while the handle lives. They cannot be part of a
    /// recording, whose tables are those of its steps.
    pub(crate) fn upload<T: bytemuck::NoUninit>(&self, values: &[T]) -> Result<Pooled> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let memory = self.temporary(bytes.len())?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// Counters, u32, by which the blocks of a kernel find out which is the last of its group to arrive: zeros before and
    /// after each kernel (`atomicInc`), at most [`ARRIVALS`] of them.
    pub(crate) fn arrivals(&self, count: usize) -> Result<CUdeviceptr> {
        let bytes = 4 * ARRIVALS;
        if count > ARRIVALS {
            return Err(Error::Shape {
                op: "arrivals",
                what: format!("{count} groups of blocks, at most {ARRIVALS}"),
            });
        }
        let mut arrivals = self.arrivals.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = &*arrivals {
            return Ok(known.pointer());
        }
        let memory = Arc::new(self.take_from(&self.pool, bytes)?);
        memory.place(0, &vec![0; bytes])?;
        let pointer = memory.pointer();
        if self.context.phase() != Phase::Rehearsing {
            *arrivals = Some(memory);
        }
        Ok(pointer)
    }

    /// Values copied to the card when they are first asked for, and kept: for what a model's sizes and weights say.
    pub(crate) fn constant<T: bytemuck::NoUninit>(&self, values: &[T]) -> Result<CUdeviceptr> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut constants = self.constants.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = constants.get(bytes) {
            return Ok(known.pointer());
        }
        // Never from what recordings write to at each replay.
        let memory = self.take_from(&self.pool, bytes.len())?;
        memory.place(0, bytes)?;
        let pointer = memory.pointer();
        if self.context.phase() != Phase::Rehearsing {
            constants.insert(bytes.to_vec(), Arc::new(memory));
        }
        Ok(pointer)
    }
}

/// The address of a tensor's first value.
pub(crate) fn pointer(tensor: &Tensor) -> CUdeviceptr {
    tensor.buffer().cuda().pointer() + tensor.offset() as CUdeviceptr
}

/// Lengths and strides of a tensor's outer dimensions, as `struct Rows` in `common.cuh` has them; rows are all but the
/// innermost dimension.
pub(crate) fn rows(tensor: &Tensor) -> [u64; 5] {
    let (shape, strides) = (tensor.shape(), tensor.strides());
    let outer = shape.len() - 1;
    let (mut lengths, mut steps) = ([1; 3], [0; 3]);
    for axis in 0..outer {
        lengths[3 - outer + axis] = shape[axis];
        steps[3 - outer + axis] = strides[axis];
    }
    [lengths[1], lengths[2], steps[0], steps[1], steps[2]].map(|number| number as u64)
}

/// How many rows a tensor has: the product of all but its innermost dimension.
pub(crate) fn row_count(tensor: &Tensor) -> usize {
    tensor.shape()[..tensor.shape().len() - 1].iter().product()
}

/// The innermost dimension.
pub(crate) fn width(tensor: &Tensor) -> usize {
    tensor.shape()[tensor.shape().len() - 1]
}

impl Backend for CudaDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn activations(&self) -> Activations {
        self.activations
    }

    fn free_bytes(&self) -> Option<usize> {
        self.context.free_bytes()
    }

    fn lost(&self) -> Option<&str> {
        self.context.lost()
    }

    fn finish(&self) {
        // A fault shows in the next operation.
        let _ = self.context.synchronize();
    }

    fn clock(&self) -> Option<&dyn Clock> {
        Some(self)
    }

    fn ceilings(&self) -> Option<Result<Ceilings>> {
        Some(self.measure_ceilings())
    }

    fn allocate(&self, bytes: usize) -> Option<Memory> {
        CudaMemory::zeroed(&self.context, bytes).map(Memory::Cuda)
    }

    fn allocate_undefined(&self, bytes: usize) -> Option<Memory> {
        CudaMemory::take(&self.context, bytes).map(Memory::Cuda)
    }

    fn part(&self, address: u64, bytes: usize) -> Option<Memory> {
        Some(Memory::Cuda(CudaMemory::part(&self.context, address, bytes)))
    }

    fn attach(&self, spare: Weak<dyn Spare>) {
        // Once: a device has one backend.
        let _ = self.spare.set(spare);
    }

    fn forget_temporaries(&self) {
        self.pool.forget();
    }

    fn forget_recordings(&self) {
        self.recorded.forget();
    }

    fn scratch_reuse(&self) -> Reuse {
        match self.context.phase() {
            Phase::Running => Reuse::Scratch,
            Phase::Recording => Reuse::Recorded,
            Phase::Rehearsing => Reuse::Rehearsed,
        }
    }

    fn runs_behind(&self) -> bool {
        true
    }

    /// Sixteen for each multiprocessor: tiles of 128 rows and columns occupy an H200's 132 then, whatever the matrix.
    fn tokens_of_a_step(&self) -> usize {
        (16 * self.card().multiprocessors).next_power_of_two().clamp(512, 2048)
    }

    fn as_cuda(&self) -> Option<&CudaDevice> {
        Some(self)
    }

    fn copy_from_peer(&self, from: &Tensor, to: &Tensor) -> Option<Result<()>> {
        peer::copy(&self.context, from, to)
    }

    fn copy_later(&self, tensor: &Tensor) -> Result<Option<Box<dyn Coming<i32>>>> {
        self.landings.copy(&self.context, pointer(tensor), tensor.len()).map(Some)
    }

    fn copy_aside(&self, tensor: &Tensor) -> Result<Option<Box<dyn Coming<f32>>>> {
        aside::copy(&self.context, tensor)
    }

    fn records(&self) -> bool {
        self.graphs && self.context.phase() == Phase::Running
    }

    fn record(
        &self,
        others: &[&dyn Backend],
        step: &Step,
        pass: &mut dyn FnMut(),
    ) -> Result<Box<dyn Recording>> {
        let others = others.iter().filter_map(|other| other.as_cuda());
        record::record(&iter::once(self).chain(others).collect::<Vec<_>>(), step, pass)
    }

    fn lacks(&self, what: Without) -> bool {
        self.without.contains(&what)
    }

    fn plainly(&self, compute: &mut dyn FnMut(&ReferenceDevice) -> Result<()>) -> Result<()> {
        self.on_host(compute)
    }

    fn loaded_kernels(&self) -> usize {
        self.kernels.count()
    }

    fn prepare(&self, pass: &mut dyn FnMut()) -> Option<Result<usize>> {
        // Its weights are there.
        self.uploads.forget();
        let guard = phase::Guard::begin(&[&self.context], Phase::Rehearsing)?;
        pass();
        let needs = phase::needs();
        drop(guard);
        Some(self.kernels.prepare(&needs))
    }

    fn import(&self, bytes: ForeignBytes) -> Option<Memory> {
        let bytes = (*bytes).as_ref();
        let memory = CudaMemory::take(&self.context, bytes.len())?;
        self.uploads.fill(&self.context, &memory, bytes).ok()?;
        Some(Memory::Cuda(memory))
    }

    fn lays_out(&self) -> bool {
        true
    }

    fn bytes_behind(&self) -> usize {
        memory::READ_BEHIND
    }

    fn import_strips(&self, packed: &[u8], strips: &Strips, rows: usize, bytes: usize) -> Option<Memory> {
        let memory = CudaMemory::take(&self.context, bytes)?;
        self.uploads.lay_out(&self.context, &memory, packed, strips, rows).ok()?;
        Some(Memory::Cuda(memory))
    }
}

/// Shared memory of a block, where a block may have `most` bytes: as little as lets a multiprocessor hold `share` blocks and no more.
fn more_than_a_share(most: usize, share: usize) -> usize {
    // What a multiprocessor takes for itself of each block, and has more than one may have.
    const OWN: usize = 1 << 10;
    ((most + OWN) / (share + 1) + 1).saturating_sub(OWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn a_multiprocessor_holds_its_share_of_blocks_and_no_more() {
        // Cards of 9.0, 8.0, and 8.6, 8.9 and 12.0; memory is given in pieces of 128 bytes.
        for most in [227 << 10, 163 << 10, 99 << 10] {
            for share in 1..=16 {
                let bytes = more_than_a_share(most, share);
                assert!(bytes <= most);
                assert_eq!((most + 1024) / (bytes.next_multiple_of(128) + 1024), share, "{most} {share}");
            }
        }
    }

    #[test]
    fn a_card_that_is_not_there_is_named_or_the_driver_missed() {
        let error = Device::cuda(999, CudaOptions::default()).unwrap_err();
        assert!(matches!(error, Error::Cuda(_)), "{error:?}");
        let words = error.to_string();
        assert!(words.contains("no device cuda:999") || words.contains("driver"), "{words}");
    }

    #[test]
    fn sources_have_names_of_their_own_and_variants() {
        let mut names: Vec<&str> = sources::SOURCES.iter().map(|source| source.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), sources::SOURCES.len());
        assert!(sources::SOURCES.iter().all(|source| !source.variants.is_empty()));
    }

    #[test]
    fn instructions_are_named_in_one_header() {
        let codes = sources::SOURCES.iter().map(|source| (source.name, source.code));
        for (name, code) in codes.chain(sources::HEADERS.iter().copied()) {
            let names = code.contains("asm(") || code.contains("asm volatile");
            assert_eq!(names, name == "ptx.cuh", "{name}");
        }
    }

    #[test]
    fn instructions_have_a_twin_of_the_same_head_for_the_emulator() {
        const TWIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/emulator/device/ptx.cuh");
        let heads = |code: &str, begin: &str| -> Vec<String> {
            let lines = code.lines().map(|line| line.trim_start_matches("template <int N>").trim_start());
            let heads = lines.filter_map(|line| line.strip_prefix(begin)?.split_once('{'));
            heads.map(|(head, _)| head.trim_end().to_owned()).collect()
        };
        // It is not part of the package.
        let Ok(twin) = std::fs::read_to_string(TWIN) else { return };
        let twins = heads(&twin, "static inline ");
        let heads = heads(include_str!("ptx.cuh"), "static __device__ __forceinline__ ");
        assert!(heads.len() > 15, "{heads:?}");
        for head in heads {
            assert!(twins.contains(&head), "{TWIN} has no {head}");
        }
    }
}
