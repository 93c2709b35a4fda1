//! Prints the token ids of standard input, one line for each text.
//!
//! `tokenize FILE.gguf [--add-special] [--parse-special] [--pre NAME] [--separator LINE] < TEXT`

use std::io::Read;

use gruff_text::{EncodeOptions, Tokenizer, TokenizerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut file = None;
    let mut options = TokenizerOptions::new();
    let mut encode = EncodeOptions::default();
    let mut separator = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--add-special" => encode.add_special = true,
            "--parse-special" => encode.parse_special = true,
            "--pre" => options.pre = arguments.next(),
            "--separator" => separator = arguments.next(),
            _ => file = Some(argument),
        }
    }
    let file = file.ok_or("which GGUF file?")?;
    let started = std::time::Instant::now();
    let gguf = gruff_gguf::Gguf::open(&file)?;
    let opened = started.elapsed();
    let tokenizer = Tokenizer::from_gguf(gguf.metadata(), &options)?;
    eprintln!("opened in {opened:?}, tokenizer ready {:?} later", started.elapsed() - opened);
    for warning in tokenizer.warnings() {
        eprintln!("{warning}");
    }

    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let texts: Vec<&str> = match &separator {
        Some(line) => input.split(&format!("\n{line}\n")).collect(),
        None => vec![&input],
    };
    let started = std::time::Instant::now();
    let all: Vec<Vec<u32>> =
        texts.iter().map(|text| tokenizer.encode(text, encode)).collect::<Result<_, _>>()?;
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{} bytes in {seconds:.3} s, {:.1} MB/s", input.len(), input.len() as f64 / seconds / 1e6);
    for ids in all {
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        println!("{}", words.join(" "));
    }
    Ok(())
}
