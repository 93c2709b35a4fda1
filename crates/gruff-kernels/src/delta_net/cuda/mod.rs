//! The family on NVIDIA cards.

use super::{DeltaInputs, DeltaNetOps};
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::{CHUNK, Result, StateLayer, Step, Tensor};

pub(crate) static CONV: Source =
    Source { name: "conv.cu", code: include_str!("conv.cu"), options: &[], variants: &[&[]] };

pub(crate) static DELTA: Source = Source {
    name: "delta.cu",
    code: include_str!("delta.cu"),
    options: &[],
    variants: &[&[("DK", 128), ("DV", 128)], &[("DK", 12), ("DV", 40)]],
};

/// As in the sources.
const CHANNELS: usize = 128;
const COLUMNS: usize = 32;
const THREADS: usize = 128;

impl DeltaNetOps for CudaDevice {
    fn causal_conv(
        &self,
        step: &Step,
        x: &Tensor,
        weight: &Tensor,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()> {
        let tables = self.step(step)?;
        let (channels, ring) = (layer.shape().conv_channels, layer.shape().conv_rows());
        let blocks = channels.div_ceil(CHANNELS);
        let at_once = step.sequences().iter().all(|sequence| sequence.len == 1);
        self.launch(&CONV, &[], "causal_conv")?
            .grid([step.len(), blocks, 1])
            .block(CHANNELS)
            .arg(x)
            .arg(x.strides()[0])
            .arg(weight)
            .arg(layer.conv())
            .arg(ring as i32)
            .arg(out)
            .arg(out.strides()[0])
            .arg(tables.sequences())
            .arg(tables.owners())
            .arg(channels as i32)
            .arg(layer.shape().conv_kernel as i32)
            .arg(i32::from(at_once))
            .run()?;
        if at_once {
            return Ok(());
        }
        self.launch(&CONV, &[], "keep_inputs")?
            .grid([step.sequences().len() * ring, blocks, 1])
            .block(CHANNELS)
            .arg(x)
            .arg(x.strides()[0])
            .arg(layer.conv())
            .arg(ring as i32)
            .arg(tables.sequences())
            .arg(channels as i32)
            .run()
    }

    fn delta_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        dt_bias: &Tensor,
        a_neg: &Tensor,
        decay: &Tensor,
        beta: &Tensor,
    ) -> Result<()> {
        self.launch(&CONV, &[], "delta_gates")?
            .grid([a.len().div_ceil(THREADS), 1, 1])
            .block(THREADS)
            .arg(a)
            .arg(a.strides()[0])
            .arg(b)
            .arg(b.strides()[0])
            .arg(dt_bias)
            .arg(a_neg)
            .arg(decay)
            .arg(decay.strides()[0])
            .arg(beta)
            .arg(beta.strides()[0])
            .arg(a.shape()[0] as i32)
            .arg(a.shape()[1] as i32)
            .run()
    }

    fn gated_delta(&self, step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()> {
        let tables = self.step(step)?;
        let shape = *layer.shape();
        let rows = shape.rows();
        let defines = [("DK", shape.key_dim as i64), ("DV", shape.value_dim as i64)];
        // Rows may be written while other blocks begin, unless they take the place of rows that those read.
        let keep = step.sequences().iter().all(|sequence| sequence.past % CHUNK + sequence.len <= rows);
        let sums = self.temporary(if keep { 0 } else { 4 * step.len() * shape.value_heads })?;
        let padded = shape.key_dim.next_multiple_of(4);
        let shared =
            padded * COLUMNS + CHUNK * (padded + 4) + CHUNK * COLUMNS + 2 * padded + 3 * CHUNK + 8 * COLUMNS;
        let DeltaInputs { queries, keys, values, decay, beta } = *inputs;
        self.launch(&DELTA, &defines, "gated_delta")?
            .grid([step.sequences().len(), shape.value_heads, shape.value_dim.div_ceil(COLUMNS)])
            .block(THREADS)
            .shared(4 * shared)
            .arg(queries)
            .arg(queries.strides()[0])
            .arg(queries.strides()[1])
            .arg(keys)
            .arg(keys.strides()[0])
            .arg(keys.strides()[1])
            .arg(values)
            .arg(values.strides()[0])
            .arg(values.strides()[1])
            .arg(decay)
            .arg(decay.strides()[0])
            .arg(beta)
            .arg(beta.strides()[0])
            .arg(out)
            .arg(out.strides()[0])
            .arg(out.strides()[1])
            .arg(layer.matrix())
            .arg(layer.keys())
            .arg(layer.updates())
            .arg(layer.decays())
            .arg(sums.pointer())
            .arg(tables.sequences())
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(rows as i32)
            .arg(shape.matrices() as i32)
            .arg(i32::from(keep))
            .run()?;
        if keep {
            return Ok(());
        }
        self.launch(&DELTA, &defines, "keep_rows")?
            .grid([step.sequences().len() * rows, shape.value_heads, 1])
            .block(32)
            .arg(keys)
            .arg(keys.strides()[0])
            .arg(keys.strides()[1])
            .arg(layer.keys())
            .arg(sums.pointer())
            .arg(layer.decays())
            .arg(tables.sequences())
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(rows as i32)
            .run()
    }
}
