//! Writes a tiny model of Qwen3.5's architecture with random weights: nonsense to talk to, but everything that a
//! real one goes through.
//!
//! `cargo run --release -p gruff --example tiny_random -- tiny.gguf`

mod model;

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or("tiny.gguf".into());
    model::write(Path::new(&path))?;
    println!("{path}");
    Ok(())
}
