//! Unpacks blocks from standard input to little-endian `f32` on standard output, or packs such values.
//!
//! ```text
//! cargo run -p gruff-blocks --example blocks -- unpack Q4_K < packed > values
//! cargo run -p gruff-blocks --example blocks -- pack Q4_K < values > packed
//! cargo run -p gruff-blocks --example blocks -- quantize Q4_K 1024 [IMPORTANCE] < values > packed
//! ```
//!
//! `quantize` takes the length of a row and, if there is one, a file with the importance of its columns (`f32`); it
//! writes the time that it took to standard error.

use std::error::Error;
use std::io::{Read, Write};
use std::time::Instant;

use gruff_blocks::BlockType;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [direction, name, rest @ ..] = &arguments[..] else {
        return Err("usage: blocks unpack|pack|quantize TYPE [ROW [IMPORTANCE]]".into());
    };
    let block_type: BlockType = name.parse()?;
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let output = match direction.as_str() {
        "unpack" => {
            let values = block_type.unpack_to_vec(&input)?;
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        }
        "pack" => {
            let values = BlockType::F32.unpack_to_vec(&input)?;
            let mut packed = vec![0; block_type.row_bytes(values.len())?];
            block_type.pack(&values, &mut packed)?;
            packed
        }
        "quantize" => {
            let values = BlockType::F32.unpack_to_vec(&input)?;
            let row = rest.first().map_or(Ok(values.len()), |row| row.parse())?;
            let importance = rest.get(1).map(std::fs::read).transpose()?;
            let importance = importance.map(|bytes| BlockType::F32.unpack_to_vec(&bytes)).transpose()?;
            let mut packed = vec![0; block_type.row_bytes(values.len())?];
            let start = Instant::now();
            block_type.quantize(&values, row, importance.as_deref(), &mut packed)?;
            eprintln!("{}", start.elapsed().as_secs_f64());
            packed
        }
        _ => return Err(format!("cannot {direction}: the directions are unpack, pack and quantize").into()),
    };
    std::io::stdout().write_all(&output)?;
    Ok(())
}
