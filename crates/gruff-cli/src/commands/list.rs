use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use gruff::Hub;
use serde_json::json;

use crate::console::{Console, stdout};
use crate::size::Bytes;

/// List the models in the cache
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Cache folder instead of huggingface_hub's
    #[arg(long, value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let mut hub = Hub::builder();
        if let Some(folder) = self.cache_dir {
            hub = hub.cache_dir(folder);
        }
        let hub = hub.build()?;
        let files = hub.cache().list()?;
        let mut out = stdout();
        if self.json {
            let files: Vec<_> = files
                .iter()
                .map(|file| {
                    json!({
                        "id": file.id(),
                        "size": file.size,
                        "repo": file.repo.to_string(),
                        "file": file.file,
                        "commit": file.commit,
                        "refs": file.refs,
                        "path": file.path,
                    })
                })
                .collect();
            return Ok(writeln!(out, "{:#}", json!(files))?);
        }
        for file in &files {
            writeln!(out, "{:>11}  {}", Bytes(file.size), file.id())?;
        }
        let place = hub.cache().root().display();
        match files.len() {
            0 => console.note(format_args!("no models in {place}; `gruff download owner/repo` fetches one")),
            _ => console.detail(format_args!("cache: {place}")),
        }
        Ok(())
    }
}
