//! The family on NVIDIA cards.

use super::NormOps;
use crate::cuda::sources::Source;
use crate::cuda::{CudaDevice, Launch, row_count, rows, width};
use crate::{Result, Tensor};

pub(crate) static SOURCE: Source = Source {
    name: "norm.cu",
    code: include_str!("norm.cu"),
    options: &[],
    variants: &[&[("THREADS", 32)], &[("THREADS", 256)], &[("THREADS", 1024)]],
};

impl CudaDevice {
    /// A norm over the rows of `x`: a warp a row where rows are short, else a block.
    fn norm(&self, entry: &'static str, x: &Tensor) -> Result<Launch<'_>> {
        let threads = match width(x) {
            0..=1024 => 32,
            1025..=2048 => 256,
            _ => 1024,
        };
        let rows_a_block = (256 / threads).max(1);
        let launch = self.launch(&SOURCE, &[("THREADS", threads as i64)], entry)?;
        Ok(launch.grid([row_count(x).div_ceil(rows_a_block), 1, 1]).block(rows_a_block * threads))
    }
}

impl NormOps for CudaDevice {
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
