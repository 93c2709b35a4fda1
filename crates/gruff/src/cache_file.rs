//! Caches in files.
//!
//! `gruffkv\0`, the version (u32), the length of a JSON header (u32), the header, then, sequence by sequence and layer
//! by layer, the values: keys and values of the used pages, or the slot of recurrent state; in the cache's type, little
//! endian. At the end the SHA-256 of all that came before.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use gruff_kernels::{CHUNK, DType, Tensor};
use gruff_models::fingerprint;
use half::f16;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cache::CachedSequence;
use crate::{AutoModelForCausalLM, Cache, Error, Result};

const MAGIC: &[u8; 8] = b"gruffkv\0";
const VERSION: u32 = 1;
/// Ids of some million tokens.
const LONGEST_HEADER: u32 = 64 << 20;
const DIGEST: u64 = 32;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    architecture: String,
    /// Of weights, adapters and number types.
    fingerprint: String,
    kv_dtype: String,
    rollback: usize,
    sequences: Vec<SavedSequence>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSequence {
    tokens: Vec<u32>,
    reached: usize,
}

pub(crate) fn save(cache: &Cache, model: &AutoModelForCausalLM, path: &Path) -> Result<()> {
    let io = |error: std::io::Error| Error::cache_file(path, format!("cannot be written: {error}"));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    let mut out = Hashing { inner: BufWriter::new(temporary), hash: Sha256::new() };
    let options = cache.caches().options();
    let header = Header {
        architecture: model.model().config().architecture.clone(),
        fingerprint: fingerprint(&**model.model())?,
        kv_dtype: options.kv_dtype.to_string(),
        rollback: options.rollback,
        sequences: cache
            .sequences()
            .iter()
            .map(|CachedSequence { tokens, reached }| SavedSequence {
                tokens: tokens.clone(),
                reached: *reached,
            })
            .collect(),
    };
    let header = serde_json::to_vec(&header).map_err(|error| io(error.into()))?;
    let length = u32::try_from(header.len()).ok().filter(|length| *length <= LONGEST_HEADER);
    let length =
        length.ok_or_else(|| Error::cache_file(path, "would have more tokens than a file can hold"))?;
    out.write_all(MAGIC).map_err(io)?;
    out.write_all(&VERSION.to_le_bytes()).map_err(io)?;
    out.write_all(&length.to_le_bytes()).map_err(io)?;
    out.write_all(&header).map_err(io)?;
    for sequence in 0..cache.batch() {
        for view in cache.views(sequence, cache.len(sequence))? {
            out.write_all(&to_bytes(&view)?).map_err(io)?;
        }
    }
    let Hashing { mut inner, hash } = out;
    inner.write_all(&hash.finalize()).map_err(io)?;
    let temporary = inner.into_inner().map_err(|error| io(error.into_error()))?;
    temporary.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

pub(crate) fn load(model: &AutoModelForCausalLM, path: &Path, capacity: usize) -> Result<Cache> {
    let refuse = |fault: String| Error::cache_file(path, fault);
    let io = |error: std::io::Error| Error::cache_file(path, format!("cannot be read: {error}"));
    let file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut input = Hashing { inner: BufReader::new(file), hash: Sha256::new() };
    let mut head = [0; 16];
    input.read_exact(&mut head).map_err(|_| refuse("is too short to be a cache of gruff's".to_owned()))?;
    if !head.starts_with(MAGIC) {
        return Err(refuse("is no cache of gruff's".to_owned()));
    }
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (version, length) = (number(8), number(12));
    if version != VERSION {
        return Err(refuse(format!(
            "is of version {version}; this gruff reads {VERSION}: compute the cache anew"
        )));
    }
    if length > LONGEST_HEADER || u64::from(length) > size {
        return Err(refuse(format!("says that its header has {length} bytes, of {size} in all")));
    }
    let mut header = vec![0; length as usize];
    input.read_exact(&mut header).map_err(io)?;
    let header: Header =
        serde_json::from_slice(&header).map_err(|error| refuse(format!("has a damaged header: {error}")))?;
    check(&header, model, capacity).map_err(refuse)?;

    let mut cache = Cache::with_rollback(model, header.sequences.len(), capacity, header.rollback)?;
    if cache.caches().options().kv_dtype.to_string() != header.kv_dtype {
        let own = cache.caches().options().kv_dtype;
        return Err(refuse(format!(
            "holds keys and values in {}, but the model is loaded for {own}",
            header.kv_dtype
        )));
    }
    let mut views = Vec::new();
    for (index, sequence) in header.sequences.iter().enumerate() {
        views.extend(cache.views(index, sequence.tokens.len())?);
    }
    let values: u64 = views.iter().map(|view| (view.len() * view.dtype().bytes()) as u64).sum();
    let expected = 16 + u64::from(length) + values + DIGEST;
    if size != expected {
        return Err(refuse(format!("has {size} bytes, but its header makes it {expected}; it is damaged")));
    }
    for view in &views {
        let mut bytes = vec![0; view.len() * view.dtype().bytes()];
        input.read_exact(&mut bytes).map_err(io)?;
        from_bytes(view, &bytes)?;
    }
    let Hashing { mut inner, hash } = input;
    let mut digest = [0; DIGEST as usize];
    inner.read_exact(&mut digest).map_err(io)?;
    if hash.finalize()[..] != digest {
        return Err(refuse("does not have the checksum that it states; it is damaged".to_owned()));
    }
    let own = |SavedSequence { tokens, reached }| CachedSequence { tokens, reached };
    cache.set_sequences(header.sequences.into_iter().map(own).collect());
    Ok(cache)
}

/// A header that this model and this capacity can honour.
fn check(header: &Header, model: &AutoModelForCausalLM, capacity: usize) -> Result<(), String> {
    let config = model.model().config();
    if header.architecture != config.architecture {
        return Err(format!("is of a {} model, not of {}", header.architecture, config.architecture));
    }
    if header.fingerprint != fingerprint(&**model.model()).map_err(|error| error.to_string())? {
        return Err("was made with another model: other weights, adapters or number types".to_owned());
    }
    if header.rollback > CHUNK {
        return Err(format!("says that {} tokens can be dropped; {CHUNK} are the most", header.rollback));
    }
    if header.sequences.is_empty() {
        return Err("holds no sequence".to_owned());
    }
    for (index, SavedSequence { tokens, reached }) in header.sequences.iter().enumerate() {
        if tokens.len() > capacity {
            return Err(format!(
                "holds {} tokens of sequence {index}; load it with a capacity of at least that, not {capacity}",
                tokens.len()
            ));
        }
        if *reached < tokens.len() || tokens.iter().any(|id| *id as usize >= config.vocab_size) {
            return Err(format!("holds a sequence {index} that this model cannot have had"));
        }
    }
    Ok(())
}

fn to_bytes(view: &Tensor) -> Result<Vec<u8>> {
    if view.dtype() == DType::U8 {
        return Ok(view.to_vec_u8()?);
    }
    let values = view.to_vec_f32()?;
    Ok(match view.dtype() {
        // Every f16 is an f32, so this is the value as it was.
        DType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    })
}

fn from_bytes(view: &Tensor, bytes: &[u8]) -> Result<()> {
    if view.dtype() == DType::U8 {
        return Ok(view.write_u8(bytes)?);
    }
    let values: Vec<f32> = match view.dtype() {
        DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    };
    Ok(view.write_f32(&values)?)
}

/// Hashes what passes.
struct Hashing<T> {
    inner: T,
    hash: Sha256,
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.hash.update(&bytes[..read]);
        Ok(read)
    }
}
