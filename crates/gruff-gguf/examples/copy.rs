//! Writes a model again: in the other byte order, in parts, or whole from its parts.
//!
//! `cargo run -p gruff-gguf --example copy -- IN OUT [--big-endian] [--split-tensors N] [--split-bytes N]`

use std::error::Error;

use gruff_gguf::{Endian, Gguf, Split, Writer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = Vec::new();
    let mut endian = Endian::Little;
    let mut split = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().ok_or(format!("{argument} wants a number"));
        match argument.as_str() {
            "--big-endian" => endian = Endian::Big,
            "--split-tensors" => split = Some(Split::Tensors(number()?.parse()?)),
            "--split-bytes" => split = Some(Split::Bytes(number()?.parse()?)),
            _ => paths.push(argument),
        }
    }
    let [input, output] = paths.as_slice() else { return Err("usage: copy IN OUT [OPTIONS]".into()) };
    for path in copy(&Gguf::open(input)?, output, endian, split)? {
        println!("{}", path.display());
    }
    Ok(())
}

fn copy(
    model: &Gguf,
    output: &str,
    endian: Endian,
    split: Option<Split>,
) -> Result<Vec<std::path::PathBuf>, gruff_gguf::Error> {
    let mut writer = Writer::new(model.metadata().clone()).version(model.version().max(2))?.endian(endian);
    if let Some(split) = split {
        writer = writer.split(split);
    }
    for tensor in model.tensors() {
        writer.add(tensor.name(), tensor.shape(), tensor.block_type()?)?;
    }
    let mut file = writer.create(output)?;
    for tensor in model.tensors() {
        file.write(tensor.name(), &model.data(tensor)?)?;
    }
    file.finish()
}
