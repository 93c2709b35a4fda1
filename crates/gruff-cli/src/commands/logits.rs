use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use gruff::Forward;
use gruff_eval::WholeFile;
use serde_json::json;

use crate::args::{ComputeArgs, SourceArgs, parse_ids, read_file};
use crate::console::Console;
use crate::failure::usage;

/// Write the raw logits of a list of tokens
///
/// For checking conversions: no sampling, no template, nothing added to the ids. FILE.npy holds f32, of shape
/// vocabulary, or ids x vocabulary with --all; FILE.json holds an object with ids and logits. --dtype f32 keeps
/// activations, keys and values exact.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff logits model.gguf --ids 1,2,3 --out logits.npy\n  \
                  gruff tokenize model.gguf --ids \"Hello\" | gruff logits model.gguf --ids - --all --dtype f32 --out all.npy")]
pub(crate) struct Logits {
    /// The model
    model: String,
    /// The ids, separated by commas; or a file with them, - for standard input
    #[arg(long, value_name = "IDS|FILE", allow_negative_numbers = true)]
    ids: String,
    /// The logits after every id, not the last one only
    #[arg(long)]
    all: bool,
    /// Where to write: a file that ends in .npy or .json
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// How logits are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Npy,
    Json,
}

impl Logits {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let format = match self.out.extension().and_then(|name| name.to_str()) {
            Some("npy") => Format::Npy,
            Some("json") => Format::Json,
            _ => return usage(format!("--out {} ends neither in .npy nor in .json", self.out.display())),
        };
        let ids = read_ids(&self.ids)?;
        if ids.is_empty() {
            return usage("--ids holds no token ids; give at least one");
        }
        self.compute.check_room(ids.len())?;
        let checkpoint = self.source.open(&self.model, console)?;
        let model = self.compute.load(&self.source, &checkpoint, console)?;
        let mut sequence = Forward::new(&model, ids.len())?;
        let width = model.model().config().vocab_size;
        let cannot = || format!("{} cannot be written", self.out.display());
        let mut out = WholeFile::create(&self.out).with_context(cannot)?;
        let shape = if self.all { vec![ids.len(), width] } else { vec![width] };
        begin(&mut out, format, &shape, &ids).with_context(cannot)?;
        let mut first = true;
        let mut row = |row: &[f32]| -> anyhow::Result<()> {
            match format {
                Format::Npy => row.iter().try_for_each(|value| out.write_all(&value.to_le_bytes())),
                Format::Json => {
                    let comma = if std::mem::take(&mut first) { "" } else { ",\n" };
                    write!(out, "{comma}{}", json!(row))
                }
            }
            .with_context(cannot)
        };
        if self.all {
            sequence.push_all(&ids, &mut row)?;
        } else {
            row(&sequence.push(&ids)?)?;
        }
        if format == Format::Json {
            writeln!(out, "{}}}", if self.all { "]" } else { "" }).with_context(cannot)?;
        }
        out.put_in_place().with_context(cannot)?;
        console.note(format_args!("{}: f32 {shape:?}", self.out.display()));
        Ok(())
    }
}

/// Ids written out, or in a file.
fn read_ids(argument: &str) -> anyhow::Result<Vec<u32>> {
    let path = Path::new(argument);
    if argument != "-" && !path.exists() {
        return match parse_ids(argument) {
            Ok(ids) => Ok(ids),
            Err(fault) => usage(format!("--ids: {fault}, and there is no file {argument:?}")),
        };
    }
    match parse_ids(&read_file(path)?) {
        Ok(ids) => Ok(ids),
        Err(fault) => bail!("{}: {fault}", path.display()),
    }
}

/// Writes what stands before the first row.
fn begin(out: &mut impl Write, format: Format, shape: &[usize], ids: &[u32]) -> std::io::Result<()> {
    match format {
        Format::Npy => out.write_all(&npy_header(shape)),
        Format::Json => write!(
            out,
            "{{\"ids\":{},\"shape\":{},\"logits\":{}",
            json!(ids),
            json!(shape),
            if shape.len() > 1 { "[" } else { "" }
        ),
    }
}

/// The header of a .npy file of f32 in C order: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.
fn npy_header(shape: &[usize]) -> Vec<u8> {
    const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
    /// Data begin at a multiple of this.
    const ALIGNMENT: usize = 64;
    let sizes: Vec<String> = shape.iter().map(|size| format!("{size},")).collect();
    let mut dict = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", sizes.join(" "));
    let before = MAGIC.len() + 2;
    let padding = (before + dict.len() + 1).next_multiple_of(ALIGNMENT) - (before + dict.len() + 1);
    dict.extend(std::iter::repeat_n(' ', padding));
    dict.push('\n');
    let mut header = MAGIC.to_vec();
    // A few dimensions never fill 64 KiB.
    header.extend_from_slice(&(dict.len() as u16).to_le_bytes());
    header.extend_from_slice(dict.as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_npy_header_is_numpys() {
        let header = npy_header(&[3, 5]);
        assert_eq!(header.len() % 64, 0);
        let text = std::str::from_utf8(&header[10..]).unwrap();
        assert_eq!(usize::from(u16::from_le_bytes([header[8], header[9]])), text.len());
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5,), }"), "{text}");
        assert!(text.ends_with('\n'));
    }
}
