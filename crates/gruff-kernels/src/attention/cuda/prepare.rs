//! Queries, keys and values on their way to attention, in one launch (`prepare.cu`).

use super::kv_number;
use crate::attention::Prepare;
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::rope::RopeStyle;
use crate::{KvLayer, Result, Step, Tensor};

pub(crate) static PREPARE: Source = Source {
    name: "prepare.cu",
    code: include_str!("prepare.cu"),
    options: &[],
    variants: &[
        &[("DK", 256), ("DV", 256), ("KV", 1)],
        &[("DK", 128), ("DV", 128), ("KV", 2)],
        &[("DK", 30), ("DV", 44), ("KV", 0)],
    ],
};

/// Heads of a block, as in the source.
const WARPS: usize = 4;

impl CudaDevice {
    pub(super) fn prepare_heads(
        &self,
        step: &Step,
        qkv: [&Tensor; 3],
        prepare: &Prepare,
        layer: &KvLayer,
    ) -> Result<()> {
        let tables = self.step(step)?;
        let [queries, keys, values] = qkv;
        let (heads, kv_heads) = (queries.shape()[1], layer.kv_heads());
        let defines = [
            ("DK", layer.key_dim() as i64),
            ("DV", layer.value_dim() as i64),
            ("KV", kv_number(layer.dtype())),
        ];
        let launch = self
            .launch(&PREPARE, &defines, "prepare")?
            .grid([(step.len() * (heads + 2 * kv_heads)).div_ceil(WARPS), 1, 1])
            .block(32 * WARPS)
            .heads_of(queries)
            .heads_of(keys)
            .heads_of(values)
            .arg(layer.keys())
            .arg(layer.values());
        let launch = match &prepare.norms {
            Some(norms) => launch.arg(norms.queries).arg(norms.keys).arg(norms.eps),
            None => launch.arg(0_u64).arg(0_u64).arg(0.0_f32),
        };
        launch
            .heads_of(prepare.table)
            .arg(prepare.table.shape()[2] as i32)
            .arg(i32::from(prepare.style == RopeStyle::Interleaved))
            .arg(tables.sequences())
            .arg(tables.owners())
            .arg(tables.pages())
            .arg(step.len() as i32)
            .arg(heads as i32)
            .arg(kv_heads as i32)
            .run()
    }
}
