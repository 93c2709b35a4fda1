//! The family's sources, and the variants that are compiled where there is no card: every constant with some type, besides
//! [every type](super::vector_of_each_type) with some constants.

use crate::cuda::sources::{Defines, Source};

pub(crate) static PIECES: Source =
    Source { name: "pieces.cu", code: include_str!("pieces.cu"), options: &[], variants: &[&[]] };

/// Lambdas in device code are device code.
const OPTIONS: &[&str] = &["--device-as-default-execution-space"];

/// Constants with their values.
const fn defines<const N: usize>(names: [&'static str; N], values: [i64; N]) -> [(&'static str, i64); N] {
    let mut defines = [("", 0); N];
    let mut i = 0;
    while i < N {
        defines[i] = (names[i], values[i]);
        i += 1;
    }
    defines
}

/// Variants by the values of their constants.
macro_rules! variants {
    ($names:expr; $($values:expr),* $(,)?) => { &[$({ const VARIANT: &Defines = &defines($names, $values); VARIANT }),*] };
}

pub(crate) static MATVEC: Source = Source {
    name: "matvec.cu",
    code: include_str!("matvec.cu"),
    options: OPTIONS,
    variants: variants![
        ["WEIGHT", "TILES", "STAGES", "TAIL", "FLAT", "EXACT", "SLOTS"];
        [12, 1, 2, 0, 1, 0, 1],
        [39, 2, 2, 1, 0, 0, 0],
        [12, 4, 2, 0, 0, 0, 0],
        [39, 1, 2, 0, 0, 0, 1],
        [14, 1, 2, 0, 0, 4, 0],
        [42, 1, 2, 1, 0, 1, 1],
        [12, 1, 2, 0, 0, 8, 0],
        [21, 1, 2, 0, 0, 1, 0],
    ],
};

pub(crate) static BATCH: Source = Source {
    name: "batch.cu",
    code: include_str!("batch.cu"),
    options: OPTIONS,
    variants: variants![
        ["WEIGHT", "TILES", "STAGES", "TAIL", "SHARED"];
        [12, 8, 3, 0, 0],
        [14, 4, 3, 0, 1],
        [8, 2, 3, 1, 1],
        [39, 4, 3, 1, 0],
        [19, 2, 3, 0, 0],
    ],
};

pub(crate) static MATMUL: Source = Source {
    name: "matmul.cu",
    code: include_str!("matmul.cu"),
    options: OPTIONS,
    variants: variants![
        ["WEIGHT", "ROWS", "COLUMNS", "STAGES", "SLOTS"];
        [12, 128, 128, 3, 0],
        [10, 128, 128, 3, 1],
        [13, 128, 64, 3, 0],
        [8, 64, 64, 2, 0],
        [14, 64, 32, 3, 1],
        [21, 64, 16, 3, 0],
    ],
};

pub(crate) static SCALAR: Source = Source {
    name: "scalar.cu",
    code: include_str!("scalar.cu"),
    options: &[],
    variants: variants![
        ["WEIGHT", "COLUMNS", "SLOTS"];
        [0, 8, 0],
        [1, 1, 1],
        [24, 1, 0],
        [25, 1, 0],
        [26, 1, 0],
        [27, 1, 0],
        [28, 1, 0],
        [30, 4, 0],
    ],
};

pub(crate) static TERMS: Source = Source {
    name: "terms.cu",
    code: include_str!("terms.cu"),
    options: &[],
    variants: variants![["WEIGHT"]; [1], [30]],
};

pub(crate) static FLOAT_FEW: Source = Source {
    name: "float_few.cu",
    code: include_str!("float_few.cu"),
    options: &[],
    variants: variants![
        ["WEIGHT", "ALIGNED", "SLOTS"];
        [0, 1, 0],
        [0, 0, 0],
        [1, 1, 0],
        [1, 0, 0],
        [30, 1, 0],
        [30, 1, 1],
    ],
};

pub(crate) static FLOAT_MANY: Source = Source {
    name: "float_many.cu",
    code: include_str!("float_many.cu"),
    options: &[],
    variants: variants![
        ["WEIGHT", "ROWS", "COLUMNS", "STAGES", "ALIGNED", "SLOTS"];
        [0, 128, 128, 4, 1, 0],
        [0, 128, 64, 4, 1, 0],
        [0, 64, 32, 6, 1, 0],
        [1, 128, 128, 4, 1, 0],
        [1, 128, 64, 4, 1, 1],
        [1, 64, 64, 6, 0, 0],
        [30, 128, 128, 4, 1, 0],
        [30, 64, 32, 6, 1, 0],
    ],
};
