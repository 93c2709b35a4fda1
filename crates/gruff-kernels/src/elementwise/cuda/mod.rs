//! The family on NVIDIA cards.

use super::ElementwiseOps;
use crate::cuda::sources::Source;
use crate::cuda::{CudaDevice, Launch, rows, width};
use crate::matmul::Glu;
use crate::{Result, Tensor};

pub(crate) static SOURCE: Source =
    Source { name: "elementwise.cu", code: include_str!("elementwise.cu"), options: &[], variants: &[&[]] };

const THREADS: usize = 256;

impl CudaDevice {
    /// A launch with a thread for each of `values` values.
    fn each(&self, entry: &'static str, values: usize) -> Result<Launch<'_>> {
        Ok(self.launch(&SOURCE, &[], entry)?.grid([values.div_ceil(THREADS), 1, 1]).block(THREADS))
    }
}

/// Tensors of one shape, as one row where none has gaps.
fn flat<const N: usize>(tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let mut views = tensors.map(Clone::clone);
    if tensors.iter().all(|tensor| tensor.is_contiguous()) {
        for view in &mut views {
            *view = view.reshape(&[view.len()])?;
        }
    }
    Ok(views)
}

/// The number that kernels know a gate by.
pub(crate) fn glu_number(glu: Glu) -> i32 {
    match glu {
        Glu::Silu => 0,
        Glu::GeluTanh => 1,
    }
}

impl ElementwiseOps for CudaDevice {
    fn add(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        let [x, y] = &flat([x, y])?;
        let launch = self.each("add", x.len())?;
        launch.arg(x).arg(rows(x)).arg(y).arg(rows(y)).arg(x.len()).arg(width(x)).run()
    }

    fn glu(&self, gate: &Tensor, up: &Tensor, glu: Glu, out: &Tensor) -> Result<()> {
        let [gate, up, out] = &flat([gate, up, out])?;
        self.each("glu", out.len())?
            .arg(gate)
            .arg(rows(gate))
            .arg(up)
            .arg(rows(up))
            .arg(out)
            .arg(rows(out))
            .arg(out.len())
            .arg(width(out))
            .arg(glu_number(glu))
            .run()
    }

    fn sigmoid_mul(&self, x: &Tensor, gate: &Tensor) -> Result<()> {
        let shared = gate.shape() != x.shape();
        self.each("sigmoid_mul", x.len())?
            .arg(x)
            .arg(rows(x))
            .arg(gate)
            .arg(rows(gate))
            .arg(x.len())
            .arg(width(x))
            .arg(i32::from(shared))
            .run()
    }

    fn scale(&self, x: &Tensor, factor: f32) -> Result<()> {
        let [x] = &flat([x])?;
        self.each("scale", x.len())?.arg(x).arg(rows(x)).arg(x.len()).arg(width(x)).arg(factor).run()
    }

    fn softcap(&self, x: &Tensor, cap: f32) -> Result<()> {
        let [x] = &flat([x])?;
        self.each("softcap", x.len())?.arg(x).arg(rows(x)).arg(x.len()).arg(width(x)).arg(cap).run()
    }

    fn gather_rows(&self, x: &Tensor, rows: &[u32], out: &Tensor) -> Result<()> {
        let chosen = self.upload(rows)?;
        self.each("gather_rows", out.len())?
            .rows_of(x)
            .arg(chosen.pointer())
            .rows_of(out)
            .arg(out.len())
            .arg(width(out))
            .run()
    }

    fn copy(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        let [x, out] = &flat([x, out])?;
        let launch = self.each("copy", out.len())?;
        launch.arg(x).arg(rows(x)).arg(out).arg(rows(out)).arg(out.len()).arg(width(out)).run()
    }
}
