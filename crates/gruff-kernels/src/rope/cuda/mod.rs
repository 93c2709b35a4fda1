//! The family on NVIDIA cards.

use super::{RopeOps, RopeSpec, RopeStyle};
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::{Result, Step, Tensor};

pub(crate) static SOURCE: Source =
    Source { name: "rope.cu", code: include_str!("rope.cu"), options: &[], variants: &[&[]] };

const THREADS: usize = 256;

impl RopeOps for CudaDevice {
    fn rope_table(&self, step: &Step, spec: &RopeSpec, table: &Tensor) -> Result<()> {
        let half = spec.half();
        let axes: Vec<i32> = (0..half).map(|j| spec.axis(j) as i32).collect();
        let (frequencies, axes) = (self.constant(spec.inv_freq())?, self.constant(&axes)?);
        let step_tables = self.step(step)?;
        let launch = self.launch(&SOURCE, &[], "rope_table")?;
        launch
            .grid([(step.len() * half).div_ceil(THREADS), 1, 1])
            .block(THREADS)
            .arg(step_tables.positions())
            .arg(frequencies)
            .arg(axes)
            .heads_of(table)
            .arg(step.len() as i32)
            .arg(half as i32)
            .arg(spec.attention_factor())
            .run()
    }

    fn rope(&self, x: &Tensor, table: &Tensor, style: RopeStyle) -> Result<()> {
        let (tokens, heads, half) = (x.shape()[0], x.shape()[1], table.shape()[2]);
        let launch = self.launch(&SOURCE, &[], "rope")?;
        launch
            .grid([(tokens * heads * half).div_ceil(THREADS), 1, 1])
            .block(THREADS)
            .heads_of(x)
            .heads_of(table)
            .arg(tokens as i32)
            .arg(heads as i32)
            .arg(half as i32)
            .arg(i32::from(style == RopeStyle::Interleaved))
            .run()
    }
}
