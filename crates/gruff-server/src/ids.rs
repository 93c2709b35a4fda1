//! Numbers nobody can guess, for ids and seeds.

use std::hash::BuildHasher;
use std::time::{SystemTime, UNIX_EPOCH};

/// A random number: the standard library seeds its hash maps from the system.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().hash_one(0)
}

/// An id such as `chatcmpl-0123456789abcdef01234567`.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
