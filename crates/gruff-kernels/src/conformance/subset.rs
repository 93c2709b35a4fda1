//! Cases by name, for tools that make kernels many times slower.

use std::fmt;
use std::str::FromStr;

use super::Case;
use crate::{Error, Result};

/// A choice among the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// What compute-sanitizer gets through in about two minutes: every operation, every way that a kernel is launched (one,
    /// few and many columns; tiles, spans and their sums; chunks and single tokens), odd sizes, and types of weights of each
    /// kind.
    Sanitize,
}

impl Subset {
    /// What operations and labels of the cases begin with.
    const fn beginnings(self) -> &'static [&'static str] {
        match self {
            Subset::Sanitize => SANITIZE,
        }
    }

    /// Whether a case belongs to it.
    pub fn has(self, case: &Case) -> bool {
        let name = case.name();
        self.beginnings().iter().any(|beginning| name.starts_with(beginning))
    }
}

impl fmt::Display for Subset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subset::Sanitize => f.pad("sanitize"),
        }
    }
}

impl FromStr for Subset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "sanitize" => Ok(Subset::Sanitize),
            _ => {
                Err(Error::Option { what: format!("{text:?} is no subset of the cases; there is sanitize") })
            }
        }
    }
}

/// A part of the cases: every `of`-th, from the one at place `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    of: usize,
}

impl Shard {
    /// Whether the case at a place, counted from 0, belongs to it.
    pub fn has(self, place: usize) -> bool {
        place % self.of == self.index
    }
}

impl FromStr for Shard {
    type Err = Error;

    /// From `K/N`, with K from 1 to N.
    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((k, of)) if (1..=of).contains(&k) => Ok(Self { index: k - 1, of }),
            _ => Err(Error::Option {
                what: format!("{text:?} is no part of the cases; K/N is, with K from 1 to N"),
            }),
        }
    }
}

/// See [`Subset::Sanitize`]. Every one of them begins some case's name, and every operation has one (tested).
const SANITIZE: &[&str] = &[
    "rms_norm [2, 3, 33]",
    "rms_norm [70, 1031]",
    "rms_norm for products [3, 1280]",
    "rms_norm for products [6, 2560]",
    "rms_norm for products [603, 1344]",
    "add_rms_norm [3, 1031]",
    "gated_rms_norm [2, 3, 100]",
    "gated_rms_norm [40, 4, 128]",
    "l2_norm [2, 3, 33]",
    "rope_table",
    "rope NeoX [2, 2, 30]",
    "rope Interleaved [4, 1, 80]",
    "add [4, 100]",
    "scale [3, 7]",
    "softcap [2, 3, 8]",
    "sigmoid_mul [4, 100]",
    "sigmoid_mul one a row [4, 100]",
    "glu silu [90, 1031]",
    "glu gelu_tanh [3, 7]",
    "gather_rows",
    "copy",
    "attention f32 6/2 heads of 30/44",
    "attention f16 9/3 heads of 64/64",
    "attention f16 4/2 heads of 256/256",
    "attention f16 4/2 heads of 192/128",
    "attention f16 6/2 heads of 64/64, 0+5 40+1 31+34 63+2, window 7",
    "attention f16 4/1 heads of 64/64, 1023+3",
    "attention q8_0 8/2 heads of 128/128",
    "attention q8_0 4/1 heads of 64/64, 510+9",
    "gated_attention f16 4/2 heads of 64/32",
    "gated_attention q8_0 12/1 heads of 32/32",
    "attention for products, f16 5/1 heads of 64/64",
    "gated_attention for products, q8_0 9/3 heads of 64/64",
    "prepare_qkv f16 4/2 heads of 64/64",
    "prepare_qkv q8_0 4/4 heads of 96/64",
    "delta_gates [3, 16]",
    "causal_conv 300 channels",
    "causal_conv 9 channels",
    "gated_delta 2/4 heads of 16/16, rollback 5",
    "gated_delta 1/1 heads of 128/128, rollback 64",
    "gated_delta 1/3 heads of 24/20, rollback 0",
    "gated_delta_net 2/4 heads of 16/48",
    "gated_delta_net 1/2 heads of 128/128",
    "argmax [6, 1000]",
    "sample all, [24, 300]",
    "sample top 40, [24, 20000]",
    "sample top-p 0.9, [24, 20000]",
    "sample top 20, top-p 0.8, min-p 0.01, penalty, [24, 300]",
    "route 4 of 60, 5 tokens, true",
    "route 8 of 256, 33 tokens, true",
    "experts Q4_K, 1 tokens",
    "experts Q4_K, 19 tokens",
    "experts Q8_0, 2 tokens",
    "experts F16, 19 tokens",
    "linear Q4_K [7, 512] x 1",
    "linear Q4_K [13, 512] x 5",
    "linear Q4_K [33, 2304] x 8",
    "linear Q4_K [45, 512] x 13",
    "linear Q4_K [9, 2304] x 67",
    "linear Q6_K [7, 512] x 1",
    "linear Q6_K [45, 256] x 13",
    "linear Q5_K [33, 256] x 8",
    "linear Q8_0 [9, 96] x 67",
    "linear Q4_0 [5, 64] x 2",
    "linear IQ4_XS [9, 256] x 67",
    "linear IQ3_S [45, 256] x 13",
    "linear IQ2_XXS [7, 256] x 1",
    "linear MXFP4 [33, 96] x 8",
    "linear NVFP4 [9, 256] x 67",
    "linear Q4_K [33800, 256] x 3",
    "linear Q4_K [10608, 256] x 20",
    "linear Q8_0 [1000, 288] x 200",
    "linear Q6_K [1000, 512] x 130",
    "linear F16 [13, 100] x 5",
    "linear BF16 [9, 1031] x 67",
    "linear F32 [45, 7] x 13",
    "linear F32 [24, 1544] x 40",
    "linear F32 [1100, 264] x 200",
    "linear F16 [1000, 520] x 20",
    "linear BF16 [2100, 128] x 64",
    "experts F32, 150 tokens",
    "linear behind glu",
    "linear fused Q4_K",
    "linear fused Q8_0",
    "embed Q4_K",
    "embed F16",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::cases;

    #[test]
    fn names_begin_cases_and_leave_no_operation_out() {
        let cases = cases();
        for beginning in SANITIZE {
            assert!(
                cases.iter().any(|case| case.name().starts_with(beginning)),
                "no case begins with {beginning:?}"
            );
        }
        let of = |op: &str| cases.iter().any(|case| case.op == op && Subset::Sanitize.has(case));
        let missing: Vec<&str> = cases.iter().map(|case| case.op).filter(|op| !of(op)).collect();
        assert_eq!(missing, [""; 0]);
        assert_eq!("sanitize".parse::<Subset>().unwrap(), Subset::Sanitize);
        assert!("all".parse::<Subset>().unwrap_err().to_string().contains("sanitize"));
    }

    #[test]
    fn shards_have_each_case_once() {
        let shards: Vec<Shard> = ["1/3", "2/3", "3/3"].map(|part| part.parse().unwrap()).to_vec();
        for place in 0..10 {
            assert_eq!(shards.iter().filter(|shard| shard.has(place)).count(), 1);
        }
        for fault in ["", "1", "0/2", "3/2", "1/0", "a/2", "1/2/3", "-1/2"] {
            assert!(fault.parse::<Shard>().unwrap_err().to_string().contains("K/N"), "{fault}");
        }
    }
}
