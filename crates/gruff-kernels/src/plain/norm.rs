//! Norms, value by value.

use std::cell::Cell;

use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output, Shared};
use crate::{Result, Tensor};

/// Calls `work` with each row of x and of the output, which may be the same memory.
fn rows(cpu: &CpuDevice, x: &Tensor, out: &Tensor, work: impl Fn(&[Cell<f32>], &[Cell<f32>]) + Sync) {
    let (x, out) = (Shared::<f32>::of(x), Output::<f32>::of(out));
    cpu.share(out.rows(), 2 * out.width(), |range| {
        for row in range {
            // SAFETY: within the operation, only this piece touches these rows, through cells.
            unsafe { work(x.cells(row), out.cells(row)) };
        }
    });
}

/// Sums of short runs, then the sum of these: one running sum of a long row would be less exact than the contract asks for.
fn squares(x: &[Cell<f32>]) -> f32 {
    x.chunks(64).map(|run| run.iter().map(|x| x.get() * x.get()).sum::<f32>()).sum()
}

/// As [`crate::norm::rms_norm`].
pub(super) fn rms_norm(cpu: &CpuDevice, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
    // SAFETY: the weight was checked to be disjoint from the output.
    let weight = unsafe { Input::<f32>::of(weight) }.row(0);
    rows(cpu, x, out, |x, out| {
        let factor = 1.0 / (squares(x) / x.len() as f32 + eps).sqrt();
        for ((x, weight), out) in x.iter().zip(weight).zip(out) {
            out.set(x.get() * factor * weight);
        }
    });
    Ok(())
}

/// As [`crate::norm::l2_norm`].
pub(super) fn l2_norm(cpu: &CpuDevice, x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()> {
    rows(cpu, x, out, |x, out| {
        let factor = scale / (squares(x) + eps).sqrt();
        for (x, out) in x.iter().zip(out) {
            out.set(x.get() * factor);
        }
    });
    Ok(())
}
