//! The model that is part of the program.

use crate::{Error, Result};
use gruff_gguf::Gguf;

/// The id of the bundled model, wherever a model is named. A file or folder of that name is `./bundled`.
pub const BUNDLED: &str = "bundled";

/// Whether this build has a bundled model (feature `bundled-model`).
pub const HAS_BUNDLED: bool = cfg!(feature = "bundled-model");

/// Bytes that begin at a multiple of GGUF's default alignment, so that tensors in them do too.
#[cfg(feature = "bundled-model")]
#[repr(C, align(32))]
struct Aligned<T: ?Sized>(T);

#[cfg(feature = "bundled-model")]
static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../models/gruff-9m-Q4_K_M.gguf"));

/// Opens the bundled model where it lies in the program, without a copy.
#[cfg(feature = "bundled-model")]
pub(crate) fn open() -> Result<Gguf> {
    Gguf::from_static(&MODEL.0).map_err(Error::from)
}

#[cfg(not(feature = "bundled-model"))]
pub(crate) fn open() -> Result<Gguf> {
    Err(Error::Option(
        "this build of gruff has no bundled model; name a model, or build gruff with the feature `bundled-model`"
            .to_owned(),
    ))
}
