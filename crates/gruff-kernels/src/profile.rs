//! Where a device's time goes, operation by operation.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::Tensor;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpProfile {
    /// Its family.
    pub family: Family,
    /// Its name: `linear_add`.
    pub op: &'static str,
    /// The type of its weights; empty without any.
    pub detail: &'static str,
    /// Calls.
    pub calls: u64,
    /// Time from call to return, waiting for other callers' operations aside.
    pub time: Duration,
    /// Bytes that had to be read and written: every operand once.
    pub bytes: u64,
    /// Multiplications, each with its addition.
    pub products: u64,
}

/// A device's account of its operations: switched off it costs a load and a branch an operation.
#[derive(Default)]
pub(crate) struct Profile {
    on: AtomicBool,
    ops: Mutex<Vec<OpProfile>>,
}

impl Profile {
    /// Begins anew, or ends: what was counted is lost.
    pub(crate) fn switch(&self, on: bool) {
        self.ops().clear();
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether operations are counted.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What was counted since the last call, the longest first.
    pub(crate) fn take(&self) -> Vec<OpProfile> {
        let mut ops = std::mem::take(&mut *self.ops());
        ops.sort_by_key(|op| std::cmp::Reverse(op.time));
        ops
    }

    /// Runs an operation, and counts it when asked to.
    #[inline]
    pub(crate) fn time<T>(
        &self,
        family: Family,
        op: &'static str,
        work: impl FnOnce() -> Work,
        operation: impl FnOnce() -> T,
    ) -> T {
        if !self.on.load(Ordering::Relaxed) {
            return operation();
        }
        let started = Instant::now();
        let result = operation();
        self.count(family, op, started.elapsed(), work());
        result
    }

    #[cold]
    fn count(&self, family: Family, op: &'static str, time: Duration, work: Work) {
        let mut ops = self.ops();
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
            });
            ops.len() - 1
        });
        let entry = &mut ops[at];
        entry.calls += 1;
        entry.time += time;
        entry.bytes += work.bytes;
        entry.products += work.products;
    }

    fn ops(&self) -> MutexGuard<'_, Vec<OpProfile>> {
        self.ops.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
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
        let of = |family| *profile.iter().find(|op| op.family == family).unwrap();
        let scale = of(Family::Elementwise);
        assert_eq!((scale.op, scale.calls, scale.bytes), ("scale", 3, 3 * 2 * 32 * 4));
        assert_eq!((of(Family::Norm).op, of(Family::Norm).calls), ("rms_norm", 1));
        assert_eq!(device.take_profile(), []);
        device.profile(false);
        elementwise::scale(&x, 2.0).unwrap();
        assert_eq!(device.take_profile(), []);
    }
}
