//! Where a device's time goes, operation by operation.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::{Result, Tensor};

/// A family of kernels: a folder of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Products with packed weights, the rounding of their inputs included.
    Matmul,
    /// Routing and products of experts.
    Moe,
    /// Attention over pages, and writing them.
    Attention,
    /// Convolution, gates and delta rule.
    DeltaNet,
    /// Norms.
    Norm,
    /// Rotary positions.
    Rope,
    /// Everything value by value.
    Elementwise,
    /// Rows of the embedding table.
    Embedding,
    /// From logits to ids.
    Sampling,
    /// Values between device and host.
    Transfer,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 10] = [
        Family::Matmul,
        Family::Moe,
        Family::Attention,
        Family::DeltaNet,
        Family::Norm,
        Family::Rope,
        Family::Elementwise,
        Family::Embedding,
        Family::Sampling,
        Family::Transfer,
    ];

    /// The name in tables: `delta-net`.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Matmul => "matmul",
            Family::Moe => "moe",
            Family::Attention => "attention",
            Family::DeltaNet => "delta-net",
            Family::Norm => "norm",
            Family::Rope => "rope",
            Family::Elementwise => "elementwise",
            Family::Embedding => "embedding",
            Family::Sampling => "sampling",
            Family::Transfer => "transfer",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What an operation has to do at least: bytes that memory must give or take if caches hold nothing (each operand
/// once), and multiplications of the algorithm that its contract states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) bytes: u64,
    pub(crate) products: u64,
    /// What tells calls of one operation apart: the type of the weights.
    pub(crate) detail: &'static str,
}

impl Work {
    /// Work that reads or writes every one of the tensors once.
    pub(crate) fn through<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Self {
        let bytes = tensors.into_iter().map(|tensor| (tensor.len() * tensor.dtype().bytes()) as u64).sum();
        Self { bytes, ..Self::default() }
    }

    /// The same, with so many further bytes.
    pub(crate) fn bytes(self, bytes: usize) -> Self {
        Self { bytes: self.bytes + bytes as u64, ..self }
    }

    /// The same, with so many further multiplications.
    pub(crate) fn products(self, products: usize) -> Self {
        Self { products: self.products + products as u64, ..self }
    }

    /// The same, told apart by `detail`.
    pub(crate) fn detail(self, detail: &'static str) -> Self {
        Self { detail, ..self }
    }
}

/// What the calls of one operation took together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpProfile {
    /// Its family.
    pub family: Family,
    /// Its name: `linear_add`.
    pub op: &'static str,
    /// The type of its weights; empty without any.
    pub detail: &'static str,
    /// Calls.
    pub calls: u64,
    /// Time from call to return, waiting for other callers' operations aside; on devices with a clock of their own the
    /// time that they took for it, less what launching takes.
    pub time: Duration,
    /// Bytes that had to be read and written: every operand once.
    pub bytes: u64,
    /// Multiplications, each with its addition.
    pub products: u64,
    /// The kernels that the time goes to, the longest first, on devices with a clock of their own; else empty.
    pub kernels: Vec<KernelProfile>,
}

/// What the launches of one kernel took together, for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelProfile {
    /// Its name; empty for copies and what the host does between kernels.
    pub name: &'static str,
    /// Launches.
    pub calls: u64,
    /// Time by the device's clock, less what launching takes.
    pub time: Duration,
}

/// The parts that one operation had by a device's own clock: kernels by name, copies and the host without one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Timed {
    pub(crate) parts: Vec<(&'static str, Duration)>,
}

/// A device's own clock, for operations that it runs behind its callers.
pub(crate) trait Clock {
    /// Begins to keep times, or ends: those that nobody has read are lost.
    fn switch(&self, on: bool) -> Result<()>;

    /// An operation begins; `false` where it does not run.
    fn begin(&self) -> bool;

    /// It has been put on the stream.
    fn end(&self);

    /// Waits, and gives the times of all operations since the last call, in order.
    fn read(&self) -> Result<Vec<Timed>>;

    /// What a kernel that does nothing takes by this clock; times are less by that for each kernel.
    fn empty(&self) -> Duration;
}

/// A device's account of its operations: switched off it costs a load and a branch an operation.
#[derive(Default)]
pub(crate) struct Profile {
    on: AtomicBool,
    /// Times are those of the device's clock.
    by_clock: AtomicBool,
    ops: Mutex<Vec<OpProfile>>,
    /// Operations whose times the device has not told yet, in order.
    waiting: Mutex<Vec<(Family, &'static str, Work)>>,
}

impl Profile {
    /// Begins anew, or ends: what was counted is lost. `by_clock`: times will be told by a [`Clock`].
    pub(crate) fn switch(&self, on: bool, by_clock: bool) {
        lock(&self.ops).clear();
        lock(&self.waiting).clear();
        self.by_clock.store(by_clock, Ordering::Relaxed);
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether operations are counted.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether times are those of the device's own clock.
    pub(crate) fn is_by_clock(&self) -> bool {
        self.by_clock.load(Ordering::Relaxed)
    }

    /// What was counted since the last call, the longest first; `timed` are the times of operations by the device's clock.
    pub(crate) fn take(&self, timed: Vec<Timed>) -> Vec<OpProfile> {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for ((family, op, work), timed) in waiting.into_iter().zip(timed) {
            let time = timed.parts.iter().map(|(_, time)| *time).sum();
            self.count(family, op, time, work, &timed.parts);
        }
        let mut ops = std::mem::take(&mut *lock(&self.ops));
        ops.sort_by_key(|op| std::cmp::Reverse(op.time));
        ops.iter_mut().for_each(|op| op.kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.time)));
        ops
    }

    /// Runs an operation, and counts it when asked to.
    #[inline]
    pub(crate) fn time<T>(
        &self,
        clock: Option<&dyn Clock>,
        family: Family,
        op: &'static str,
        work: impl FnOnce() -> Work,
        operation: impl FnOnce() -> T,
    ) -> T {
        if !self.is_on() {
            return operation();
        }
        if let Some(clock) = clock.filter(|_| self.is_by_clock()) {
            let runs = clock.begin();
            let result = operation();
            if runs {
                clock.end();
                lock(&self.waiting).push((family, op, work()));
            }
            return result;
        }
        let started = Instant::now();
        let result = operation();
        self.count(family, op, started.elapsed(), work(), &[]);
        result
    }

    #[cold]
    fn count(
        &self,
        family: Family,
        op: &'static str,
        time: Duration,
        work: Work,
        parts: &[(&'static str, Duration)],
    ) {
        let mut ops = lock(&self.ops);
        let key = (family, op, work.detail);
        let at = ops.iter().position(|known| (known.family, known.op, known.detail) == key);
        let at = at.unwrap_or_else(|| {
            ops.push(OpProfile {
                family,
                op,
                detail: work.detail,
                calls: 0,
                time: Duration::ZERO,
                bytes: 0,
                products: 0,
                kernels: Vec::new(),
            });
            ops.len() - 1
        });
        let entry = &mut ops[at];
        entry.calls += 1;
        entry.time += time;
        entry.bytes += work.bytes;
        entry.products += work.products;
        for (name, time) in parts {
            match entry.kernels.iter_mut().find(|kernel| kernel.name == *name) {
                Some(kernel) => {
                    kernel.calls += 1;
                    kernel.time += *time;
                }
                None => entry.kernels.push(KernelProfile { name, calls: 1, time: *time }),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use crate::{CpuOptions, Device, Family, elementwise, norm};

    #[test]
    fn operations_are_counted_while_it_is_on() {
        let device = Device::cpu(CpuOptions::default()).unwrap();
        let x = device.tensor_f32(&[1.0; 32], &[4, 8]).unwrap();
        let weight = device.tensor_f32(&[1.0; 8], &[8]).unwrap();
        elementwise::scale(&x, 2.0).unwrap();
        assert_eq!(device.take_profile(), []);
        device.profile(true);
        for _ in 0..3 {
            elementwise::scale(&x, 2.0).unwrap();
        }
        norm::rms_norm(&x, &weight, 1e-6, &x).unwrap();
        let profile = device.take_profile();
        let of = |family| profile.iter().find(|op| op.family == family).unwrap();
        let scale = of(Family::Elementwise);
        assert_eq!((scale.op, scale.calls, scale.bytes), ("scale", 3, 3 * 2 * 32 * 4));
        assert_eq!((of(Family::Norm).op, of(Family::Norm).calls), ("rms_norm", 1));
        assert_eq!(device.take_profile(), []);
        device.profile(false);
        elementwise::scale(&x, 2.0).unwrap();
        assert_eq!(device.take_profile(), []);
    }
}
