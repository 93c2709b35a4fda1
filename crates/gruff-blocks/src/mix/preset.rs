//! The table of presets.

use std::fmt;
use std::str::FromStr;

use crate::{BlockType, Error};

macro_rules! presets {
    ($($(#[$doc:meta])* $variant:ident = $file_type:literal, $base:ident;)*) => {
        /// A preset mix of `llama-quantize`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        pub enum Preset {
            $($(#[$doc])* $variant,)*
            /// Every tensor stays as it is.
            COPY,
        }

        impl Preset {
            /// Every preset.
            pub const ALL: &[Preset] = &[$(Preset::$variant,)* Preset::COPY];

            /// The name, as `llama-quantize` has it.
            pub const fn name(self) -> &'static str {
                match self { $(Preset::$variant => stringify!($variant),)* Preset::COPY => "COPY" }
            }

            /// The number under `general.file_type`; none for [`COPY`](Self::COPY), which keeps the file's.
            pub const fn file_type(self) -> Option<u32> {
                match self { $(Preset::$variant => Some($file_type),)* Preset::COPY => None }
            }

            /// The type of a matrix that no rule singles out; none for [`COPY`](Self::COPY).
            pub const fn base(self) -> Option<BlockType> {
                match self { $(Preset::$variant => Some(BlockType::$base),)* Preset::COPY => None }
            }
        }
    };
}

presets! {
    /// Signs, 1.1 bits.
    Q1_0 = 40, Q1_0;
    /// 2.25 bits.
    Q2_0 = 41, Q2_0;
    /// 4.5 bits, one scale a block.
    Q4_0 = 2, Q4_0;
    /// 5 bits, scale and minimum.
    Q4_1 = 3, Q4_1;
    /// 4-bit floats for experts, Q8_0 for everything else.
    MXFP4_MOE = 38, MXFP4;
    /// 5.5 bits.
    Q5_0 = 8, Q5_0;
    /// 6 bits.
    Q5_1 = 9, Q5_1;
    /// 2.06 bits, needs an importance matrix.
    IQ2_XXS = 19, IQ2_XXS;
    /// 2.31 bits, needs an importance matrix.
    IQ2_XS = 20, IQ2_XS;
    /// 2.5 bits, needs an importance matrix.
    IQ2_S = 28, IQ2_XS;
    /// 2.7 bits, needs an importance matrix.
    IQ2_M = 29, IQ2_S;
    /// 1.56 bits, needs an importance matrix.
    IQ1_S = 24, IQ1_S;
    /// 1.75 bits, needs an importance matrix.
    IQ1_M = 31, IQ1_M;
    /// Ternary, 1.69 bits.
    TQ1_0 = 36, TQ1_0;
    /// Ternary, 2.06 bits.
    TQ2_0 = 37, TQ2_0;
    /// 2.6 bits, with more for the sensitive tensors.
    Q2_K = 10, Q2_K;
    /// 2.6 bits, needs an importance matrix.
    Q2_K_S = 21, Q2_K;
    /// 3.06 bits, needs an importance matrix.
    IQ3_XXS = 23, IQ3_XXS;
    /// 3.44 bits.
    IQ3_S = 26, IQ3_S;
    /// 3.66 bits.
    IQ3_M = 27, IQ3_S;
    /// 3.3 bits, needs an importance matrix.
    IQ3_XS = 22, IQ3_S;
    /// 3.4 bits.
    Q3_K_S = 11, Q3_K;
    /// 3.9 bits.
    Q3_K_M = 12, Q3_K;
    /// 4.3 bits.
    Q3_K_L = 13, Q3_K;
    /// 4.5 bits, non-linear.
    IQ4_NL = 25, IQ4_NL;
    /// 4.25 bits, non-linear.
    IQ4_XS = 30, IQ4_XS;
    /// 4.6 bits.
    Q4_K_S = 14, Q4_K;
    /// 4.8 bits: what most people take.
    Q4_K_M = 15, Q4_K;
    /// 5.5 bits.
    Q5_K_S = 16, Q5_K;
    /// 5.7 bits.
    Q5_K_M = 17, Q5_K;
    /// 6.6 bits.
    Q6_K = 18, Q6_K;
    /// 8.5 bits.
    Q8_0 = 7, Q8_0;
    /// Half precision.
    F16 = 1, F16;
    /// The upper half of single precision.
    BF16 = 32, BF16;
    /// Single precision.
    F32 = 0, F32;
}

/// Short names that stand for the mix of medium size.
const ALIASES: &[(&str, Preset)] =
    &[("Q3_K", Preset::Q3_K_M), ("Q4_K", Preset::Q4_K_M), ("Q5_K", Preset::Q5_K_M)];

impl Preset {
    /// The preset with this number under `general.file_type`.
    pub fn from_file_type(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|preset| preset.file_type() == Some(number))
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Preset {
    type Err = Error;

    /// Accepts the names in any case, and `Q3_K`, `Q4_K`, `Q5_K` for the mixes of medium size.
    fn from_str(text: &str) -> Result<Self, Error> {
        let named = Self::ALL.iter().copied().find(|preset| preset.name().eq_ignore_ascii_case(text));
        let alias = || ALIASES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, p)| *p);
        named.or_else(alias).ok_or_else(|| Error::UnknownPreset { name: text.to_owned() })
    }
}
