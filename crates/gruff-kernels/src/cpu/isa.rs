//! Instruction sets that CPU kernels are written for.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// An instruction set, as a family of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Portable Rust.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// As [`Avx2`](Isa::Avx2), with the byte products of AVX-VNNI (256-bit registers).
    AvxVnni,
    /// As [`Avx2`](Isa::Avx2), with the byte products of AVX-512 VNNI.
    Avx512Vnni,
    /// As [`Avx512Vnni`](Isa::Avx512Vnni), with AMX's products of tiles of bytes, which the system has to permit.
    AmxInt8,
    /// AArch64.
    Neon,
    /// As [`Neon`](Isa::Neon), with the byte products of `dotprod`.
    NeonDotProd,
    /// As [`NeonDotProd`](Isa::NeonDotProd), with the products of pairs of rows of `i8mm`.
    NeonI8mm,
}

impl Isa {
    /// All of them, the plainest first.
    pub const ALL: [Isa; 8] = [
        Isa::Scalar,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512Vnni,
        Isa::AmxInt8,
        Isa::Neon,
        Isa::NeonDotProd,
        Isa::NeonI8mm,
    ];

    /// The name that `GRUFF_ISA` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2+fma",
            Isa::AvxVnni => "avx-vnni",
            Isa::Avx512Vnni => "avx512+vnni",
            Isa::AmxInt8 => "amx+avx512",
            Isa::Neon => "neon",
            Isa::NeonDotProd => "dotprod+neon",
            Isa::NeonI8mm => "i8mm+dotprod",
        }
    }

    /// Whether this machine has it.
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                    && std::arch::is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.available() && std::arch::is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                Isa::Avx2.available()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AmxInt8 => Isa::Avx512Vnni.available() && super::amx::available(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotProd => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Isa::NeonDotProd.available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni | Isa::AmxInt8 => false,
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon | Isa::NeonDotProd | Isa::NeonI8mm => false,
        }
    }

    /// The asked one, else the one that `GRUFF_ISA` names, else the best that this machine has. AMX is taken only where it
    /// is asked for: its kernels are no faster than those of AVX-512 yet.
    pub(crate) fn choose(asked: Option<Isa>) -> Result<Isa> {
        let asked = match (asked, std::env::var("GRUFF_ISA")) {
            (Some(isa), _) => Some(isa),
            (None, Ok(name)) => Some(name.parse()?),
            (None, Err(_)) => None,
        };
        match asked {
            Some(isa) if !isa.available() => {
                Err(Error::Option { what: format!("this machine has no {isa}; leave GRUFF_ISA unset") })
            }
            Some(isa) => Ok(isa),
            None => {
                let mut best_first = Self::ALL.into_iter().rev().filter(|isa| *isa != Isa::AmxInt8);
                Ok(best_first.find(|isa| isa.available()).unwrap_or(Isa::Scalar))
            }
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known =
            |isa: &Isa| text == isa.name() || text == isa.name().split('+').next().unwrap_or_default();
        Self::ALL.into_iter().find(known).ok_or_else(|| Error::Option {
            what: format!(
                "{text:?} is not an instruction set that gruff knows; one of scalar, avx2, avx-vnni, avx512, \
                 amx, neon, dotprod, i8mm"
            ),
        })
    }
}
