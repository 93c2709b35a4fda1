//! The family on NVIDIA cards: few rows take their experts' matrices one by one, many are gathered by expert on the card.

pub(crate) mod route;

use cudarc::driver::sys::CUdeviceptr;

use super::{MoeOps, Routing};
use crate::cuda::sources::Source;
use crate::cuda::{CudaDevice, Pooled};
use crate::matmul::Glu;
use crate::matmul::cuda::{Finish, Operand, Slots};
use crate::{Activation, DType, PackedTensor, Result, Tensor};

pub(crate) static SOURCE: Source =
    Source { name: "moe.cu", code: include_str!("moe.cu"), options: &[], variants: &[&[]] };

/// Bytes of an entry of the list of batches.
const BATCH_BYTES: usize = 16;

/// Rows of the output listed by expert, and cut into batches.
pub(crate) struct Gathered {
    memory: Pooled,
    /// Entries of the list; those left over are empty.
    pub(crate) batches: usize,
}

impl Gathered {
    /// `struct Batch`es.
    pub(crate) fn list(&self) -> CUdeviceptr {
        self.memory.pointer()
    }

    /// Rows of the output, by expert.
    pub(crate) fn order(&self) -> CUdeviceptr {
        self.memory.pointer() + (self.batches * BATCH_BYTES) as CUdeviceptr
    }
}

impl CudaDevice {
    /// Lists the rows of the output by expert, in batches of up to `columns`.
    pub(crate) fn gather(&self, slots: &Slots, columns: usize) -> Result<Gathered> {
        const THREADS: usize = 1024;
        let rows = slots.rows();
        let batches = rows / columns + slots.experts.min(rows);
        let memory = self.temporary(batches * BATCH_BYTES + 4 * rows)?;
        let gathered = Gathered { memory, batches };
        self.launch(&SOURCE, &[], "gather")?
            .grid([1, 1, 1])
            .block(THREADS)
            .shared(3 * 4 * slots.experts)
            .arg(slots.ids)
            .arg(slots.ids.strides()[0])
            .arg(slots.used() as i32)
            .arg(rows as i32)
            .arg(slots.experts as i32)
            .arg(columns as i32)
            .arg(gathered.order())
            .arg(gathered.list())
            .arg(batches as i32)
            .run()?;
        Ok(gathered)
    }
}

impl MoeOps for CudaDevice {
    fn route(&self, logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor) -> Result<()> {
        self.choose_experts(logits, routing, ids, weights)
    }

    fn experts_glu(
        &self,
        x: &Activation,
        ids: &Tensor,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        self.experts_glu_activation(x, ids, gate, up, glu, out).map(drop)
    }

    fn experts_glu_activation(
        &self,
        x: &Activation,
        ids: &Tensor,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<Activation> {
        if !self.multiplies() {
            self.on_host(|host| host.experts_glu(x, ids, gate, up, glu, out))?;
            return Activation::new(out);
        }
        let slots = Slots { ids, share: ids.shape()[1], experts: gate.matrices() };
        if gate.block_type() == up.block_type() {
            return self.glu_in_pieces([gate, up], glu, out, |operands, finish| {
                self.multiply(x, operands, finish, Some(slots))
            });
        }
        self.glu_apart(slots.rows(), gate.rows(), glu, out, |index, out| {
            let operand = Operand { weight: [gate, up][index], bias: None, out };
            self.multiply(x, &[operand], Finish::Store, Some(slots))
        })?;
        Activation::new(out)
    }

    fn experts_combine(
        &self,
        hidden: &Activation,
        ids: &Tensor,
        weights: &Tensor,
        down: &PackedTensor,
        out: &Tensor,
    ) -> Result<()> {
        if !self.multiplies() {
            return self.on_host(|host| host.experts_combine(hidden, ids, weights, down, out));
        }
        const THREADS: usize = 256;
        let slots = Slots { ids, share: 1, experts: down.matrices() };
        let products = out.device().scratch(DType::F32, &[slots.rows(), down.rows()])?;
        self.multiply(
            hidden,
            &[Operand { weight: down, bias: None, out: &products }],
            Finish::Store,
            Some(slots),
        )?;
        self.launch(&SOURCE, &[], "combine")?
            .grid([out.shape()[1].div_ceil(THREADS), out.shape()[0], 1])
            .block(THREADS)
            .arg(&products)
            .rows_of(weights)
            .rows_of(ids)
            .arg(slots.used() as i32)
            .arg(down.matrices() as i32)
            .arg(out.shape()[1] as i32)
            .rows_of(out)
            .run()
    }
}
