//! The family on NVIDIA cards.
//!
//! Weights lie in strips (`cuda/strips`), packed, and are multiplied in bfloat16 on tensor cores. Few columns go from packed bytes to
//! the product in registers (`matvec.cu`, and `batch.cu` where warps share columns), many through tiles in shared memory
//! (`matmul.cu`); all add up in one order, so that a result has the same bits in any batch. Activations that are not to be rounded
//! are multiplied in f32 by `matvec.cu`, plain integers by `scalar.cu`. Plain floats go to tensor cores in two terms,
//! which loses nothing that the contract asks for (`terms.cuh`), few columns (`float_few.cu`) in the same order as many
//! (`float_many.cu`); with `--dtype f32` they take `scalar.cu`, too.

mod books;
mod few;
mod floats;
mod input;
mod launch;
mod many;
mod operand;
mod sources;

use gruff_blocks::BlockType;

use super::{Glu, MatmulKernel, MatmulOps, Projection};
use crate::activation::Form;
use crate::cuda::CudaDevice;
use crate::device::Backend;
use crate::elementwise::ElementwiseOps;
use crate::{Activation, Activations, DType, PackedTensor, Result, Tensor};

pub(crate) use books::Books;
pub(crate) use few::vector_of_each_type;
use input::GROUP;
pub(crate) use input::{groups, pieces_address};
pub(crate) use launch::Slots;
pub(crate) use operand::{Finish, Operand};
pub(crate) use sources::{BATCH, FLOAT_FEW, FLOAT_MANY, MATMUL, MATVEC, PIECES, SCALAR, TERMS};

/// The lowest compute capability that the kernels of packed products are written for: asynchronous copies, bfloat16 on tensor
/// cores.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// Matrices that one launch takes (`MATRICES` in `product.cuh`).
pub(crate) const MATRICES: usize = 4;

impl CudaDevice {
    /// Whether the card has what the kernels need.
    pub(crate) fn multiplies(&self) -> bool {
        self.card().capability >= LEAST_CAPABILITY
    }

    /// Whether activations enter products with this type unrounded.
    pub(crate) fn exact(&self, block_type: BlockType) -> bool {
        block_type.is_scalar() || Backend::activations(self) == Activations::F32
    }

    /// A gated unit of two matrices of a type, which leaves its result in pieces for the product behind it where it can.
    pub(crate) fn glu_in_pieces(
        &self,
        [gate, up]: [&PackedTensor; 2],
        glu: Glu,
        out: &Tensor,
        multiply: impl Fn(&[Operand], Finish) -> Result<()>,
    ) -> Result<Activation> {
        let operands = [gate, up].map(|weight| Operand { weight, bias: None, out });
        // Nobody would complete the last group.
        let whole = out.shape()[1].is_multiple_of(GROUP) && !out.is_empty();
        if self.exact(gate.block_type()) || !whole || gate.cols() == 0 {
            multiply(&operands, Finish::Glu(glu, 0))?;
            return Activation::new(out);
        }
        let buffer = self.pieces_buffer(out)?;
        multiply(&operands, Finish::Glu(glu, pieces_address(&buffer, out.shape()[0])))?;
        Activation::with_form(out, Form::Pieces, buffer)
    }

    /// Gate and up of one gated unit where one launch cannot take both.
    pub(crate) fn glu_apart(
        &self,
        rows: usize,
        width: usize,
        glu: Glu,
        out: &Tensor,
        product: impl Fn(usize, &Tensor) -> Result<()>,
    ) -> Result<()> {
        let both = [0, 1].map(|_| out.device().scratch(DType::F32, &[rows, width]));
        let [gate, up] = both;
        let (gate, up) = (gate?, up?);
        product(0, &gate)?;
        product(1, &up)?;
        self.glu(&gate, &up, glu, out)
    }
}

impl MatmulOps for CudaDevice {
    fn matmul_kernel(&self, block_type: BlockType) -> MatmulKernel {
        if !self.multiplies() {
            return MatmulKernel { name: "plain rust on the host", fast: false };
        }
        match (block_type.is_scalar(), self.exact(block_type)) {
            (true, _) if self.in_terms(block_type) => MatmulKernel { name: "cuda two terms", fast: true },
            (true, _) => MatmulKernel { name: "cuda f32", fast: true },
            (false, true) => MatmulKernel { name: "cuda f32 x packed", fast: true },
            (false, false) => MatmulKernel { name: "cuda bf16", fast: true },
        }
    }

    fn product_bytes(&self, block_type: BlockType, shape: [usize; 2], columns: usize) -> usize {
        if !self.multiplies() || self.exact(block_type) {
            return 0;
        }
        self.temporary_bytes(self.shared_sums(shape, columns))
    }

    fn linear_many(&self, x: &Activation, projections: &[Projection]) -> Result<()> {
        if !self.multiplies() {
            return self.on_host(|host| host.linear_many(x, projections));
        }
        let mut rest: Vec<&Projection> = projections.iter().collect();
        while let Some(first) = rest.first() {
            let kind = first.weight.block_type();
            let (mut taken, mut left) = (Vec::new(), Vec::new());
            for projection in rest {
                let fits = projection.weight.block_type() == kind && taken.len() < MATRICES;
                if fits { taken.push(projection) } else { left.push(projection) }
            }
            let operands: Vec<Operand> = taken
                .into_iter()
                .map(|Projection { weight, bias, out }| Operand { weight, bias: *bias, out })
                .collect();
            self.multiply(x, &operands, Finish::Store, None)?;
            rest = left;
        }
        Ok(())
    }

    fn linear_add(&self, x: &Activation, weight: &PackedTensor, residual: &Tensor) -> Result<()> {
        if !self.multiplies() {
            return self.on_host(|host| host.linear_add(x, weight, residual));
        }
        self.multiply(x, &[Operand { weight, bias: None, out: residual }], Finish::Add, None)
    }

    fn linear_glu(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        self.linear_glu_activation(x, gate, up, glu, out).map(drop)
    }

    fn linear_glu_activation(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<Activation> {
        if !self.multiplies() {
            self.on_host(|host| host.linear_glu(x, gate, up, glu, out))?;
            return Activation::new(out);
        }
        if gate.block_type() == up.block_type() {
            return self.glu_in_pieces([gate, up], glu, out, |operands, finish| {
                self.multiply(x, operands, finish, None)
            });
        }
        self.glu_apart(x.rows(), gate.rows(), glu, out, |index, out| {
            self.multiply(x, &[Operand { weight: [gate, up][index], bias: None, out }], Finish::Store, None)
        })?;
        Activation::new(out)
    }
}
