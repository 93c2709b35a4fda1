use std::fmt;
use std::str::FromStr;

use gruff_blocks::BlockType;

use crate::Error;

/// How the weights of a converted model are stored. Vectors, routers and convolutions stay F32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutType {
    /// As they are, or exactly wider.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single: what most models are trained in.
    #[default]
    BF16,
    /// 8 bits, a scale for 32 values; rows that are no whole blocks become F16.
    Q8_0,
}

impl OutType {
    /// Every one, in the order of their ids in files.
    pub const ALL: [OutType; 4] = [OutType::F32, OutType::F16, OutType::BF16, OutType::Q8_0];

    /// The name in lower case, as in llama.cpp's converter.
    pub const fn name(self) -> &'static str {
        match self {
            OutType::F32 => "f32",
            OutType::F16 => "f16",
            OutType::BF16 => "bf16",
            OutType::Q8_0 => "q8_0",
        }
    }

    /// `general.file_type`: the number that llama.cpp has for it (`LLAMA_FTYPE_*`).
    pub const fn file_type(self) -> u32 {
        match self {
            OutType::F32 => 0,
            OutType::F16 => 1,
            OutType::Q8_0 => 7,
            OutType::BF16 => 32,
        }
    }

    /// The type of a tensor of this name whose rows have so many values.
    pub(crate) fn of_tensor(self, name: &str, shape: &[u64]) -> BlockType {
        let router_or_convolution =
            ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "_norm.weight"];
        let always_f32 = shape.len() < 2
            || !name.ends_with(".weight")
            || router_or_convolution.iter().any(|end| name.ends_with(end));
        match self {
            _ if always_f32 => BlockType::F32,
            OutType::F32 => BlockType::F32,
            OutType::F16 => BlockType::F16,
            OutType::BF16 => BlockType::BF16,
            OutType::Q8_0 => {
                let whole = shape.first().is_some_and(|row| row % BlockType::Q8_0.values() as u64 == 0);
                if whole { BlockType::Q8_0 } else { BlockType::F16 }
            }
        }
    }
}

impl fmt::Display for OutType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OutType {
    type Err = Error;

    /// Accepts the names in any case.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            Error::Argument(format!("{text:?} is no type to convert to; choose f32, f16, bf16 or q8_0"))
        })
    }
}
