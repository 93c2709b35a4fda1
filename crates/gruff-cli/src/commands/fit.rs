use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, bail};
use clap::Args;
use gruff::floors::hub::{GgufSet, RepoFile, RepoListing};
use gruff::floors::kernels::bandwidth;
use gruff::{Fit as Found, Machine, ModelId};
use serde_json::json;

use crate::args::SourceArgs;
use crate::console::Console;
use crate::failure::paragraph;
use crate::size::{Bytes, parse_bytes};

/// Show which quantization of a model suits this machine
///
/// For each variant in a repository or folder, or for one file: its size, the memory that it takes with weights, keys,
/// values and state at that context, whether that is there, and how fast tokens can come at most (the measured memory
/// bandwidth over the bytes that a token reads). Of files on the Hub the headers alone are read. LOSS is what the
/// quantization costs Llama 3 8B in perplexity, as llama-quantize lists it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff fit unsloth/Qwen3.5-4B-GGUF\n  \
                  gruff fit unsloth/Qwen3.5-4B-GGUF --ctx 32768 --memory 8G\n  \
                  gruff fit ./models --json\n  gruff fit model.gguf")]
pub(crate) struct Fit {
    /// A repository, a folder or a file
    model: String,
    /// Tokens that prompt and answer may have together, where a model was trained for so many
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    ctx: u32,
    /// Memory that may be used, such as 8G [default: what the system has available]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Fit {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let memory = self.memory.or_else(gruff::system::available_memory);
        let memory =
            memory.context("the system does not tell how much memory it has; say it with --memory")?;
        let machine =
            Machine { context: self.ctx as usize, memory, bandwidth: bandwidth::measure(None).ok() };
        let fits = self.look(&machine, console)?;
        let best = gruff::best_fit(&fits);
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{:#}", as_json(&fits, best, &machine))?;
        } else {
            write_table(&mut out, &fits, best, &machine)?;
        }
        Ok(())
    }

    fn look(&self, machine: &Machine, console: &Console) -> anyhow::Result<Vec<Found>> {
        let id = if self.model == gruff::BUNDLED { None } else { Some(ModelId::parse(&self.model)?) };
        match id {
            Some(ModelId::Hub { repo, revision, .. }) => {
                let hub = self.source.hub(console)?;
                let revision = self.source.revision().or(revision).unwrap_or_else(|| "main".to_owned());
                let RepoListing { commit, files } = hub.list_files(&repo, &revision)?;
                let variants = self.wanted(&files, &self.model)?;
                each(&variants, console, |variant| {
                    console.detail(format_args!("header: {}", variant.name()));
                    gruff::fit_remote(&hub, &repo, &commit, variant, machine)
                        .with_context(|| variant.name().to_owned())
                })
            }
            Some(ModelId::Local { path, .. }) if path.is_dir() => {
                let variants = self.wanted(&files_of(&path)?, &self.model)?;
                each(&variants, console, |variant| {
                    let file = path.join(variant.name()).display().to_string();
                    let checkpoint = self.source.open(&file, console)?;
                    gruff::fit(&checkpoint, machine).with_context(|| file)
                })
            }
            _ => {
                let checkpoint = self.source.open(&self.model, console)?;
                Ok(vec![gruff::fit(&checkpoint, machine).with_context(|| checkpoint.name())?])
            }
        }
    }

    /// The variants among files that the id or `--file` means; all where neither names one.
    fn wanted(&self, files: &[RepoFile], place: &str) -> anyhow::Result<Vec<GgufSet>> {
        let quant = place.rsplit_once(':').map(|(_, what)| what).filter(|_| !Path::new(place).exists());
        let sets: Vec<GgufSet> = GgufSet::group(files)
            .into_iter()
            .filter(|set| self.source.file().is_none_or(|file| set.parts.iter().any(|part| part == file)))
            .filter(|set| {
                quant.is_none_or(|what| {
                    set.quant().is_some_and(|quant| quant.eq_ignore_ascii_case(what))
                        || set.parts.iter().any(|part| part == what)
                })
            })
            .collect();
        if sets.is_empty() {
            bail!(
                "{place} has no such GGUF model; `gruff fit` with the repository or folder alone shows all"
            );
        }
        Ok(sets)
    }
}

/// Looks at each variant. What is wrong with one is said and does not hide the others; with all, it is the error.
fn each(
    variants: &[GgufSet],
    console: &Console,
    look: impl Fn(&GgufSet) -> anyhow::Result<Found>,
) -> anyhow::Result<Vec<Found>> {
    let (mut fits, mut faults) = (Vec::new(), Vec::new());
    for variant in variants {
        match look(variant) {
            Ok(fit) => fits.push(fit),
            Err(fault) => faults.push(fault),
        }
    }
    if fits.is_empty()
        && let Some(fault) = faults.pop()
    {
        return Err(fault);
    }
    for fault in faults {
        console.warn(format_args!("left out: {}", paragraph(&fault)));
    }
    Ok(fits)
}

fn files_of(folder: &Path) -> anyhow::Result<Vec<RepoFile>> {
    let refused = || format!("{} cannot be read", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(refused)? {
        let entry = entry.with_context(refused)?;
        if let Ok(name) = entry.file_name().into_string() {
            files.push(RepoFile { path: name, size: entry.metadata().ok().map(|data| data.len()) });
        }
    }
    Ok(files)
}

fn as_json(fits: &[Found], best: Option<usize>, machine: &Machine) -> serde_json::Value {
    let variants: Vec<_> = fits
        .iter()
        .enumerate()
        .map(|(index, fit)| {
            json!({
                "file": fit.name,
                "quantization": fit.quantization,
                "size": fit.size,
                "bits_per_weight": fit.bits,
                "perplexity_loss_llama3_8b": fit.loss,
                "ctx": fit.plan.context,
                "memory": {
                    "weights": fit.plan.weights,
                    "kv": fit.plan.kv,
                    "state": fit.plan.state,
                    "prefix_cache": fit.plan.prefix_cache,
                    "scratch": fit.plan.scratch,
                    "total": fit.plan.total(),
                },
                "fits": fit.fits,
                "tokens_per_second_at_most": fit.tokens_per_second,
                "recommended": best == Some(index),
            })
        })
        .collect();
    json!({ "memory_available": machine.memory, "bandwidth": machine.bandwidth, "variants": variants })
}

fn write_table(
    out: &mut impl Write,
    fits: &[Found],
    best: Option<usize>,
    machine: &Machine,
) -> std::io::Result<()> {
    let width = fits.iter().map(|fit| fit.name.chars().count()).max().unwrap_or(0).max(4);
    writeln!(
        out,
        "  {:width$} {:>10} {:>5} {:>6} {:>10} {:>9} {:>9}  fits {:>7}",
        "file", "size", "bits", "loss", "memory", "KV", "state", "tok/s"
    )?;
    for (index, fit) in fits.iter().enumerate() {
        let mark = if best == Some(index) { "*" } else { " " };
        let loss = fit.loss.map_or("-".to_owned(), |loss| format!("+{loss:.2}"));
        let speed = fit.tokens_per_second.map_or("-".to_owned(), |speed| format!("{speed:.1}"));
        writeln!(
            out,
            "{mark} {:width$} {:>10} {:>5.2} {loss:>6} {:>10} {:>9} {:>9}  {:<4} {speed:>7}",
            fit.name,
            Bytes(fit.size),
            fit.bits,
            Bytes(fit.plan.total()),
            Bytes(fit.plan.kv),
            Bytes(fit.plan.state),
            if fit.fits { "yes" } else { "no" },
        )?;
    }
    let context = fits.first().map_or(machine.context, |fit| fit.plan.context);
    write!(out, "\n{} of memory, a context of {context} tokens", Bytes(machine.memory))?;
    if let Some(bandwidth) = machine.bandwidth {
        write!(out, ", memory read at {:.1} GB/s", bandwidth / 1e9)?;
    }
    match best {
        Some(_) => writeln!(out, "; * is the one to take"),
        None => writeln!(out, "; none fits: choose a smaller model, quantization or --ctx"),
    }
}
