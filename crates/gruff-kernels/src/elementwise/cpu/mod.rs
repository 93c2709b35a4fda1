//! The family on the CPU: one driver over rows, one formula an operation.

pub(crate) mod map;

use super::ElementwiseOps;
use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output, Shared};
use crate::matmul::Glu;
use crate::{Result, Tensor};

use map::{Add, Cap, GeluMul, Map, Scale, SigmoidMul, SiluMul, map};

/// Values of a row that one piece of work takes at a time: rows as long as a vocabulary are split too.
const SEGMENT: usize = 4096;

impl CpuDevice {
    /// `out = f(inputs)`, value by value; inputs may be `out`.
    fn map<const N: usize, M: Map<N>>(&self, f: M, inputs: [&Tensor; N], out: &Tensor) {
        let inputs = inputs.map(Shared::<f32>::of);
        let out = Output::<f32>::of(out);
        let segments = out.width().div_ceil(SEGMENT);
        self.share(out.rows() * segments, M::COST * out.width().min(SEGMENT), |pieces| {
            for piece in pieces {
                let (row, start) = (piece / segments, piece % segments * SEGMENT);
                let range = start..(start + SEGMENT).min(out.width());
                // SAFETY: within the operation, only this piece touches this segment of the rows, through
                // cells; checked views are the same or disjoint.
                let (inputs, out) = unsafe {
                    (inputs.each_ref().map(|x| &x.cells(row)[range.clone()]), &out.cells(row)[range])
                };
                map(self.isa(), f, inputs, out);
            }
        });
    }
}

impl ElementwiseOps for CpuDevice {
    fn add(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        self.map(Add, [x, y], x);
        Ok(())
    }

    fn glu(&self, gate: &Tensor, up: &Tensor, glu: Glu, out: &Tensor) -> Result<()> {
        match glu {
            Glu::Silu => self.map(SiluMul, [gate, up], out),
            Glu::GeluTanh => self.map(GeluMul, [gate, up], out),
        }
        Ok(())
    }

    fn sigmoid_mul(&self, x: &Tensor, gate: &Tensor) -> Result<()> {
        if gate.shape() == x.shape() {
            self.map(SigmoidMul, [x, gate], x);
            return Ok(());
        }
        let (gate, rows) = (Shared::<f32>::of(gate), Output::<f32>::of(x));
        self.share(rows.rows(), rows.width(), |range| {
            for row in range {
                // SAFETY: within the operation, only this piece touches the row, which the gate is not in.
                let (gate, row) = unsafe { (gate.cells(row)[0].get(), rows.cells(row)) };
                map(self.isa(), Scale(map::sigmoid_of(self.isa(), gate)), [row], row);
            }
        });
        Ok(())
    }

    fn scale(&self, x: &Tensor, factor: f32) -> Result<()> {
        self.map(Scale(factor), [x], x);
        Ok(())
    }

    fn softcap(&self, x: &Tensor, cap: f32) -> Result<()> {
        self.map(Cap(cap), [x], x);
        Ok(())
    }

    fn gather_rows(&self, x: &Tensor, rows: &[u32], out: &Tensor) -> Result<()> {
        // SAFETY: x was checked to be disjoint from the output.
        let x = unsafe { Input::<f32>::of(x) };
        let out = Output::<f32>::of(out);
        self.share(rows.len(), x.width(), |range| {
            for r in range {
                // SAFETY: within the operation, only this piece touches output row r.
                unsafe { out.row(r) }.copy_from_slice(x.row(rows[r] as usize));
            }
        });
        Ok(())
    }

    fn copy(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        // SAFETY: x was checked to be disjoint from the output.
        let x = unsafe { Input::<f32>::of(x) };
        let out = Output::<f32>::of(out);
        self.share(out.rows(), out.width(), |range| {
            for row in range {
                // SAFETY: within the operation, only this piece touches the output row.
                unsafe { out.row(row) }.copy_from_slice(x.row(row));
            }
        });
        Ok(())
    }
}
