use std::io::Write;

use clap::Args;
use gruff::floors::text::EncodeOptions;
use serde_json::json;

use crate::args::{SourceArgs, read_stdin, text_or_stdin};
use crate::console::{Console, stdout};

/// Show the token ids of a text
///
/// Without TEXT, or with `-`, the text is standard input, byte for byte. Special tokens are neither added nor
/// recognised in the text unless asked for.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff tokenize model.gguf \"Hello, world!\"\n  \
                  gruff tokenize model.gguf - --ids < book.txt\n  \
                  gruff tokenize model.gguf --parse-special --add-special \"<|im_start|>user\"")]
pub(crate) struct Tokenize {
    /// The model; only its header is read
    model: String,
    /// The text, or - for standard input
    #[arg(allow_negative_numbers = true)]
    text: Option<String>,
    /// Print just the ids, separated by spaces
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print a JSON object with ids and tokens
    #[arg(long)]
    json: bool,
    /// Add the special tokens with which the model's texts begin and end
    #[arg(long)]
    add_special: bool,
    /// Read special tokens written in the text as those tokens
    #[arg(long)]
    parse_special: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Tokenize {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let checkpoint = self.source.open(&self.model, console)?;
        let tokenizer = self.source.tokenizer(&checkpoint, console)?;
        let text = match &self.text {
            Some(text) => text_or_stdin(text)?,
            None => read_stdin()?,
        };
        let tokenizer = tokenizer.tokenizer();
        let options = EncodeOptions { add_special: self.add_special, parse_special: self.parse_special };
        let ids = tokenizer.encode(&text, options)?;
        let mut out = std::io::BufWriter::new(stdout());
        let piece = |id: u32| String::from_utf8_lossy(&tokenizer.token_to_bytes(id)).into_owned();
        if self.json {
            let tokens: Vec<_> = ids.iter().map(|id| json!({ "id": id, "text": piece(*id) })).collect();
            writeln!(out, "{}", json!({ "count": ids.len(), "ids": ids, "tokens": tokens }))?;
        } else if self.ids {
            let words: Vec<String> = ids.iter().map(u32::to_string).collect();
            writeln!(out, "{}", words.join(" "))?;
        } else {
            for id in &ids {
                writeln!(out, "{id:>7}  {:?}", piece(*id))?;
            }
            console.note(format_args!("{} tokens, {} bytes", ids.len(), text.len()));
        }
        Ok(out.flush()?)
    }
}
