use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use gruff::floors::blocks::BlockType;
use gruff::floors::convert::quantize::{
    ImportanceMatrix, MixOptions, Plan, Preset, QuantizeOptions, TensorPlan, TensorType, parse_override,
    quantize,
};
use gruff::floors::gguf::Value;
use serde_json::json;

use crate::args::SourceArgs;
use crate::console::{Console, stdout};
use crate::failure::usage;
use crate::progress::ConversionProgress;
use crate::size::Bytes;

/// Make a GGUF file with other block types
#[derive(Debug, Args)]
#[command(
    override_usage = "gruff quantize [OPTIONS] <IN> <OUT> <PRESET>\n       gruff quantize [OPTIONS] --dry-run <IN> <PRESET>",
    after_help = "Presets:\n  Q4_K_M is what most people take; Q5_K_M, Q6_K and Q8_0 lose less, Q3_K_M and Q2_K more.\n  \
                  All: F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS Q3_K_L Q3_K_M\n  \
                  Q3_K_S IQ3_M IQ3_S IQ3_XS IQ3_XXS Q2_K Q2_K_S IQ2_M IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S TQ2_0 TQ1_0 Q2_0\n  \
                  Q1_0 MXFP4_MOE COPY\n\n\
                  Examples:\n  gruff quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M\n  \
                  gruff quantize model-f16.gguf out.gguf Q3_K_M --imatrix imatrix.gguf --tensor-type ffn_down=q4_k\n  \
                  gruff quantize model-f16.gguf Q4_K_M --dry-run --json"
)]
pub(crate) struct Quantize {
    /// The model: F16, BF16 or F32 as a rule
    #[arg(value_name = "IN")]
    model: String,
    /// The new file, and the preset
    #[arg(value_names = ["OUT", "PRESET"], num_args = 1..=2, required = true)]
    target: Vec<String>,
    /// Importance matrix: which columns matter, as llama-imatrix and gruff imatrix write it
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Type for tensors whose names match a regular expression; may be given several times
    #[arg(long, value_name = "PATTERN=TYPE")]
    tensor_type: Vec<String>,
    /// Type of output.weight
    #[arg(long, value_name = "TYPE")]
    output_tensor_type: Option<String>,
    /// Type of the token embeddings
    #[arg(long, value_name = "TYPE")]
    token_embedding_type: Option<String>,
    /// Give every matrix the preset's base type
    #[arg(long)]
    pure: bool,
    /// Keep output.weight as it is
    #[arg(long, conflicts_with = "output_tensor_type")]
    leave_output_tensor: bool,
    /// Also pack tensors again that are packed already, which loses more
    #[arg(long)]
    allow_requantize: bool,
    /// Set a metadata key in the new file (TYPE is int, float, bool or str); may be given several times
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    override_kv: Vec<String>,
    /// Threads that quantize [default: all]
    #[arg(short, long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Replace OUT if it exists
    #[arg(long)]
    overwrite: bool,
    /// Only tell each tensor's type and size, from the header
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Quantize {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let (path, preset) = match &self.target[..] {
            [preset] if self.dry_run => (None, preset),
            [path, preset] => (Some(Path::new(path)), preset),
            _ => return usage("give OUT and PRESET, such as: model-q4_k_m.gguf Q4_K_M"),
        };
        let options = self.options(preset)?;
        let checkpoint = self.source.open(&self.model, console)?;
        let model = checkpoint.gguf();
        let start = Instant::now();
        let plan = match path {
            Some(path) if !self.dry_run => {
                let progress = ConversionProgress::new(*console, path.display().to_string());
                quantize(model, path, &options, &progress)?
            }
            _ => Plan::new(model, &options)?,
        };
        warn(&plan, &options, self.dry_run, console);
        let mut out = std::io::BufWriter::new(stdout());
        if self.json {
            writeln!(out, "{:#}", as_json(&plan, path.filter(|_| !self.dry_run)))?;
        } else if self.dry_run {
            print(&plan, &mut out)?;
        }
        out.flush()?;
        if let Some(path) = path.filter(|_| !self.dry_run) {
            console.note(format_args!(
                "{}: {} in {:.1} s",
                path.display(),
                summary(&plan),
                start.elapsed().as_secs_f64()
            ));
        }
        Ok(())
    }

    fn options(&self, preset: &str) -> anyhow::Result<QuantizeOptions> {
        let parse = |text: &Option<String>, flag: &str| -> anyhow::Result<Option<BlockType>> {
            let Some(text) = text else { return Ok(None) };
            match text.parse::<BlockType>() {
                Ok(block_type) if block_type.can_quantize() => Ok(Some(block_type)),
                Ok(block_type) => usage(format!("{flag}: {block_type} is no type for weights")),
                Err(error) => usage(format!("{flag}: {error}")),
            }
        };
        let preset: Preset = preset.parse().or_else(|error| usage(format!("{error}")))?;
        let mut options = QuantizeOptions::new(preset);
        options.mix = MixOptions {
            pure: self.pure,
            leave_output: self.leave_output_tensor,
            output: parse(&self.output_tensor_type, "--output-tensor-type")?,
            token_embedding: parse(&self.token_embedding_type, "--token-embedding-type")?,
            importance: false,
        };
        let tensor_type =
            |text: &String| text.parse::<TensorType>().or_else(|error| usage(error.to_string()));
        options.tensor_types = self.tensor_type.iter().map(tensor_type).collect::<anyhow::Result<_>>()?;
        let metadata = |text: &String| -> anyhow::Result<(String, Value)> {
            parse_override(text).or_else(|error| usage(error.to_string()))
        };
        options.metadata = self.override_kv.iter().map(metadata).collect::<anyhow::Result<_>>()?;
        options.importance = self.imatrix.as_ref().map(ImportanceMatrix::open).transpose()?;
        options.allow_requantize = self.allow_requantize;
        options.overwrite = self.overwrite;
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        Ok(options)
    }
}

/// Tells what is not as the preset's name promises.
fn warn(plan: &Plan, options: &QuantizeOptions, dry_run: bool, console: &Console) {
    let count = |of: &dyn Fn(&TensorPlan) -> bool| plan.tensors().iter().filter(|tensor| of(tensor)).count();
    for tensor_type in &options.tensor_types {
        if count(&|tensor| tensor_type.of(&tensor.name).is_some()) == 0 {
            console.warn(format_args!("--tensor-type {tensor_type} matches no tensor"));
        }
    }
    let fallen = count(&|tensor| tensor.instead_of.is_some());
    if fallen > 0 {
        console.warn(format_args!(
            "{fallen} tensors have rows that are not whole blocks of their type and get another (see --dry-run)"
        ));
    }
    match &options.importance {
        Some(matrix) => {
            let unknown = count(&|tensor| {
                tensor.from != tensor.to && !tensor.to.is_scalar() && !matrix.has(&tensor.name)
            });
            if unknown > 0 {
                console.warn(format_args!("{unknown} tensors have no entry in {}", matrix.file()));
            }
        }
        None if dry_run && count(&|tensor| tensor.needs_importance) > 0 => {
            console.warn(format_args!("{} needs an importance matrix (--imatrix)", plan.preset()));
        }
        None => {}
    }
}

fn summary(plan: &Plan) -> String {
    let (before, after) = (Bytes(plan.bytes_before()), Bytes(plan.bytes()));
    format!("{before} -> {after}, {:.3} bits a value", plan.bits_per_value())
}

fn print(plan: &Plan, out: &mut impl Write) -> std::io::Result<()> {
    for tensor in plan.tensors() {
        let change = match (tensor.from == tensor.to, tensor.instead_of) {
            (true, _) => format!("{}", tensor.from),
            (false, None) => format!("{} -> {}", tensor.from, tensor.to),
            (false, Some(wanted)) => format!("{} -> {} (not {wanted})", tensor.from, tensor.to),
        };
        let name: String = tensor.name.chars().flat_map(char::escape_default).collect();
        writeln!(
            out,
            "{name:<44} {:<20} {change:<28} {:>12}",
            format!("{:?}", tensor.shape),
            Bytes(tensor.bytes).to_string()
        )?;
    }
    writeln!(out, "{}: {}", plan.preset(), summary(plan))
}

fn as_json(plan: &Plan, path: Option<&Path>) -> serde_json::Value {
    let tensors: Vec<_> = plan
        .tensors()
        .iter()
        .map(|tensor| {
            json!({
                "name": tensor.name,
                "shape": tensor.shape,
                "from": tensor.from.name(),
                "type": tensor.to.name(),
                "instead_of": tensor.instead_of.map(|wanted| wanted.name()),
                "needs_importance": tensor.needs_importance,
                "bytes_before": tensor.bytes_before,
                "bytes": tensor.bytes,
            })
        })
        .collect();
    json!({
        "preset": plan.preset().name(),
        "file": path,
        "bytes_before": plan.bytes_before(),
        "bytes": plan.bytes(),
        "bits_per_value": plan.bits_per_value(),
        "tensors": tensors,
    })
}
