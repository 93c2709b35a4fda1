//! The family's sources, and the variants that are compiled where there is no card: every type, and every constant with
//! some type.

use crate::cuda::sources::{Defines, Source};

pub(crate) static PIECES: Source =
    Source { name: "pieces.cu", code: include_str!("pieces.cu"), options: &[], variants: &[&[]] };

/// Lambdas in device code are device code.
const OPTIONS: &[&str] = &["--device-as-default-execution-space"];

const fn vector(
    weight: i64,
    tiles: i64,
    stages: i64,
    tail: i64,
    flat: i64,
    exact: i64,
    slots: i64,
) -> [(&'static str, i64); 7] {
    [
        ("WEIGHT", weight),
        ("TILES", tiles),
        ("STAGES", stages),
        ("TAIL", tail),
        ("FLAT", flat),
        ("EXACT", exact),
        ("SLOTS", slots),
    ]
}

const fn batch(weight: i64, tiles: i64, stages: i64, tail: i64, shared: i64) -> [(&'static str, i64); 5] {
    [("WEIGHT", weight), ("TILES", tiles), ("STAGES", stages), ("TAIL", tail), ("SHARED", shared)]
}

const fn matrix(weight: i64, rows: i64, columns: i64, stages: i64, slots: i64) -> [(&'static str, i64); 5] {
    [("WEIGHT", weight), ("ROWS", rows), ("COLUMNS", columns), ("STAGES", stages), ("SLOTS", slots)]
}

const fn float_few(weight: i64, aligned: i64, slots: i64) -> [(&'static str, i64); 3] {
    [("WEIGHT", weight), ("ALIGNED", aligned), ("SLOTS", slots)]
}

const fn float_many(
    weight: i64,
    rows: i64,
    columns: i64,
    stages: i64,
    aligned: i64,
    slots: i64,
) -> [(&'static str, i64); 6] {
    let [weight, rows, columns, stages, slots] = matrix(weight, rows, columns, stages, slots);
    [weight, rows, columns, stages, ("ALIGNED", aligned), slots]
}

const fn scalar(weight: i64, columns: i64, slots: i64) -> [(&'static str, i64); 3] {
    [("WEIGHT", weight), ("COLUMNS", columns), ("SLOTS", slots)]
}

macro_rules! variants {
    ($($variant:expr),* $(,)?) => { &[$({ const VARIANT: &Defines = &$variant; VARIANT }),*] };
}

pub(crate) static MATVEC: Source = Source {
    name: "matvec.cu",
    code: include_str!("matvec.cu"),
    options: OPTIONS,
    variants: variants![
        vector(2, 1, 2, 1, 1, 0, 0),
        vector(3, 1, 2, 1, 2, 0, 0),
        vector(6, 1, 2, 1, 1, 0, 0),
        vector(7, 1, 2, 1, 2, 0, 0),
        vector(8, 1, 2, 1, 1, 0, 0),
        vector(9, 1, 2, 1, 2, 0, 0),
        vector(10, 1, 2, 0, 1, 0, 0),
        vector(11, 1, 2, 0, 2, 0, 0),
        vector(12, 1, 2, 0, 1, 0, 0),
        vector(13, 1, 2, 0, 2, 0, 0),
        vector(14, 1, 2, 0, 1, 0, 0),
        vector(15, 1, 2, 0, 2, 0, 0),
        vector(16, 1, 2, 0, 1, 0, 0),
        vector(17, 1, 2, 0, 2, 0, 0),
        vector(18, 1, 2, 0, 1, 0, 0),
        vector(19, 1, 2, 0, 2, 0, 0),
        vector(20, 1, 2, 1, 1, 0, 0),
        vector(21, 1, 2, 0, 2, 0, 0),
        vector(22, 1, 2, 0, 1, 0, 0),
        vector(23, 1, 2, 0, 2, 0, 0),
        vector(29, 1, 2, 0, 1, 0, 0),
        vector(34, 1, 2, 0, 2, 0, 0),
        vector(35, 1, 2, 0, 1, 0, 0),
        vector(39, 1, 2, 1, 2, 0, 0),
        vector(40, 1, 2, 1, 1, 0, 0),
        vector(41, 1, 2, 1, 2, 0, 0),
        vector(42, 1, 2, 1, 1, 0, 0),
        vector(12, 1, 3, 0, 1, 0, 0),
        vector(12, 1, 2, 0, 1, 0, 1),
        vector(39, 2, 2, 1, 0, 0, 0),
        vector(12, 4, 2, 0, 0, 0, 0),
        vector(39, 1, 2, 0, 0, 0, 1),
        vector(14, 1, 2, 0, 0, 4, 0),
        vector(42, 1, 2, 1, 0, 1, 1),
        vector(12, 1, 2, 0, 0, 8, 0),
        vector(21, 1, 2, 0, 0, 1, 0),
    ],
};

pub(crate) static BATCH: Source = Source {
    name: "batch.cu",
    code: include_str!("batch.cu"),
    options: OPTIONS,
    variants: variants![
        batch(12, 8, 3, 0, 0),
        batch(14, 4, 3, 0, 1),
        batch(8, 2, 3, 1, 1),
        batch(39, 4, 3, 1, 0),
        batch(19, 2, 3, 0, 0),
    ],
};

pub(crate) static MATMUL: Source = Source {
    name: "matmul.cu",
    code: include_str!("matmul.cu"),
    options: OPTIONS,
    variants: variants![
        matrix(12, 128, 128, 3, 0),
        matrix(10, 128, 128, 3, 1),
        matrix(13, 128, 64, 3, 0),
        matrix(8, 64, 64, 2, 0),
        matrix(14, 64, 32, 3, 1),
        matrix(21, 64, 16, 3, 0),
    ],
};

pub(crate) static SCALAR: Source = Source {
    name: "scalar.cu",
    code: include_str!("scalar.cu"),
    options: &[],
    variants: variants![
        scalar(0, 8, 0),
        scalar(1, 1, 1),
        scalar(24, 1, 0),
        scalar(25, 1, 0),
        scalar(26, 1, 0),
        scalar(27, 1, 0),
        scalar(28, 1, 0),
        scalar(30, 4, 0),
    ],
};

pub(crate) static TERMS: Source = Source {
    name: "terms.cu",
    code: include_str!("terms.cu"),
    options: &[],
    variants: variants![[("WEIGHT", 1)], [("WEIGHT", 30)]],
};

pub(crate) static FLOAT_FEW: Source = Source {
    name: "float_few.cu",
    code: include_str!("float_few.cu"),
    options: &[],
    variants: variants![
        float_few(0, 1, 0),
        float_few(0, 0, 0),
        float_few(1, 1, 0),
        float_few(1, 0, 0),
        float_few(30, 1, 0),
        float_few(30, 1, 1),
    ],
};

pub(crate) static FLOAT_MANY: Source = Source {
    name: "float_many.cu",
    code: include_str!("float_many.cu"),
    options: &[],
    variants: variants![
        float_many(0, 128, 128, 4, 1, 0),
        float_many(0, 128, 64, 4, 1, 0),
        float_many(0, 64, 32, 6, 1, 0),
        float_many(1, 128, 128, 4, 1, 0),
        float_many(1, 128, 64, 4, 1, 1),
        float_many(1, 64, 64, 6, 0, 0),
        float_many(30, 128, 128, 4, 1, 0),
        float_many(30, 64, 32, 6, 1, 0),
    ],
};
