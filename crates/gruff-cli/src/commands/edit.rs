use std::path::PathBuf;

use clap::Args;
use gruff::floors::convert::{Assignment, Edit as Changes, Replaced, edit, finish_edit};

use crate::args::read_file;
use crate::console::Console;
use crate::failure::usage;

/// Change the metadata of a GGUF file
///
/// Only the header is written if the new one has room; otherwise the file is written anew beside the old one and
/// renamed. An edit that was interrupted while it wrote (a power cut) is finished by the next one, or by `gruff edit
/// FILE` alone. A key that is there keeps its type; KEY:TYPE=VALUE states another (uint32, float32, string, …). Arrays are
/// written as in JSON.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff edit model.gguf --chat-template template.jinja\n  \
                  gruff edit model.gguf --set general.name=\"My model\" --set qwen35.context_length=8192\n  \
                  gruff edit model.gguf --remove general.size_label --out other.gguf")]
pub(crate) struct Edit {
    /// The file; of a split model, any
    file: PathBuf,
    /// Set a key
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Assignment>,
    /// Take a key away
    #[arg(long, value_name = "KEY")]
    remove: Vec<String>,
    /// Take the chat template from a file, - for standard input
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Write the changed model here instead
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace the file of --out if it is there
    #[arg(long, requires = "out")]
    overwrite: bool,
}

impl Edit {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let nothing = self.set.is_empty() && self.remove.is_empty() && self.chat_template.is_none();
        // Without --out the file is to be changed, so it may be mended.
        if self.out.is_none() && finish_edit(&self.file)? {
            console.note(format_args!("{}: an edit that was interrupted is finished", self.file.display()));
            if nothing {
                return Ok(());
            }
        }
        if nothing {
            return usage("nothing to change; give --set, --remove or --chat-template");
        }
        if let Some(out) = self.out.as_ref().filter(|out| out.exists() && !self.overwrite) {
            anyhow::bail!("{} exists already; give --overwrite to replace it", out.display());
        }
        let chat_template = self.chat_template.as_deref().map(read_file).transpose()?;
        let changes = Changes { set: self.set, remove: self.remove, chat_template };
        let how = match edit(&self.file, self.out.as_deref(), &changes)? {
            Replaced::InPlace => "changed in place",
            Replaced::Rewritten => "written anew",
        };
        console.note(format_args!("{}: {how}", self.out.as_ref().unwrap_or(&self.file).display()));
        Ok(())
    }
}
