//! Logits of a list of token ids, for comparing with other programs.
//!
//! ```text
//! cargo run -p gruff-models --example logits -- MODEL.gguf --ids 1,2,3 --out logits.npy
//!     [--split N]          steps of N tokens instead of one step
//!     [--activations f32]  exact products and an f32 cache (default: int8 and f16)
//!     [--device reference]
//! ```
//!
//! The file is NumPy's, f32 `[ids, vocabulary]`.

use std::error::Error;
use std::io::Write;

use gruff_kernels::{Activations, CpuOptions, Device, KvDtype, PAGE_LEN, Step, StepSequence, StepTokens};
use gruff_models::CacheOptions;

struct Options {
    model: String,
    ids: Vec<u32>,
    out: String,
    split: usize,
    activations: Activations,
    reference: bool,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        model: String::new(),
        ids: Vec::new(),
        out: String::new(),
        split: usize::MAX,
        activations: Activations::Int8,
        reference: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--ids" => options.ids = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--out" => options.out = value()?,
            "--split" => options.split = value()?.parse()?,
            "--activations" => {
                options.activations = match value()?.as_str() {
                    "f32" => Activations::F32,
                    "int8" => Activations::Int8,
                    other => return Err(format!("--activations is f32 or int8, not {other}").into()),
                }
            }
            "--device" => options.reference = value()? == "reference",
            _ => options.model = arg,
        }
    }
    if options.model.is_empty() || options.ids.is_empty() || options.out.is_empty() || options.split == 0 {
        return Err("usage: logits MODEL.gguf --ids 1,2,3 --out logits.npy".into());
    }
    Ok(options)
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let device = if options.reference {
        Device::reference(options.activations)
    } else {
        Device::cpu(CpuOptions { activations: options.activations, ..CpuOptions::default() })?
    };
    let model = gruff_models::load(&gruff_gguf::Gguf::open(&options.model)?, &device)?;
    let pages = options.ids.len().div_ceil(PAGE_LEN);
    let kv_dtype = if options.activations == Activations::F32 { KvDtype::F32 } else { KvDtype::F16 };
    let mut caches = model.new_caches(&CacheOptions { kv_dtype, pages, slots: 1, rollback: 0 })?;

    let mut logits: Vec<f32> = Vec::new();
    let mut past = 0;
    for ids in options.ids.chunks(options.split) {
        let sequence = StepSequence { len: ids.len(), past, slot: 0, pages: (0..pages as u32).collect() };
        let line: Vec<u32> = (past..past + ids.len()).map(|position| position as u32).collect();
        let step = Step::new(
            StepTokens::Ids(ids.to_vec()),
            [line.clone(), line.clone(), line],
            vec![sequence],
            (0..ids.len() as u32).collect(),
        )?;
        logits.extend(model.forward(&step, &mut caches)?.to_vec_f32()?);
        past += ids.len();
    }
    write_npy(&options.out, &logits, options.ids.len(), model.config().vocab_size)?;
    eprintln!("{}: {} of {} logits on {}", options.out, past, model.config().vocab_size, device.name());
    Ok(())
}

/// Version 1.0 of NumPy's format: magic, header length, header padded to 64 bytes, values.
fn write_npy(path: &str, values: &[f32], rows: usize, columns: usize) -> std::io::Result<()> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let preamble = 10;
    while (preamble + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    file.write_all(b"\x93NUMPY\x01\x00")?;
    file.write_all(&(header.len() as u16).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for value in values {
        file.write_all(&value.to_le_bytes())?;
    }
    file.flush()
}
