//! The file of log-probabilities that llama-perplexity writes with `--save-all-logits`.
//!
//! Little-endian: `_logits_`, then as i32 the tokens of a window, the size of the vocabulary, the number of
//! windows, and the tokens of all windows. Then for each window and each position scored in it
//! ([`Windows`](crate::Windows) without a stride) a row: scale and least log-probability as f32, a u16 for each
//! id, and one more u16 where the vocabulary is odd. ln p(id) = scale * u16 + least.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use crate::softmax::LogSoftmax;
use crate::{Error, Result, WholeFile};

const MAGIC: &[u8; 8] = b"_logits_";
/// Magic and three sizes.
const HEADER: u64 = 20;
/// Log-probabilities below the likeliest id's by more than this are one.
const RANGE: f32 = 16.0;
const LEVELS: f32 = 65535.0;

/// Bytes of a row.
fn row_bytes(vocabulary: usize) -> usize {
    2 * (vocabulary.next_multiple_of(2) + 4)
}

/// Rows of a window.
fn rows(ctx: usize) -> usize {
    ctx - 1 - ctx / 2
}

/// A row of logits as the file has it.
pub(crate) fn encode_row(logits: &[f32], softmax: &LogSoftmax) -> Vec<u8> {
    let least = logits.iter().copied().fold(f32::INFINITY, f32::min).max(softmax.max - RANGE);
    let scale = (softmax.max - least) / LEVELS;
    let log_least = softmax.log_prob(least) as f32;
    let mut row = Vec::with_capacity(row_bytes(logits.len()));
    row.extend_from_slice(&scale.to_le_bytes());
    row.extend_from_slice(&log_least.to_le_bytes());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for logit in logits {
        let level = (inverse * (logit - least)).round_ties_even().clamp(0.0, LEVELS) as u16;
        row.extend_from_slice(&level.to_le_bytes());
    }
    row.resize(row_bytes(logits.len()), 0);
    row
}

/// The log-probabilities of one position, as a file has them.
#[derive(Clone, Copy)]
pub(crate) struct SavedRow<'a> {
    scale: f32,
    least: f32,
    levels: &'a [u8],
}

impl<'a> SavedRow<'a> {
    fn new(row: &'a [u8], vocabulary: usize) -> Option<Self> {
        let (scale, rest) = row.split_first_chunk()?;
        let (least, rest) = rest.split_first_chunk()?;
        let (scale, least) = (f32::from_le_bytes(*scale), f32::from_le_bytes(*least));
        // The greatest value that the row can express is a logarithm of a probability, but for rounding.
        let greatest = scale * LEVELS + least;
        Some(Self { scale, least, levels: rest.get(..2 * vocabulary)? })
            .filter(|_| scale >= 0.0 && least.is_finite() && greatest.is_finite() && greatest < 0.1)
    }

    /// ln p of each id.
    pub(crate) fn log_probs(self) -> impl Iterator<Item = f32> + use<'a> {
        let level = |pair: &[u8]| f32::from(u16::from_le_bytes([pair[0], pair[1]]));
        self.levels.chunks_exact(2).map(move |pair| self.scale * level(pair) + self.least)
    }
}

/// Writes such a file. Dropped before [`finish`](Self::finish), it leaves nothing behind.
pub struct LogitsWriter {
    path: PathBuf,
    out: WholeFile,
}

impl LogitsWriter {
    /// Begins the file at `path` for windows of `ctx` tokens, given one after the other.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be written, [`Error::LogitsFile`] for sizes that it cannot express.
    pub fn create(path: &Path, ctx: usize, vocabulary: usize, tokens: &[u32]) -> Result<Self> {
        let size = |value: usize| {
            let fault = format!("{value} is more than the format can express");
            i32::try_from(value).map_err(|_| Error::LogitsFile { path: path.to_owned(), fault })
        };
        let mut header = MAGIC.to_vec();
        for value in [ctx, vocabulary, tokens.len() / ctx] {
            header.extend_from_slice(&size(value)?.to_le_bytes());
        }
        header.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        let out = WholeFile::create(path).map_err(Error::write(path))?;
        let mut writer = Self { path: path.to_owned(), out };
        writer.write_row(&header)?;
        Ok(writer)
    }

    pub(crate) fn write_row(&mut self, row: &[u8]) -> Result<()> {
        self.out.write_all(row).map_err(Error::write(&self.path))
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be written; nothing is put in place then.
    pub fn finish(self) -> Result<()> {
        let Self { path, out } = self;
        out.put_in_place().map_err(Error::write(&path))
    }
}

/// Reads such a file, a window at a time.
pub struct LogitsReader {
    path: PathBuf,
    input: BufReader<File>,
    ctx: usize,
    vocabulary: usize,
    tokens: Vec<u32>,
    window: Vec<u8>,
}

impl LogitsReader {
    /// Opens a file and reads its tokens. A file that is too short is found out here, before anything is
    /// computed.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read, [`Error::LogitsFile`] when it is something else, cut off, or
    /// contradicts itself.
    pub fn open(path: &Path) -> Result<Self> {
        let fail = |fault: String| Error::LogitsFile { path: path.to_owned(), fault };
        let file = File::open(path).map_err(Error::read(path))?;
        let len = file.metadata().map_err(Error::read(path))?.len();
        let mut input = BufReader::with_capacity(1 << 20, file);
        let mut header = [0; HEADER as usize];
        let foreign = || {
            "this is no file of saved logits: `gruff perplexity --save-logits` and llama-perplexity's \
             --save-all-logits write them"
                .to_owned()
        };
        if len < HEADER {
            return Err(fail(foreign()));
        }
        input.read_exact(&mut header).map_err(Error::read(path))?;
        if !header.starts_with(MAGIC) {
            return Err(fail(foreign()));
        }
        let size = |at: usize| {
            let value = i32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            usize::try_from(value).ok().filter(|value| *value > 0)
        };
        let sizes = (size(8).filter(|ctx| *ctx > 2), size(12), size(16));
        let (Some(ctx), Some(vocabulary), Some(windows)) = sizes else {
            return Err(fail(format!("its header is damaged: window, vocabulary or windows are {sizes:?}")));
        };
        // Each factor is below 2^31, so the products fit into 128 bits.
        let rows_in_all = windows as u128 * rows(ctx) as u128;
        let needed = u128::from(HEADER)
            + 4 * ctx as u128 * windows as u128
            + rows_in_all * row_bytes(vocabulary) as u128;
        if needed != u128::from(len) {
            let word =
                if u128::from(len) < needed { "it is cut off" } else { "it does not match its header" };
            return Err(fail(format!(
                "{word}: {windows} windows of {ctx} tokens over {vocabulary} ids make {needed} bytes, it has {len}; \
                 write it again"
            )));
        }
        // The file is at least that long, so this is no more than the file itself.
        let mut bytes = vec![0; 4 * ctx * windows];
        input.read_exact(&mut bytes).map_err(Error::read(path))?;
        let tokens: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|token| u32::from_le_bytes([token[0], token[1], token[2], token[3]]))
            .collect();
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(fail(format!(
                "it is damaged: token {token} is outside its vocabulary of {vocabulary}"
            )));
        }
        let window = vec![0; rows(ctx) * row_bytes(vocabulary)];
        Ok(Self { path: path.to_owned(), input, ctx, vocabulary, tokens, window })
    }

    /// Tokens in a window.
    pub fn ctx(&self) -> usize {
        self.ctx
    }

    /// Ids that have a log-probability.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The tokens of all windows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Reads the next window; its rows come from [`row`](Self::row) then.
    pub(crate) fn next_window(&mut self) -> Result<()> {
        self.input.read_exact(&mut self.window).map_err(Error::read(&self.path))
    }

    /// Row `index` of the window that was read last.
    pub(crate) fn row(&self, index: usize) -> Result<SavedRow<'_>> {
        let row = self.window.chunks_exact(row_bytes(self.vocabulary)).nth(index);
        row.and_then(|row| SavedRow::new(row, self.vocabulary)).ok_or_else(|| Error::LogitsFile {
            path: self.path.clone(),
            fault: format!("it is damaged: row {index} of a window holds no numbers; write it again"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(path: &Path, vocabulary: usize) {
        let mut writer = LogitsWriter::create(path, 8, vocabulary, &[1; 16]).unwrap();
        for row in 0..6 {
            let logits: Vec<f32> = (0..vocabulary).map(|id| ((id * 7 + row) % 5) as f32).collect();
            writer.write_row(&encode_row(&logits, &LogSoftmax::new(&logits).unwrap())).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        for vocabulary in [5, 6] {
            let path = folder.path().join("base");
            write(&path, vocabulary);
            let mut reader = LogitsReader::open(&path).unwrap();
            assert_eq!((reader.ctx(), reader.vocabulary(), reader.tokens()), (8, vocabulary, &[1; 16][..]));
            reader.next_window().unwrap();
            reader.next_window().unwrap();
            let sum: f32 = reader.row(2).unwrap().log_probs().map(f32::exp).sum();
            assert!((sum - 1.0).abs() < 1e-3, "{sum}");
            assert!(reader.row(3).is_err());
        }
    }

    #[test]
    fn damage_is_found_before_anything_is_computed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base");
        write(&path, 5);
        let whole = std::fs::read(&path).unwrap();
        let message = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            LogitsReader::open(&path).err().unwrap().to_string()
        };
        assert!(message(&whole[..whole.len() - 1]).contains("cut off"));
        assert!(message(&whole[..25]).contains("cut off"));
        assert!(message(b"_logits_").contains("no file of saved logits"));
        assert!(message(&[0; 100]).contains("no file of saved logits"));
        let mut negative = whole.clone();
        negative[11] = 0x80;
        assert!(message(&negative).contains("header is damaged"));
        let mut huge = whole.clone();
        huge[8..20]
            .copy_from_slice(&[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]);
        assert!(message(&huge).contains("cut off"));
        let mut token = whole.clone();
        token[20] = 9;
        assert!(message(&token).contains("token 9"));
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        drop(LogitsWriter::create(&folder.path().join("base"), 8, 5, &[1; 16]).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    proptest! {
        #[test]
        fn rows_keep_log_probabilities(logits in prop::collection::vec(-40.0_f32..40.0, 1..200)) {
            let softmax = LogSoftmax::new(&logits).unwrap();
            let row = encode_row(&logits, &softmax);
            prop_assert_eq!(row.len(), row_bytes(logits.len()));
            let saved = SavedRow::new(&row, logits.len()).unwrap();
            for (saved, logit) in saved.log_probs().zip(&logits) {
                let exact = softmax.log_prob(logit.max(softmax.max - RANGE)) as f32;
                prop_assert!((saved - exact).abs() < 2e-4, "{} {}", saved, exact);
            }
        }
    }
}
