//! Unpacks blocks from standard input to little-endian `f32` on standard output.
//!
//! ```text
//! cargo run -p gruff-blocks --example unpack -- Q4_K < packed > values
//! ```

use std::error::Error;
use std::io::{Read, Write};

use gruff_blocks::BlockType;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: unpack TYPE < packed > values")?;
    let block_type: BlockType = name.parse()?;
    let mut packed = Vec::new();
    std::io::stdin().read_to_end(&mut packed)?;
    let values = block_type.unpack_to_vec(&packed)?;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    std::io::stdout().write_all(&bytes)?;
    Ok(())
}
