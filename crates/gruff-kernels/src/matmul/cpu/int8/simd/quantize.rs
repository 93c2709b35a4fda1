//! Rounding of activations to groups.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(in super::super) use neon::{group, remainders};
#[cfg(target_arch = "x86_64")]
pub(in super::super) use x86::{group, remainders};
