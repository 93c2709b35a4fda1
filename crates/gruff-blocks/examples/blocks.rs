//! Unpacks blocks from standard input to little-endian `f32` on standard output, or packs such values.
//!
//! ```text
//! cargo run -p gruff-blocks --example blocks -- unpack Q4_K < packed > values
//! cargo run -p gruff-blocks --example blocks -- pack Q4_K < values > packed
//! ```

use std::error::Error;
use std::io::{Read, Write};

use gruff_blocks::BlockType;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [direction, name] = &arguments[..] else { return Err("usage: blocks unpack|pack TYPE".into()) };
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
        _ => return Err(format!("cannot {direction}: the directions are unpack and pack").into()),
    };
    std::io::stdout().write_all(&output)?;
    Ok(())
}
