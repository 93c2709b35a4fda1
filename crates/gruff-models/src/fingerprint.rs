//! What tells one model from another.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use gruff_gguf::Gguf;
use sha2::{Digest, Sha256};

use crate::{Model, Result, Weight};

/// Of how kernels and layers round and add up. To be counted up by hand with every change after which the same file
/// gives other bits: caches in files are of one such number.
const NUMERICS: u32 = 3;

/// Bytes of each sample of a parameter that go into the fingerprint.
const SAMPLE: usize = 64;

/// Samples of a parameter, besides its last bytes; one with no more bytes than these goes in whole.
const SAMPLES: usize = 64;

/// Keys that decide how text becomes tokens, not what the model makes of them.
const TOKENIZER: &str = "tokenizer.";

/// Where a model came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// SHA-256 of every key that is not the tokenizer's with its value, of the table of tensors, and of the size of the
    /// files; empty for a model that no file was.
    pub digest: String,
    /// When its files were written last, as nanoseconds since 1970; 0 where the system does not say.
    pub modified: Vec<u128>,
}

impl Origin {
    /// Of a container. Reads none of its weights.
    pub(crate) fn of(gguf: &Gguf) -> Self {
        let mut hash = Sha256::new();
        hash.update(format!("{} bytes\n", gguf.file_size()));
        let keys = gguf.metadata().iter().filter(|(key, _)| !key.starts_with(TOKENIZER));
        keys.for_each(|(key, value)| hash.update(format!("{key:?} {value:?}\n")));
        for tensor in gguf.tensors() {
            let (name, shape) = (tensor.name(), tensor.shape());
            hash.update(format!("{name:?} {} {shape:?} {}\n", tensor.type_id(), tensor.offset()));
        }
        let modified = |path: &PathBuf| modified(path).unwrap_or_default();
        Self { digest: hex(hash.finalize()), modified: gguf.paths().iter().map(modified).collect() }
    }
}

fn modified(path: &Path) -> Option<u128> {
    let modified = std::fs::metadata(path).ok()?.modified().ok()?;
    Some(modified.duration_since(UNIX_EPOCH).ok()?.as_nanos())
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A checksum, in hexadecimal digits, of what decides what a model computes: its file's metadata without the
/// tokenizer's, every parameter's name, type, shape, scales and samples of its bytes, the scales of adapters, how
/// activations are rounded, and a number of this program's arithmetic. Hooks, replaced modules and the weights of
/// adapters are no part of it: see [`Model::is_as_loaded`]. Reads little of the weights, so that a change of a few values
/// within a large matrix may go unseen; [`Origin::modified`] tells of those.
///
/// # Errors
/// [`Error`](crate::Error) when a weight cannot be read.
pub fn fingerprint(model: &dyn Model) -> Result<String> {
    let mut hash = Sha256::new();
    let parameters = model.named_parameters();
    hash.update(format!("{NUMERICS} {} ", model.base().origin.digest));
    hash.update(format!("{:?} {:?}", model.config().caches, model.device().activations()));
    for name in parameters.names() {
        let weight = parameters.get(name)?;
        hash.update(format!("{name} {} {:?}", weight.block_type(), weight.shape()));
        if let Weight::Packed(packed) = &weight {
            let scales = (0..packed.tensor().matrices()).map(|matrix| packed.tensor().scale(matrix));
            scales.for_each(|scale| hash.update(scale.to_le_bytes()));
        }
        let bytes = weight.bytes()?;
        samples(bytes.len()).for_each(|range| hash.update(&bytes[range]));
    }
    hash.update(format!("{:?}", model.adapters().scales()));
    Ok(hex(hash.finalize()))
}

/// Which of so many bytes go in: all of few; else samples at equal spaces, and the last.
fn samples(len: usize) -> impl Iterator<Item = Range<usize>> {
    let whole = len <= SAMPLE * SAMPLES;
    let step = if whole { SAMPLE } else { len.div_ceil(SAMPLES) };
    let last = len.saturating_sub(SAMPLE);
    (0..len).step_by(step).chain([last]).map(move |start| start..len.min(start + SAMPLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_all_of_few_bytes_and_little_of_many() {
        for len in [0, 1, 63, 64, 65, 4096] {
            let mut seen = vec![false; len];
            samples(len).for_each(|range| seen[range].fill(true));
            assert!(seen.into_iter().all(|seen| seen), "{len}");
        }
        for len in [4097, 100_000, 10 << 20, 3 << 30] {
            let ranges: Vec<_> = samples(len).collect();
            assert!((SAMPLES / 2..=SAMPLES + 1).contains(&ranges.len()), "{} of {len}", ranges.len());
            assert!(ranges.iter().all(|range| range.len() == SAMPLE || range.end == len));
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, len));
        }
    }
}
