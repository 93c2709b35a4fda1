//! Kernels for many columns that the conformance runner does not reach everywhere, held to the bits of portable Rust: those
//! on the double of AMX's tiles, and those of AVX-512 where cohorts, lanes and tiles are not whole.

use gruff_blocks::{BlockType, synthetic};

use super::amx::Amx;
use super::amx::double::Double;
use super::layout::Layout;
use super::*;
use crate::Isa;
use crate::conformance::Values;
use crate::cpu::scratch;
use crate::matmul::cpu::int8::{
    self, Group, cohort_bytes, cohort_parts, finish_cohort, form_part, groups, kernel, quantize,
};
use crate::matmul::cpu::kernel::Panel;

/// The features that the entry point enables.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn product<U: Unpack>(panel: &Panel, columns: &[*const u8], out: &mut [f32]) {
    // SAFETY: promised by the caller.
    scratch::with(|scratch| unsafe { Amx::<Double>::product::<U>(panel, columns, out, scratch) });
}

type Product = unsafe fn(&Panel, &[*const u8], &mut [f32]);

const AMX: [(BlockType, Product); 13] = [
    (BlockType::Q4_0, product::<Q4_0>),
    (BlockType::Q4_1, product::<Q4_1>),
    (BlockType::Q5_0, product::<Q5_0>),
    (BlockType::Q5_1, product::<Q5_1>),
    (BlockType::Q8_0, product::<Q8_0>),
    (BlockType::Q2_K, product::<Q2K>),
    (BlockType::Q3_K, product::<Q3K>),
    (BlockType::Q4_K, product::<Q4K>),
    (BlockType::Q5_K, product::<Q5K>),
    (BlockType::Q6_K, product::<Q6K>),
    (BlockType::IQ4_NL, product::<Iq4Nl>),
    (BlockType::IQ4_XS, product::<Iq4Xs>),
    (BlockType::MXFP4, product::<Mxfp4>),
];

/// Rows of activations and their cohorts, in one buffer as operations have it.
struct Columns {
    first: *mut u8,
    rows: usize,
    cols: usize,
    _buffer: Vec<Aligned>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Aligned([u8; 64]);

impl Columns {
    fn of(isa: Isa, values: &mut Values, rows: usize, cols: usize) -> Self {
        let together = int8::cohort(isa).expect("has cohorts");
        let groups = groups(cols);
        let terms = 2 * rows * groups * size_of::<Group>();
        let whole = cohort_bytes(isa, together, cols);
        let bytes = terms + rows.div_ceil(together) * whole;
        let mut buffer = vec![Aligned([0x5a; 64]); bytes / 64];
        let columns = Self { first: buffer.as_mut_ptr().cast(), rows, cols, _buffer: buffer };
        for row in 0..rows {
            let mut x = values.normal(cols, 1.0);
            for _ in 0..row % 4 {
                x[values.below(cols)] = 40.0;
            }
            let to = columns.row(row).cast_mut().cast();
            // SAFETY: the buffer has room for it.
            unsafe { quantize(Isa::Avx512Vnni, &x, to, (rows * groups) as u32) };
        }
        for first in (0..rows).step_by(together) {
            let out = columns.row(0).wrapping_add(terms + first / together * whole).cast_mut();
            let count = together.min(rows - first);
            // SAFETY: as above.
            unsafe {
                let rows = columns.row(first).cast_mut().cast();
                (0..cohort_parts(isa, count)).for_each(|part| form_part(isa, rows, count, cols, out, part));
                finish_cohort(isa, rows, count, cols, out);
            }
        }
        columns
    }

    fn row(&self, row: usize) -> *const u8 {
        let row_bytes = groups(self.cols) * size_of::<Group>();
        self.first.wrapping_add(row * row_bytes)
    }
}

type Compute = dyn Fn(BlockType, &Panel, &[*const u8], &mut [f32]);

/// Multiplies rows of weights, of a length, with rows of activations: those of an input in their order, some of them, and
/// any of them.
fn check(isa: Isa, shapes: &[[usize; 3]], compute: &Compute) {
    if !Isa::Avx512Vnni.available() {
        eprintln!("not run: this machine has no AVX-512");
        return;
    }
    let mut values = Values::new(7);
    for (block_type, _) in AMX {
        for &[rows, cols, tokens] in shapes {
            if !cols.is_multiple_of(block_type.values()) {
                continue;
            }
            let packed = synthetic::random_blocks(block_type, rows * cols / block_type.values(), cols as u64);
            let row_bytes = packed.len() / rows;
            let panel = Panel { block_type, isa, first: packed.as_ptr(), row_bytes, rows, cols };
            let columns = Columns::of(isa, &mut values, tokens, cols);
            let in_order: Vec<_> = (0..columns.rows).map(|row| columns.row(row)).collect();
            let elsewhere: Vec<_> = (0..tokens + 3).map(|i| columns.row(i * 7 % tokens)).collect();
            for columns in [&in_order[..], &in_order[..tokens - 1], &elsewhere] {
                let mut expected = vec![0.0; rows * columns.len()];
                let mut got = vec![f32::NAN; rows * columns.len()];
                let portable = kernel(Isa::Scalar, block_type).expect("has an integer kernel");
                // SAFETY: rows, columns and results are as long as the panel says.
                unsafe {
                    scratch::with(|scratch| (portable.compute)(&panel, columns, &mut expected, scratch));
                }
                compute(block_type, &panel, columns, &mut got);
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got), bits(&expected), "{block_type} [{rows}, {cols}] x {}", columns.len());
            }
        }
    }
}

#[test]
fn amx_tiles_give_the_bits_of_portable_rust() {
    // Whole tiles and cohorts, parts of them, lanes without a block.
    let shapes = [[32, 256, 16], [9, 2304, 19], [40, 1280, 10], [70, 96, 33], [33, 512, 23]];
    check(Isa::AmxInt8, &shapes, &|block_type, panel, columns, out| {
        let (_, product) = AMX.into_iter().find(|(t, _)| *t == block_type).expect("is one of them");
        // SAFETY: as long as the panel says; the machine has AVX-512, the double needs no more.
        unsafe { product(panel, columns, out) }
    });
}

#[test]
fn lanes_give_the_bits_of_portable_rust() {
    // As above; and lanes of more blocks than stay in the first-level cache.
    let shapes = [[32, 256, 64], [9, 2304, 67], [33, 11008, 10], [70, 96, 131], [40, 1280, 23]];
    check(Isa::Avx512Vnni, &shapes, &|block_type, panel, columns, out| {
        let kernel = kernel(Isa::Avx512Vnni, block_type).expect("has an integer kernel");
        // SAFETY: as above.
        scratch::with(|scratch| unsafe { (kernel.compute)(panel, columns, out, scratch) });
    });
}
