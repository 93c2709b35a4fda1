//! The commands, one file each.

pub(crate) mod bench;
mod chat;
mod compare;
mod completions;
mod convert;
mod dequantize;
mod detokenize;
mod doctor;
mod download;
mod edit;
mod embed;
mod fit;
mod imatrix;
mod inspect;
mod list;
mod logits;
mod merge;
mod perplexity;
mod quantize;
mod render;
pub(crate) mod run;
mod serve;
mod split;
mod tokenize;

use clap::{Parser, Subcommand};

use crate::console::{LogFormat, OutputArgs};

/// Run GGUF checkpoints with their weights packed.
#[derive(Debug, Parser)]
#[command(
    name = "gruff",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "A MODEL is bundled, a file, a folder, owner/repo, owner/repo:Q4_K_M, owner/repo:file.gguf \
                  or owner/repo@revision:file.gguf. Models from the Hub go to the cache that huggingface_hub uses.\n\n\
                  Examples:\n  \
                  gruff run unsloth/Qwen3.5-4B-GGUF \"Why is the sky blue?\"\n  \
                  gruff run model.gguf\n  \
                  gruff serve model.gguf\n  \
                  gruff chat localhost:8000\n  \
                  gruff inspect model.gguf --tensors"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Run>),
    Serve(Box<serve::Serve>),
    Chat(Box<chat::Chat>),
    Inspect(inspect::Inspect),
    Tokenize(tokenize::Tokenize),
    Detokenize(detokenize::Detokenize),
    Render(render::Render),
    Bench(Box<bench::Bench>),
    Logits(logits::Logits),
    Embed(embed::Embed),
    Perplexity(Box<perplexity::Perplexity>),
    Imatrix(imatrix::Imatrix),
    Compare(compare::Compare),
    Quantize(Box<quantize::Quantize>),
    Doctor(doctor::Doctor),
    Download(download::Download),
    Fit(fit::Fit),
    List(list::List),
    Convert(convert::Convert),
    Dequantize(dequantize::Dequantize),
    Split(split::Split),
    Merge(merge::Merge),
    Edit(edit::Edit),
    Completions(completions::Completions),
}

impl Command {
    /// How events are logged, where that is asked for.
    pub(crate) fn log_format(&self) -> Option<LogFormat> {
        match self {
            Command::Serve(serve) => serve.log_format(),
            _ => None,
        }
    }
}
