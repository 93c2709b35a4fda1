//! Rotations in f64.

use super::{RopeOps, RopeSpec, RopeStyle};
use crate::reference::{ReferenceDevice, load, store};
use crate::{Result, Step, Tensor};

impl RopeOps for ReferenceDevice {
    fn rope_table(&self, step: &Step, spec: &RopeSpec, table: &Tensor) -> Result<()> {
        let mut values = Vec::with_capacity(table.len());
        for t in 0..step.len() {
            let angle = |j: usize| f64::from(step.positions()[spec.axis(j)][t]) * spec.inv_freq()[j];
            values.extend((0..spec.half()).map(|j| angle(j).cos() * spec.attention_factor()));
            values.extend((0..spec.half()).map(|j| angle(j).sin() * spec.attention_factor()));
        }
        store(table, &values)
    }

    fn rope(&self, x: &Tensor, table: &Tensor, style: RopeStyle) -> Result<()> {
        let (heads, width, half) = (x.shape()[1], x.shape()[2], table.shape()[2]);
        let mut values = load(x)?;
        let table = load(table)?;
        for (row, head) in values.chunks_exact_mut(width).enumerate() {
            let (cos, sin) = table[row / heads * 2 * half..][..2 * half].split_at(half);
            for j in 0..half {
                let (a, b) = match style {
                    RopeStyle::NeoX => (j, j + half),
                    RopeStyle::Interleaved => (2 * j, 2 * j + 1),
                };
                let (x0, x1) = (head[a], head[b]);
                head[a] = x0 * cos[j] - x1 * sin[j];
                head[b] = x0 * sin[j] + x1 * cos[j];
            }
        }
        store(x, &values)
    }
}
