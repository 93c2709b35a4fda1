//! Downloads models by id and prints where their files are.
//!
//! ```text
//! cargo run -p gruff-hub --example download -- unsloth/Qwen3.5-4B-GGUF:Q4_K_M
//! cargo run -p gruff-hub --example download -- --list
//! ```
//!
//! The environment variables of huggingface_hub apply: `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, …

use std::process::ExitCode;
use std::sync::Arc;

use gruff_hub::{Error, Hub, ModelId, Progress};

/// Tells the beginning and the end of each file on standard error.
struct Lines;

impl Progress for Lines {
    fn start(&self, name: &str, total: Option<u64>, done: u64) {
        let total = total.map_or("an unknown number of".to_string(), |bytes| bytes.to_string());
        eprintln!("{name}: {done} of {total} bytes are here");
    }

    fn advance(&self, _bytes: u64) {}

    fn finish(&self) {
        eprintln!("whole and checked");
    }

    fn notice(&self, message: &str) {
        eprintln!("{message}");
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    let hub = Hub::builder().progress(Arc::new(Lines)).build()?;
    for argument in std::env::args().skip(1) {
        if argument == "--list" {
            for file in hub.cache().list()? {
                println!("{}\t{}", file.size, file.id());
            }
            continue;
        }
        let model = hub.resolve(&ModelId::parse(&argument)?)?;
        for path in model.parts.iter().chain(&model.generation_config) {
            println!("{}", path.display());
        }
    }
    Ok(())
}
