//! The name that llama-bench gives a model: architecture, size, file type.

use gruff::Checkpoint;

/// `general.file_type` in llama.cpp's words.
const FILE_TYPES: &[(u32, &str)] = &[
    (0, "all F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K - Medium"),
    (11, "Q3_K - Small"),
    (12, "Q3_K - Medium"),
    (13, "Q3_K - Large"),
    (14, "Q4_K - Small"),
    (15, "Q4_K - Medium"),
    (16, "Q5_K - Small"),
    (17, "Q5_K - Medium"),
    (18, "Q6_K"),
    (19, "IQ2_XXS - 2.0625 bpw"),
    (20, "IQ2_XS - 2.3125 bpw"),
    (21, "Q2_K - Small"),
    (22, "IQ3_XS - 3.3 bpw"),
    (23, "IQ3_XXS - 3.0625 bpw"),
    (24, "IQ1_S - 1.5625 bpw"),
    (25, "IQ4_NL - 4.5 bpw"),
    (26, "IQ3_S - 3.4375 bpw"),
    (27, "IQ3_S mix - 3.66 bpw"),
    (28, "IQ2_S - 2.5 bpw"),
    (29, "IQ2_M - 2.7 bpw"),
    (30, "IQ4_XS - 4.25 bpw"),
    (31, "IQ1_M - 1.75 bpw"),
    (32, "BF16"),
    (36, "TQ1_0 - 1.69 bpw ternary"),
    (37, "TQ2_0 - 2.06 bpw ternary"),
    (38, "MXFP4 MoE"),
];

/// `qwen35 4B Q4_K - Medium`.
pub(super) fn of(checkpoint: &Checkpoint) -> String {
    let metadata = checkpoint.gguf().metadata();
    let text = |key: &str| metadata.str(key).ok().flatten();
    let architecture = text("general.architecture").unwrap_or("?");
    let size = text("general.size_label").map_or_else(|| rounded(checkpoint.parameters()), str::to_owned);
    let number = metadata.u32("general.file_type").ok().flatten();
    let file_type = FILE_TYPES.iter().find(|(known, _)| Some(*known) == number);
    let file_type = match file_type {
        Some((_, name)) => (*name).to_owned(),
        // What most of the file is.
        None => checkpoint.types().first().map_or_else(|| "?".to_owned(), |share| share.name.clone()),
    };
    format!("{architecture} {size} {file_type}")
}

/// A number of parameters as size labels write it.
fn rounded(parameters: u64) -> String {
    match parameters {
        0..=999_999 => format!("{:.0}K", parameters as f64 / 1e3),
        1_000_000..=999_999_999 => format!("{:.0}M", parameters as f64 / 1e6),
        _ => format!("{:.1}B", parameters as f64 / 1e9),
    }
}
