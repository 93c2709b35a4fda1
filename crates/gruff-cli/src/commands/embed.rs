use std::io::Write;

use clap::{Args, ValueEnum};
use gruff::{EmbeddingOptions, Pooling};
use serde_json::json;

use crate::args::{ComputeArgs, SourceArgs, read_stdin};
use crate::console::{Console, stdout};
use crate::failure::usage;

/// Turn texts into vectors
///
/// From the last layer's hidden states behind the final norm, of any model. Prints a line of numbers for each text.
/// Without TEXT, or with `-`, every line of standard input is a text. Vectors have length 1 unless asked otherwise, so
/// that a product of two is their cosine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff embed model.gguf \"A cat\" \"A dog\"\n  \
                  gruff embed model.gguf --pooling mean --json - < lines.txt")]
pub(crate) struct Embed {
    /// The model
    model: String,
    /// The texts, or - for the lines of standard input
    #[arg(allow_negative_numbers = true)]
    texts: Vec<String>,
    /// Which hidden states become a text's vector
    #[arg(long, value_enum, default_value_t)]
    pooling: PoolingArg,
    /// Leave the vectors as long as they are
    #[arg(long)]
    no_normalize: bool,
    /// Print a JSON object, as OpenAI's embeddings endpoint gives it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum PoolingArg {
    /// The last token's, which has seen the whole text
    #[default]
    Last,
    /// The mean over all tokens
    Mean,
    /// The first token's, where the model was trained for it
    Cls,
}

impl From<PoolingArg> for Pooling {
    fn from(pooling: PoolingArg) -> Self {
        match pooling {
            PoolingArg::Last => Pooling::Last,
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::Cls => Pooling::Cls,
        }
    }
}

impl Embed {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let texts = match self.texts.as_slice() {
            [] => read_stdin()?.lines().map(str::to_owned).collect(),
            [only] if only == "-" => read_stdin()?.lines().map(str::to_owned).collect(),
            texts => texts.to_vec(),
        };
        if texts.is_empty() {
            return usage("there is no text; give at least one");
        }
        let checkpoint = self.source.open(&self.model, console)?;
        let tokenizer = self.source.tokenizer(&checkpoint, console)?;
        let model = self.compute.load(&self.source, &checkpoint, console)?;
        let ids = texts.iter().map(|text| tokenizer.encode(text)).collect::<Result<Vec<_>, _>>()?;
        let tokens: usize = ids.iter().map(Vec::len).sum();
        let options = EmbeddingOptions { pooling: self.pooling.into(), normalize: !self.no_normalize };
        let embeddings = model.embed(ids, &options)?;
        let mut out = std::io::BufWriter::new(stdout());
        if self.json {
            let data: Vec<_> = embeddings
                .iter()
                .enumerate()
                .map(|(index, embedding)| json!({ "object": "embedding", "index": index, "embedding": embedding }))
                .collect();
            let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
            writeln!(
                out,
                "{}",
                json!({ "object": "list", "model": self.model, "data": data, "usage": usage })
            )?;
        } else {
            for embedding in &embeddings {
                let numbers: Vec<String> = embedding.iter().map(f32::to_string).collect();
                writeln!(out, "{}", numbers.join(" "))?;
            }
        }
        out.flush()?;
        let width = embeddings.first().map_or(0, Vec::len);
        console.note(format_args!("{} texts, {tokens} tokens, {width} numbers each", texts.len()));
        Ok(())
    }
}
