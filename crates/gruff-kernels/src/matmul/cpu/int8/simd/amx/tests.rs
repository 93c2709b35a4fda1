//! The kernels on the double of the tiles, held to the bits of portable Rust.

use gruff_blocks::{BlockType, synthetic};

use super::double::Double;
use super::{Amx, Layout};
use crate::Isa;
use crate::conformance::Values;
use crate::cpu::scratch;
use crate::matmul::cpu::int8::simd::cohort::COHORT;
use crate::matmul::cpu::int8::simd::*;
use crate::matmul::cpu::int8::{Group, cohort_bytes, form_cohort, groups, kernel, quantize};
use crate::matmul::cpu::kernel::Panel;

/// The features that the entry point enables.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn product<U: Unpack>(panel: &Panel, columns: &[*const u8], out: &mut [f32]) {
    // SAFETY: promised by the caller.
    scratch::with(|scratch| unsafe { Amx::<Double>::product::<U>(panel, columns, out, scratch) });
}

type Product = unsafe fn(&Panel, &[*const u8], &mut [f32]);

const TYPES: [(BlockType, Product); 13] = [
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

/// Rows of weights, their length, rows of activations: whole tiles and cohorts, parts of them, lanes without a block.
const SHAPES: [(usize, usize, usize); 5] =
    [(32, 256, 16), (9, 2304, 19), (40, 1280, 9), (70, 96, 33), (33, 512, 23)];

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
    fn of(values: &mut Values, rows: usize, cols: usize) -> Self {
        let groups = groups(cols);
        let terms = 2 * rows * groups * size_of::<Group>();
        let bytes = terms + rows.div_ceil(COHORT) * cohort_bytes(cols);
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
        for first in (0..rows).step_by(COHORT) {
            let out = columns.row(0).wrapping_add(terms + first / COHORT * cohort_bytes(cols)).cast_mut();
            let count = COHORT.min(rows - first);
            // SAFETY: as above.
            unsafe { form_cohort(columns.row(first).cast_mut().cast(), count, cols, out) };
        }
        columns
    }

    fn row(&self, row: usize) -> *const u8 {
        let row_bytes = groups(self.cols) * size_of::<Group>();
        self.first.wrapping_add(row * row_bytes)
    }
}

#[test]
fn tiles_give_the_bits_of_portable_rust() {
    if !Isa::Avx512Vnni.available() {
        eprintln!("not run: this machine has no AVX-512, which adds what tiles multiply");
        return;
    }
    let mut values = Values::new(7);
    for (block_type, product) in TYPES {
        for (rows, cols, tokens) in SHAPES {
            if !cols.is_multiple_of(block_type.values()) {
                continue;
            }
            let packed = synthetic::random_blocks(block_type, rows * cols / block_type.values(), cols as u64);
            let panel = Panel {
                block_type,
                isa: Isa::AmxInt8,
                first: packed.as_ptr(),
                row_bytes: packed.len() / rows,
                rows,
                cols,
            };
            let columns = Columns::of(&mut values, tokens, cols);
            let in_order: Vec<_> = (0..columns.rows).map(|row| columns.row(row)).collect();
            let elsewhere: Vec<_> = (0..tokens + 3).map(|i| columns.row(i * 7 % tokens)).collect();
            for columns in [in_order, elsewhere] {
                let mut expected = vec![0.0; rows * columns.len()];
                let mut got = vec![f32::NAN; rows * columns.len()];
                let portable = kernel(Isa::Scalar, block_type).expect("has an integer kernel");
                // SAFETY: rows, columns and results are as long as the panel says; the machine has AVX-512.
                unsafe {
                    scratch::with(|scratch| (portable.compute)(&panel, &columns, &mut expected, scratch));
                    product(&panel, &columns, &mut got);
                }
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got), bits(&expected), "{block_type} [{rows}, {cols}] x {}", columns.len());
            }
        }
    }
}
