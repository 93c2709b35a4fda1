mod answer;
mod chat;
mod one_shot;
mod sampling;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::{Args, ValueEnum};
use gruff::floors::text::chat::{ReasoningFormat, ReasoningMode, ReasoningSupport};
use gruff::{
    AutoModelForCausalLM, AutoTokenizer, BUNDLED, ChatOptions, GenerationConfig, HAS_BUNDLED, Message,
    ModelId,
};

use crate::args::{ComputeArgs, SourceArgs, read_stdin, text_or_stdin};
use crate::commands::render::read_template;
use crate::console::Console;
use crate::failure::usage;

use sampling::SamplingArgs;

/// Run a model: answer one prompt, or chat
///
/// With PROMPT (or with a prompt on standard input) the answer goes to standard output and everything else, the
/// model's reasoning included, to standard error. On a terminal without PROMPT a conversation begins; /help says
/// more there.
///
/// Without MODEL a very small model answers that is part of the program (as MODEL it is called `bundled`). A single
/// argument that names no model is the prompt.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gruff run \"What is the capital of France?\"\n  gruff run unsloth/Qwen3.5-4B-GGUF:Q4_K_M \"Why is the sky blue?\"\n  \
                  gruff run model.gguf\n  \
                  git diff | gruff run model.gguf --system \"Write a commit message.\" -\n  \
                  gruff run model.gguf --raw -n 20 --temperature 0 \"The capital of France is\"\n  \
                  gruff run model.gguf --json --seed 7 \"Tell a joke.\"\n  \
                  gruff run model.gguf --json-schema '{\"type\": \"object\"}' \"Describe a cat as JSON.\""
)]
pub(crate) struct Run {
    /// The model [default: the bundled one]
    model: Option<String>,
    /// The prompt, or - for standard input
    #[arg(allow_negative_numbers = true)]
    prompt: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continue the prompt as it is, without a chat template
    #[arg(long)]
    raw: bool,
    /// Let the model think before it answers; auto leaves that to the template
    #[arg(long, value_enum, default_value_t, hide_possible_values = true, value_name = "on|off|auto")]
    reasoning: Reasoning,
    /// Chat template to use instead of the model's
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    chat_template: Option<PathBuf>,
    /// Print one JSON object with text, ids, usage and timings
    #[arg(long)]
    json: bool,
    /// A smaller model with the same tokens that drafts; changes the speed alone
    #[arg(long, value_name = "MODEL", conflicts_with = "prompt_lookup_num_tokens")]
    draft_model: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    source: SourceArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reasoning {
    On,
    Off,
    #[default]
    Auto,
}

impl Reasoning {
    pub(crate) fn mode(self) -> ReasoningMode {
        match self {
            Reasoning::On => ReasoningMode::On,
            Reasoning::Off => ReasoningMode::Off,
            Reasoning::Auto => ReasoningMode::Auto,
        }
    }
}

/// A model ready to answer.
struct Runner {
    tokenizer: AutoTokenizer,
    model: AutoModelForCausalLM,
    config: GenerationConfig,
    /// Drafts tokens for the model, where one was asked for.
    draft: Option<AutoModelForCausalLM>,
    chat: ChatOptions,
    /// How the model's output tells reasoning from answer, where it reasons.
    reasoning: Option<ReasoningFormat>,
    /// Whether the template can switch reasoning on and off.
    switchable: bool,
    raw: bool,
    system: Option<String>,
    /// The model as it was asked for.
    name: String,
    load_seconds: f64,
    console: Console,
}

impl Run {
    pub(crate) fn run(mut self, console: &Console) -> anyhow::Result<()> {
        let (model, prompt) = model_and_prompt(self.model.take(), self.prompt.take());
        let prompt = match &prompt {
            Some(prompt) => Some(text_or_stdin(prompt)?),
            None if std::io::stdin().is_terminal() => None,
            None => Some(read_stdin()?),
        };
        if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty() && !self.raw) {
            return usage("the prompt is empty");
        }
        if prompt.is_none() && self.json {
            return usage("--json answers one prompt; give one as an argument or on standard input");
        }
        let json = self.json;
        if model == BUNDLED && HAS_BUNDLED {
            console.note(format_args!(
                "The bundled model answers. It knows little: `gruff run MODEL` takes a real one."
            ));
        }
        let runner = self.load(&model, console)?;
        match prompt {
            Some(prompt) => one_shot::run(&runner, &prompt, json),
            None => chat::run(runner),
        }
    }

    fn load(self, model: &str, console: &Console) -> anyhow::Result<Runner> {
        let started = Instant::now();
        let config = self.sampling.config(self.compute.deterministic())?;
        let checkpoint = self.source.open(model, console)?;
        let mut tokenizer = self.source.tokenizer(&checkpoint, console)?;
        if let Some(path) = &self.chat_template {
            tokenizer = tokenizer.with_chat_template(read_template(path)?);
        }
        let mut support = ReasoningSupport { format: None, switchable: false };
        if !self.raw {
            match tokenizer.chat_template() {
                Ok(template) => support = template.reasoning(),
                Err(error) => {
                    bail!("{error}; give --raw to continue the prompt as it is, or --chat-template FILE")
                }
            }
        }
        let opened = started.elapsed().as_secs_f64();
        let model = self.compute.load(&self.source, &checkpoint, console)?;
        let loaded = started.elapsed().as_secs_f64() - opened;
        let memory = model.memory()?;
        let ready = started.elapsed().as_secs_f64() - opened - loaded;
        console.detail(format_args!("memory: {memory}"));
        console.detail(format_args!(
            "start: {opened:.2} s for file and tokenizer, {loaded:.2} s for device and weights, {ready:.2} s for caches and kernels"
        ));
        let draft = match &self.draft_model {
            Some(name) => {
                let checkpoint = self.source.open(name, console)?;
                Some(self.compute.load(&self.source, &checkpoint, console)?)
            }
            None => None,
        };
        let mut runner = Runner {
            tokenizer,
            model,
            config,
            draft,
            chat: ChatOptions::prompt(),
            reasoning: support.format,
            switchable: support.switchable,
            raw: self.raw,
            system: self.system,
            name: checkpoint.files().id.clone(),
            load_seconds: started.elapsed().as_secs_f64(),
            console: *console,
        };
        if self.reasoning != Reasoning::Auto && !support.switchable {
            console.warn(
                "this model's template does not let reasoning be switched; --reasoning changes nothing",
            );
        }
        runner.set_reasoning(self.reasoning);
        Ok(runner)
    }
}

/// What two optional arguments mean: a single one is the model if it can name one, else the prompt.
fn model_and_prompt(first: Option<String>, second: Option<String>) -> (String, Option<String>) {
    match (first, second) {
        (Some(prompt), None) if !names_a_model(&prompt) => (BUNDLED.to_owned(), Some(prompt)),
        (model, prompt) => (model.unwrap_or_else(|| BUNDLED.to_owned()), prompt),
    }
}

/// Whether a text is a model's id rather than something to say. Ids on the Hub have no white space; paths may.
fn names_a_model(text: &str) -> bool {
    text == BUNDLED
        || match ModelId::parse(text) {
            Ok(ModelId::Local { path, .. }) => {
                path.exists()
                    || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
                    || !text.contains(char::is_whitespace)
            }
            // A single word may be a repository of old, but is far more often a word.
            Ok(ModelId::Hub { .. }) => text.contains('/'),
            Err(_) => false,
        }
}

impl Runner {
    /// The messages with which a conversation begins.
    fn opening(&self) -> Vec<Message> {
        self.system.iter().map(Message::system).collect()
    }

    fn set_reasoning(&mut self, reasoning: Reasoning) {
        self.chat.variables = reasoning.mode().variables();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_argument_is_the_model_if_it_can_name_one() {
        let meant = |first: &str| model_and_prompt(Some(first.to_owned()), None);
        let model = |name: &str| (name.to_owned(), None);
        let prompt = |text: &str| (BUNDLED.to_owned(), Some(text.to_owned()));
        for name in [
            "owner/repo",
            "owner/repo:Q4_K_M",
            "owner/repo@main",
            "missing.gguf",
            "./missing",
            "src",
            BUNDLED,
        ] {
            assert_eq!(meant(name), model(name));
        }
        for text in [
            "Hello",
            "Hello!",
            "-",
            "What is 2/3 of 6?",
            "/ is what sign?",
            "2+2",
            "Qwen",
            "Wer/was ist das?",
        ] {
            assert_eq!(meant(text), prompt(text));
        }
        let both = model_and_prompt(Some("a/b".to_owned()), Some("c/d".to_owned()));
        assert_eq!(both, ("a/b".to_owned(), Some("c/d".to_owned())));
        assert_eq!(model_and_prompt(None, None), model(BUNDLED));
    }
}
