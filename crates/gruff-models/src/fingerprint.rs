//! What tells one model from another.

use sha2::{Digest, Sha256};

use crate::{Model, Result};

/// Bytes of each parameter that go into the fingerprint, from its beginning, its middle and its end.
const SAMPLE: usize = 64;

/// A checksum, in hexadecimal digits, of every parameter's name, type, shape and a sample of its bytes, of the scales of
/// adapters, and of how activations are rounded: caches that models with equal fingerprints compute are the same. Reads
/// little of the weights.
///
/// # Errors
/// [`Error`](crate::Error) when a weight cannot be read.
pub fn fingerprint(model: &dyn Model) -> Result<String> {
    let mut hash = Sha256::new();
    let parameters = model.named_parameters();
    hash.update(format!("{:?} {:?}", model.config().caches, model.device().activations()));
    for name in parameters.names() {
        let weight = parameters.get(name)?;
        hash.update(format!("{name} {} {:?}", weight.block_type(), weight.shape()));
        let bytes = weight.bytes()?;
        for start in [0, bytes.len() / 2, bytes.len().saturating_sub(SAMPLE)] {
            hash.update(&bytes[start..bytes.len().min(start + SAMPLE)]);
        }
    }
    hash.update(format!("{:?}", model.adapters().scales()));
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
