//! The family on NVIDIA cards.
//!
//! `norm.cu` has a group of threads a row. What goes to products, of as many rows as prompts have, is normed by `many.cu`, which
//! takes several rows together, with the same sums.

mod many;

use super::NormOps;
use many::Many;

use crate::activation::Form;
use crate::cuda::sources::Source;
use crate::cuda::{CudaDevice, Launch, row_count, rows, width};
use crate::device::Backend;
use crate::matmul::cuda::{groups, pieces_address};
use crate::{Activation, Activations, Result, Tensor, Without};

pub(crate) use many::MANY;

pub(crate) static SOURCE: Source = Source {
    name: "norm.cu",
    code: include_str!("norm.cu"),
    options: &[],
    variants: &[&[("THREADS", 32)], &[("THREADS", 256)], &[("THREADS", 320)], &[("THREADS", 1024)]],
};

impl CudaDevice {
    /// A norm over the rows of `x`: a warp a row where rows are short, else a block.
    fn norm(&self, entry: &'static str, x: &Tensor) -> Result<Launch<'_>> {
        let threads = if width(x) <= WARP_WIDTH { 32 } else { block_threads(width(x)) };
        let rows_a_block = (256 / threads).max(1);
        let launch = self.launch(&SOURCE, &[("THREADS", threads as i64)], entry)?;
        Ok(launch.grid([row_count(x).div_ceil(rows_a_block), 1, 1]).block(rows_a_block * threads))
    }
}

/// The widest rows that a warp takes: heads of attention among them, which `prepare.cu` norms by the same sums.
pub(crate) const WARP_WIDTH: usize = 512;

/// Threads of a block that takes a row: one for four values.
fn block_threads(width: usize) -> usize {
    (groups(width) * 64).clamp(256, 1024)
}

impl CudaDevice {
    /// Whether norms may be part of other kernels.
    pub(crate) fn fuses_norms(&self) -> bool {
        ![Without::Norm, Without::Fusion].into_iter().any(|family| self.lacks(family))
    }

    /// Whether what makes `out` leaves it in pieces for products besides.
    pub(crate) fn leaves_pieces(&self, out: &Tensor) -> bool {
        out.shape().len() == 2
            && width(out).is_multiple_of(16)
            && out.shape()[0] != 0
            && self.multiplies()
            && Backend::activations(self) == Activations::Bf16
    }

    /// Completes a launch that begins with a norm's own operands.
    fn in_pieces(&self, launch: Launch, eps: f32, out: &Tensor) -> Result<Activation> {
        let buffer = self.pieces_buffer(out)?;
        let address = pieces_address(&buffer, out.shape()[0]);
        launch.arg(eps).arg(groups(width(out)) as i32).arg(address).run()?;
        Activation::with_form(out, Form::Pieces, buffer)
    }
}

impl NormOps for CudaDevice {
    fn gated_rms_norm_activation(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<Activation> {
        let heads = x.shape()[1];
        if width(x) > WARP_WIDTH || !width(x).is_multiple_of(4) || !self.leaves_pieces(out) {
            self.gated_rms_norm(x, weight, gate, eps, &out.split_last(heads)?)?;
            return Activation::new(out);
        }
        if let Some(many) = Many::heads(self, x) {
            return self.gated_rms_norm_many(many, x, weight, gate, eps, out);
        }
        let launch = self
            .launch(&SOURCE, &[("THREADS", 32)], "gated_rms_norm_pieces")?
            .grid([out.shape()[0], 1, 1])
            .block(block_threads(width(out)))
            .arg(x)
            .arg(rows(x))
            .arg(weight)
            .arg(gate)
            .arg(rows(gate))
            .rows_of(out)
            .arg(heads as i32)
            .arg(width(x) as i32);
        self.in_pieces(launch, eps, out)
    }

    fn rms_norm_activation(&self, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<Activation> {
        if width(out) <= WARP_WIDTH || !self.leaves_pieces(out) {
            self.rms_norm(x, weight, eps, out)?;
            return Activation::new(out);
        }
        if let Some(many) = Many::rows(self, out) {
            let launch =
                self.norm_many(many, "rms_norm_many", many.threads)?.rows_of(x).arg(weight).rows_of(out);
            return self.in_pieces(launch.arg(out.shape()[0] as i32).arg(width(out) as i32), eps, out);
        }
        let launch = self.norm("rms_norm_pieces", x)?.arg(x).arg(rows(x)).arg(weight);
        self.in_pieces(launch.arg(out).arg(rows(out)).arg(width(out) as i32), eps, out)
    }

    fn add_rms_norm_activation(
        &self,
        residual: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<Activation> {
        if width(out) <= WARP_WIDTH || !self.leaves_pieces(out) {
            self.add_rms_norm(residual, delta, weight, eps, out)?;
            return Activation::new(out);
        }
        if let Some(many) = Many::rows(self, out) {
            let launch =
                self.norm_many(many, "add_rms_norm_many", many.threads)?.rows_of(residual).rows_of(delta);
            let launch = launch.arg(weight).rows_of(out).arg(out.shape()[0] as i32);
            return self.in_pieces(launch.arg(width(out) as i32), eps, out);
        }
        let launch = self.norm("add_rms_norm_pieces", residual)?.arg(residual).arg(rows(residual));
        let launch = launch.arg(delta).arg(rows(delta)).arg(weight);
        self.in_pieces(launch.arg(out).arg(rows(out)).arg(width(out) as i32), eps, out)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        self.norm("rms_norm", x)?
            .arg(x)
            .arg(rows(x))
            .arg(weight)
            .arg(out)
            .arg(rows(out))
            .arg(row_count(x))
            .arg(width(x) as i32)
            .arg(eps)
            .run()
    }

    fn add_rms_norm(
        &self,
        residual: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        self.norm("add_rms_norm", residual)?
            .arg(residual)
            .arg(rows(residual))
            .arg(delta)
            .arg(rows(delta))
            .arg(weight)
            .arg(out)
            .arg(rows(out))
            .arg(row_count(residual))
            .arg(width(residual) as i32)
            .arg(eps)
            .run()
    }

    fn gated_rms_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        self.norm("gated_rms_norm", x)?
            .arg(x)
            .arg(rows(x))
            .arg(weight)
            .arg(gate)
            .arg(rows(gate))
            .arg(out)
            .arg(rows(out))
            .arg(row_count(x))
            .arg(width(x) as i32)
            .arg(eps)
            .run()
    }

    fn l2_norm(&self, x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()> {
        self.norm("l2_norm", x)?
            .arg(x)
            .arg(rows(x))
            .arg(out)
            .arg(rows(out))
            .arg(row_count(x))
            .arg(width(x) as i32)
            .arg(eps)
            .arg(scale)
            .run()
    }
}
