//! The family on the CPU.

mod rotate;

use super::{RopeOps, RopeSpec, RopeStyle};
use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output};
use crate::{Result, Step, Tensor};

use rotate::{rotate_halves, rotate_pairs};

/// What a sine and a cosine in f64 take, compared to reading a value.
const SINE_COST: usize = 128;

impl RopeOps for CpuDevice {
    fn rope_table(&self, step: &Step, spec: &RopeSpec, table: &Tensor) -> Result<()> {
        let table = Output::<f32>::of(table);
        self.share(step.len(), SINE_COST * spec.half(), |range| {
            for t in range {
                // SAFETY: within the operation, only this piece touches the rows of token t.
                let (cosines, sines) = unsafe { (table.row(2 * t), table.row(2 * t + 1)) };
                for (j, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
                    let angle = f64::from(step.positions()[spec.axis(j)][t]) * spec.inv_freq()[j];
                    let (sin, cos) = angle.sin_cos();
                    *cosine = (cos * spec.attention_factor()) as f32;
                    *sine = (sin * spec.attention_factor()) as f32;
                }
            }
        });
        Ok(())
    }

    fn rope(&self, x: &Tensor, table: &Tensor, style: RopeStyle) -> Result<()> {
        let heads = x.shape()[1];
        // SAFETY: the table was checked to be disjoint from x.
        let table = unsafe { Input::<f32>::of(table) };
        let x = Output::<f32>::of(x);
        self.share(x.rows(), 2 * table.width(), |range| {
            for row in range {
                let t = row / heads;
                let (cosines, sines) = (table.row(2 * t), table.row(2 * t + 1));
                // SAFETY: within the operation, only this piece touches the row.
                let head = unsafe { x.row(row) };
                match style {
                    RopeStyle::NeoX => rotate_halves(self.isa(), head, cosines, sines),
                    RopeStyle::Interleaved => rotate_pairs(self.isa(), head, cosines, sines),
                }
            }
        });
        Ok(())
    }
}
