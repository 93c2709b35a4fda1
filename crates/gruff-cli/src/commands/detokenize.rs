use std::io::Write;

use anyhow::bail;
use clap::Args;

use crate::args::{SourceArgs, parse_ids, read_stdin};
use crate::console::{Console, stdout};
use crate::failure::usage;

/// Show the text of token ids
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff detokenize model.gguf 9906 11 1917 0\n  \
                  gruff tokenize model.gguf - --ids < book.txt | gruff detokenize model.gguf -")]
pub(crate) struct Detokenize {
    /// The model; only its header is read
    model: String,
    /// The ids, separated by spaces or commas; - or none for standard input
    #[arg(allow_negative_numbers = true)]
    ids: Vec<String>,
    /// Leave special tokens out
    #[arg(long)]
    skip_special: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Detokenize {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let from_stdin = self.ids.is_empty() || self.ids == ["-"];
        let ids = if from_stdin {
            match parse_ids(&read_stdin()?) {
                Ok(ids) => ids,
                Err(fault) => bail!("standard input: {fault}"),
            }
        } else {
            match parse_ids(&self.ids.join(" ")) {
                Ok(ids) => ids,
                Err(fault) => return usage(fault),
            }
        };
        let checkpoint = self.source.open(&self.model, console)?;
        let tokenizer = self.source.tokenizer(&checkpoint, console)?;
        let size = tokenizer.tokenizer().vocab_size();
        if let Some(id) = ids.iter().find(|id| **id as usize >= size) {
            bail!("token id {id} is outside the vocabulary of {size} of {}", self.model);
        }
        let text = tokenizer.decode(&ids, self.skip_special);
        let mut out = stdout();
        out.write_text(&text)?;
        if out.is_terminal() && !text.ends_with('\n') {
            writeln!(out)?;
        }
        Ok(out.flush()?)
    }
}
