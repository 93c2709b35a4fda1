//! The family on the CPU.
//!
//! Weights are read packed, where they lie. One column (decode) goes from the packed row to the product in
//! registers; several share a tile of rows that is unpacked once.

mod float;
mod int8;
mod kernel;
pub(crate) mod schedule;

use gruff_blocks::BlockType;

use super::{Glu, MatmulKernel, MatmulOps, Projection};
use crate::activation::Form;
use crate::buffer::Buffer;
use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output};
use crate::device::Backend;
use crate::{Activation, Activations, Error, PackedTensor, Result, Tensor};

use kernel::{Kernel, Panel};
use schedule::{Finish, Product, Task};

/// A form of an activation in memory.
struct Columns {
    buffer: Buffer,
    row_bytes: usize,
}

impl Columns {
    fn row(&self, row: usize) -> *const u8 {
        self.buffer.cpu().pointer().wrapping_add(row * self.row_bytes)
    }
}

impl CpuDevice {
    /// The kernel that serves a block type, and the form in which it takes activations.
    fn kernel(&self, block_type: BlockType) -> (Kernel, Form) {
        if block_type.is_scalar() || Backend::activations(self) == Activations::F32 {
            return (float::kernel(self.isa()), Form::Padded);
        }
        match int8::kernel(self.isa(), block_type) {
            Some(kernel) => (kernel, Form::Int8Blocks),
            None => (float::kernel(self.isa()), Form::Rounded),
        }
    }

    /// The activation in a form, made when it is first asked for.
    fn columns(&self, x: &Activation, form: Form) -> Result<Columns> {
        let is_int8 = matches!(form, Form::Int8Blocks | Form::Int8Cohorts);
        let row_bytes = match is_int8 {
            true => int8::row_bytes(x.cols()),
            false => float::padded(x.cols()) * size_of::<f32>(),
        };
        let buffer = x.form(form, |tensor| {
            // Second terms have as much room as the first; what is not written of it takes none.
            let (second, terms) = match is_int8 {
                true => (x.rows() * int8::groups(x.cols()), 2 * x.rows() * row_bytes),
                false => (0, x.rows() * row_bytes),
            };
            let cohort = int8::cohort(self.isa()).filter(|_| form == Form::Int8Cohorts);
            let cohort_bytes = |rows| int8::cohort_bytes(self.isa(), rows, x.cols());
            let bytes = terms
                + cohort.map_or(0, |together| {
                    let rest = x.rows() % together;
                    x.rows() / together * cohort_bytes(together)
                        + if rest > 0 { cohort_bytes(rest) } else { 0 }
                });
            let too_many = |_| Error::Shape {
                op: "linear",
                what: format!("{:?} activations are too many for one step", tensor.shape()),
            };
            // Distances in the buffer are counted in 32 bits, in cache lines or in groups, which are longer.
            u32::try_from(bytes / 64).map_err(too_many)?;
            let second = u32::try_from(second).map_err(too_many)?;
            let buffer = tensor.device().scratch_buffer(bytes)?;
            let columns = Columns { buffer: buffer.clone(), row_bytes };
            // SAFETY: nothing writes an activation's tensor while the activation lives.
            let input = unsafe { Input::<f32>::of(tensor) };
            self.share(x.rows(), 2 * x.cols(), |rows| {
                for row in rows {
                    let to = columns.row(row).cast_mut();
                    // SAFETY: the row's bytes in a new buffer, aligned for a cache line, touched by this piece only;
                    // any bytes are groups and floats.
                    unsafe {
                        match is_int8 {
                            true => int8::quantize(self.isa(), input.row(row), to.cast(), second),
                            false => {
                                let out = std::slice::from_raw_parts_mut(to.cast(), float::padded(x.cols()));
                                float::complete(input.row(row), form == Form::Rounded, out);
                            }
                        }
                    }
                }
            });
            if let Some(together) = cohort {
                // A cohort's rows, how many they are, and where it stands.
                let place = |cohort| {
                    let first = cohort * together;
                    let at = terms + cohort * cohort_bytes(together);
                    let out = columns.buffer.cpu().pointer().wrapping_add(at);
                    (columns.row(first).cast_mut().cast(), together.min(x.rows() - first), out)
                };
                let cohorts = x.rows().div_ceil(together);
                let parts = int8::cohort_parts(self.isa(), together);
                let part_rows = together / parts.max(1);
                self.share(cohorts * parts, 2 * part_rows * x.cols(), |pieces| {
                    for piece in pieces {
                        let (rows, count, out): (*mut _, _, _) = place(piece / parts);
                        if piece % parts < int8::cohort_parts(self.isa(), count) {
                            // SAFETY: rows that are written, which nobody writes now, and a part of the buffer behind
                            // all rows, of which this piece alone touches this part.
                            unsafe {
                                int8::form_part(self.isa(), rows, count, x.cols(), out, piece % parts);
                            }
                        }
                    }
                });
                let finishing = if parts > 0 { x.cols() / 8 } else { 2 * x.cols() };
                self.share(cohorts, together * finishing, |cohorts| {
                    for cohort in cohorts {
                        let (rows, count, out) = place(cohort);
                        // SAFETY: as above; this piece alone touches the cohort and its rows.
                        unsafe { int8::finish_cohort(self.isa(), rows, count, x.cols(), out) };
                    }
                });
            }
            Ok(buffer)
        })?;
        Ok(Columns { buffer, row_bytes })
    }

    /// The product of one matrix of a stack with some rows of x.
    pub(crate) fn product(
        &self,
        x: &Activation,
        rows: impl Iterator<Item = usize>,
        weight: &PackedTensor,
        matrix: usize,
    ) -> Result<Product> {
        let (_, form) = self.kernel(weight.block_type());
        self.product_in(x, form, rows, weight, matrix)
    }

    /// The product of a matrix with all rows of x.
    fn whole_product(&self, x: &Activation, weight: &PackedTensor) -> Result<Product> {
        // Rows in their order are read side by side, where there are enough of them.
        let form = match self.kernel(weight.block_type()).1 {
            Form::Int8Blocks if x.rows() > int8::FEW && int8::cohort(self.isa()).is_some() => {
                Form::Int8Cohorts
            }
            form => form,
        };
        self.product_in(x, form, 0..x.rows(), weight, 0)
    }

    fn product_in(
        &self,
        x: &Activation,
        form: Form,
        rows: impl Iterator<Item = usize>,
        weight: &PackedTensor,
        matrix: usize,
    ) -> Result<Product> {
        let (kernel, _) = self.kernel(weight.block_type());
        let columns = self.columns(x, form)?;
        let memory = weight.buffer().cpu();
        let first = weight.row_offset(matrix, 0);
        assert!(first + weight.rows() * weight.row_bytes() <= memory.len());
        let panel = Panel {
            block_type: weight.block_type(),
            isa: self.isa(),
            first: memory.pointer().wrapping_add(first),
            row_bytes: weight.row_bytes(),
            rows: weight.rows(),
            cols: weight.cols(),
        };
        let columns_of = rows.map(|row| columns.row(row)).collect();
        Ok(Product { kernel, panel, scale: weight.scale(matrix), columns: columns_of, _keep: columns.buffer })
    }

    fn task(&self, x: &Activation, weights: &[&PackedTensor], out: &Tensor, finish: Finish) -> Result<Task> {
        let products = weights.iter().map(|weight| self.whole_product(x, weight)).collect::<Result<_>>()?;
        let out = Output::<f32>::of(out);
        // SAFETY: only the first address of each row is taken.
        let outputs = (0..x.rows()).map(|row| unsafe { out.row(row) }.as_mut_ptr()).collect();
        Ok(Task { products, outputs, finish })
    }
}

impl MatmulOps for CpuDevice {
    fn matmul_kernel(&self, block_type: BlockType) -> MatmulKernel {
        let (kernel, form) = self.kernel(block_type);
        MatmulKernel { name: kernel.name, fast: form == Form::Int8Blocks || block_type.is_scalar() }
    }

    fn linear_many(&self, x: &Activation, projections: &[Projection]) -> Result<()> {
        let tasks = projections.iter().map(|Projection { weight, bias, out }| {
            // SAFETY: the bias was checked to be disjoint from the outputs.
            let bias = bias.map(|bias| unsafe { Input::<f32>::of(bias) }.row(0).as_ptr());
            self.task(x, &[weight], out, Finish::Store { bias })
        });
        schedule::run(self, &tasks.collect::<Result<Vec<_>>>()?);
        Ok(())
    }

    fn linear_add(&self, x: &Activation, weight: &PackedTensor, residual: &Tensor) -> Result<()> {
        schedule::run(self, &[self.task(x, &[weight], residual, Finish::Add)?]);
        Ok(())
    }

    fn linear_glu(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        schedule::run(self, &[self.task(x, &[gate, up], out, Finish::Glu(glu))?]);
        Ok(())
    }
}
