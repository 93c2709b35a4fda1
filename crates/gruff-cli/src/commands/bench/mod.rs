mod batched;
mod generate;
mod label;
mod list;
mod measure;
mod profile;
mod report;
mod sequences;

use std::ffi::OsString;
use std::io::Write;

use anyhow::Context as _;
use clap::Args;
use gruff::floors::kernels::{Without, bandwidth};
use gruff::{AutoModelForCausalLM, Checkpoint, FromCheckpoint, KvDtype, LoadOptions, system};

use crate::args::{
    DivisionArgs, DtypeArg, SourceArgs, parse_device, parse_kv_dtype, parse_without, tell_devices,
};
use crate::console::{Console, stdout};
use crate::failure::usage;
use crate::size::parse_bytes;

use batched::BatchTest;
use list::{parse_list, parse_pair};
use measure::Test;
use profile::Ceilings;
use report::{Format, ModelFacts, Report};

/// Measure speed as llama-bench does
///
/// Options, columns, labels and JSON fields are those of llama-bench, so that results can be compared line by
/// line: pp512 is a prompt of 512 random tokens, tg128 the generation of 128 tokens, one at a time, without
/// sampling; `@ d4096` behind 4096 tokens. Load time, peak memory and the share of the measured memory bandwidth
/// are added.
#[derive(Debug, Args)]
#[command(after_help = "Lists: 128,512 or ranges 1-4, 128-512+128, 1-8*2.\n\nExamples:\n  \
                  gruff bench -m model.gguf\n  \
                  gruff bench -m a.gguf,b.gguf -p 512 -n 128 -d 0,4096 -r 3 -o json\n  \
                  gruff bench -m model.gguf --profile\n  \
                  gruff bench -m model.gguf --without attention,fusion\n  \
                  gruff bench -m model.gguf -p 128 -n 32 --batch 1,2,4,8\n  \
                  gruff bench -m model.gguf --generate")]
pub(crate) struct Bench {
    /// The model
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// Models, separated by commas
    #[arg(short, long = "model", value_name = "MODEL", value_delimiter = ',')]
    models: Vec<String>,
    /// Prompt lengths; 0 for none
    #[arg(short = 'p', long, value_name = "N", value_parser = parse_list, allow_negative_numbers = true)]
    n_prompt: Vec<Numbers>,
    /// Numbers of tokens to generate; 0 for none
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_list, allow_negative_numbers = true)]
    n_gen: Vec<Numbers>,
    /// A prompt and tokens generated behind it, measured together (also -pg)
    #[arg(long, value_name = "PP,TG", value_parser = parse_pair, allow_negative_numbers = true)]
    pg: Vec<(usize, usize)>,
    /// Tokens that are there already
    #[arg(short = 'd', long, value_name = "N", value_parser = parse_list, allow_negative_numbers = true)]
    n_depth: Vec<Numbers>,
    /// Threads [default: the physical cores]
    #[arg(short, long, value_name = "N", value_parser = parse_list, allow_negative_numbers = true)]
    threads: Vec<Numbers>,
    /// Tokens that go through the model at once (also -ub)
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    ubatch_size: u32,
    /// Times to repeat each test [default: 5; 3 with --generate]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    repetitions: Option<u32>,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Measure so many sequences together, as llama-batched-bench does: prompts, then a token of each at a time
    #[arg(short, long, value_name = "N", value_parser = parse_list, allow_negative_numbers = true)]
    batch: Vec<Numbers>,
    /// Run each test once more and show where its time goes, operation by operation; on NVIDIA cards by the card's own
    /// clock, kernel by kernel
    #[arg(long, conflicts_with = "generate")]
    profile: bool,
    /// Leave these out, to see what they contribute. Families of kernels, then computed in their plainest form (on the
    /// CPU threaded f32, unfused): matmul, norm, attention, delta-net, moe, fusion. On NVIDIA cards also graphs (decode
    /// steps recorded and replayed), late-ids (with --generate: steps that begin before the last tokens are read),
    /// early-launch (kernels that begin before the one in front of them has ended)
    #[arg(long, value_name = "FAMILY", value_delimiter = ',', value_parser = parse_without)]
    without: Vec<Without>,
    /// Do not run each test once before it is measured
    #[arg(long)]
    no_warmup: bool,
    /// Measure `generate` instead: 128 tokens from a 12-token prompt, greedy, prompt included, the best run; with
    /// --batch so many prompts together
    #[arg(long, conflicts_with_all = ["n_prompt", "n_gen", "pg", "n_depth"])]
    generate: bool,
    /// Device: auto (the card where there is one), cpu, cuda (cuda:1 for the second card), reference, or several:
    /// cuda:0,cuda:1 or cuda,cpu
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = parse_device)]
    device: String,
    #[command(flatten)]
    division: DivisionArgs,
    /// How numbers are kept while computing
    #[arg(long, value_enum, default_value_t)]
    dtype: DtypeArg,
    /// How keys are kept: f16, q8_0 or f32 (also -ctk) [default: f16; f32 with --dtype f32]
    #[arg(long, value_name = "TYPE", value_parser = parse_kv_dtype)]
    cache_type_k: Option<KvDtype>,
    /// How values are kept: as keys are (also -ctv)
    #[arg(long, value_name = "TYPE", value_parser = parse_kv_dtype)]
    cache_type_v: Option<KvDtype>,
    /// Memory that may be used, such as 4G [default: what the system has available]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_negative_numbers = true)]
    memory: Option<u64>,
    #[command(flatten)]
    source: SourceArgs,
}

/// The numbers of one list argument.
type Numbers = Vec<usize>;

/// The numbers of all lists that were given, or else the default.
fn or(given: &[Numbers], default: usize) -> Vec<usize> {
    match given.concat() {
        numbers if numbers.is_empty() => vec![default],
        numbers => numbers,
    }
}

/// Options that llama-bench spells with one dash and several letters, which the parser cannot.
const SEVERAL_LETTERS: [(&str, &str); 5] = [
    ("-pg", "--pg"),
    ("-ub", "--ubatch-size"),
    ("-hf", "--model"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
];

/// Writes llama-bench's options of several letters of `gruff bench` in their long form.
pub(crate) fn spell_out(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_bench = arguments.iter().skip(1).find(|word| !word.to_string_lossy().starts_with('-'));
    if is_bench.is_some_and(|word| word == "bench") {
        for argument in &mut arguments {
            if let Some((_, long)) = SEVERAL_LETTERS.iter().find(|(short, _)| argument == *short) {
                *argument = OsString::from(long);
            }
        }
    }
    arguments
}

impl Bench {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let models: Vec<&String> = self.model.iter().chain(&self.models).collect();
        if models.is_empty() {
            return usage("give a model to measure, for example: gruff bench -m model.gguf");
        }
        if let (Some(keys), Some(values)) = (self.cache_type_k, self.cache_type_v)
            && keys != values
        {
            return usage(format!("-ctk {keys} -ctv {values}: gruff keeps keys and values in one type"));
        }
        let tests = self.tests();
        if tests.is_empty() && !self.generate {
            return usage("nothing to measure: give -p, -n or -pg a number above 0");
        }
        let batches = self.batch.concat();
        if batches.contains(&0) {
            return usage("--batch: 0 sequences compute nothing");
        }
        let threads = match self.threads.concat() {
            threads if threads.is_empty() => vec![None],
            threads if threads.contains(&0) => return usage("--threads: 0 threads compute nothing"),
            threads => threads.into_iter().map(Some).collect(),
        };
        let mut report = Report::new(self.output, stdout());
        let outcome = models.into_iter().try_for_each(|model| {
            let checkpoint = self.source.open(model, console)?;
            threads.iter().try_for_each(|threads| {
                self.measure(&checkpoint, &tests, *threads, &mut report, console)
                    .with_context(|| model.to_owned())
            })
        });
        // What was measured before something failed is a whole document too.
        report.finish()?;
        outcome
    }

    /// Every combination, in llama-bench's order.
    fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for depth in or(&self.n_depth, 0) {
            let prompts = or(&self.n_prompt, 512).into_iter().map(|prompt| (prompt, 0));
            let generations = or(&self.n_gen, 128).into_iter().map(|generated| (0, generated));
            for (prompt, generated) in prompts.chain(generations).chain(self.pg.iter().copied()) {
                if prompt + generated > 0 {
                    tests.push(Test { prompt, generated, depth });
                }
            }
        }
        tests
    }

    /// Every combination of prompt, generation and number of sequences, in llama-batched-bench's order.
    fn batch_tests(&self) -> Vec<BatchTest> {
        let mut tests = Vec::new();
        for depth in or(&self.n_depth, 0) {
            for prompt in or(&self.n_prompt, 512) {
                for generated in or(&self.n_gen, 128) {
                    let of = |sequences| BatchTest { prompt, generated, sequences, depth };
                    tests.extend(self.batch.concat().into_iter().map(of));
                }
            }
        }
        tests
    }

    fn measure(
        &self,
        checkpoint: &Checkpoint,
        tests: &[Test],
        threads: Option<usize>,
        report: &mut Report<impl Write>,
        console: &Console,
    ) -> anyhow::Result<()> {
        let options = self.division.apply(LoadOptions {
            device: Some(self.device.clone()),
            threads,
            dtype: self.dtype.into(),
            kv_dtype: self.cache_type_k.or(self.cache_type_v),
            without: self.without.clone(),
            memory: self.memory,
            // `generate` takes as many prompts together as it has room for.
            max_sequences: if self.generate { or(&self.batch, 1).into_iter().max().unwrap_or(1) } else { 1 },
            ..self.source.options()
        });
        let repetitions = self.repetitions.unwrap_or(if self.generate { 3 } else { 5 });
        let started = std::time::Instant::now();
        let model = AutoModelForCausalLM::from_checkpoint(checkpoint, &options)?;
        let load = started.elapsed();
        tell_devices(&model, console);
        let ubatch = self.ubatch_size as usize;
        let (mut results, mut batched) = (Vec::new(), Vec::new());
        if self.generate {
            let prompt = generate::prompt(self.source.tokenizer(checkpoint, console).ok().as_ref())?;
            for sequences in or(&self.batch, 1) {
                results.push(generate::measure(&model, &prompt, sequences, repetitions)?);
            }
        } else if self.batch.is_empty() {
            for test in tests {
                console.detail(format_args!("{}", test.label()));
                results.push(measure::measure(&model, *test, ubatch, repetitions, !self.no_warmup)?);
            }
        } else {
            for test in self.batch_tests() {
                batched.push(batched::measure(&model, test, ubatch, self.repetitions.unwrap_or(1))?);
            }
        }
        // Before the buffer of the bandwidth meter counts.
        let peak_memory = system::peak_memory();
        let threads = model.device().threads();
        if self.profile {
            let ceilings: Vec<Ceilings> =
                profile::devices(&model).iter().map(Ceilings::measure).collect::<anyhow::Result<_>>()?;
            for (test, outcome) in tests.iter().zip(&mut results) {
                outcome.profile = Some(profile::measure(&model, *test, 1, ubatch, &ceilings)?);
            }
            for outcome in &mut batched {
                for part in outcome.test.parts() {
                    let profile = profile::measure(&model, part, outcome.test.sequences, ubatch, &ceilings)?;
                    outcome.profiles.push(profile);
                }
            }
        }
        let on_card = model.device().name().starts_with("cuda");
        let facts = ModelFacts {
            path: checkpoint.name(),
            label: label::of(checkpoint),
            size: checkpoint.tensor_bytes(),
            parameters: checkpoint.parameters(),
            backend: match self.device.as_str() {
                "reference" => "reference",
                _ if on_card => "CUDA",
                _ => "CPU",
            },
            without: self.without.iter().map(|without| without.name()).collect(),
            threads,
            ubatch: self.ubatch_size,
            kv_type: options.kv_dtype().name(),
            load,
            peak_memory,
            bytes_per_token: checkpoint.bytes_per_token()?,
            // What the processor reads says nothing of a card.
            bandwidth: if on_card { None } else { bandwidth::measure(Some(threads)).ok() },
        };
        report.add(&facts, &results)?;
        report.add_batched(&facts, &batched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn two_letter_options_are_spelt_out_for_bench_only() {
        assert_eq!(
            spell_out(words("gruff bench -m a -pg 8,2 -ub 64")),
            words("gruff bench -m a --pg 8,2 --ubatch-size 64")
        );
        assert_eq!(spell_out(words("gruff bench a -ctk q8_0")), words("gruff bench a --cache-type-k q8_0"));
        assert_eq!(spell_out(words("gruff -v bench -pg 8,2")), words("gruff -v bench --pg 8,2"));
        assert_eq!(spell_out(words("gruff run m -pg")), words("gruff run m -pg"));
    }
}
