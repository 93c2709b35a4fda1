mod address;
mod answer;
mod client;
mod remote;
mod stream;

use std::io::IsTerminal;
use std::ops::ControlFlow;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Map, Value};

use super::run::Reasoning;
use crate::args::{read_stdin, text_or_stdin};
use crate::console::Console;
use crate::conversation::{self, OneShot};
use crate::failure::usage;
use address::Address;
use client::Client;
use remote::Remote;

/// Chat with a model that a server has
///
/// The server speaks OpenAI's API: `gruff serve`, llama-server, vLLM, a provider. With --prompt, or a prompt on
/// standard input, the answer goes to standard output and everything else, reasoning included, to standard error. On a
/// terminal a conversation begins; /help says more there.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff chat localhost:8000\n  \
                  gruff chat http://gpu-box:8000 unsloth/Qwen3.5-4B-GGUF:Q4_K_M\n  \
                  git diff | gruff chat localhost:8000 --system \"Write a commit message.\"\n  \
                  OPENAI_API_KEY=… gruff chat https://provider.example/v1 some-model --prompt \"Hello\"")]
pub(crate) struct Chat {
    /// The server; /v1 is added where there is no path
    url: String,
    /// The model's id there [default: the first that the server names]
    model: Option<String>,
    /// The prompt, or - for standard input; without it and on a terminal, a conversation
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Key that the server wants
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Ask for reasoning, or for none; auto leaves that to the server
    #[arg(long, value_enum, default_value_t, hide_possible_values = true, value_name = "on|off|auto")]
    reasoning: Reasoning,
    /// Print one JSON object with text, reasoning, usage and timings
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Further fields of the request, as a JSON object
    #[arg(long, value_name = "JSON")]
    extra: Option<String>,
}

/// How tokens are chosen, in the request's words. What is not given is left to the server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling (defaults: the server's)")]
struct SamplingArgs {
    /// Tokens generated at most
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_new_tokens: Option<u32>,
    /// 0 takes the most likely token; higher is more varied
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Keep the smallest set of tokens whose probability reaches P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Keep the K most likely tokens
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<i64>,
    /// Keep tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f64>,
    /// Divide the logits of tokens seen so far by R
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repetition_penalty: Option<f64>,
    /// Take N off the logits of tokens that occur in the answer
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    presence_penalty: Option<f64>,
    /// Take N off the logits of tokens for each time they occur in the answer
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    frequency_penalty: Option<f64>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<i64>,
    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl Chat {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let address = match Address::parse(&self.url) {
            Ok(address) => address,
            Err(fault) => return usage(format!("URL {:?}: {fault}", self.url)),
        };
        let fields = self.fields()?;
        let prompt = match &self.prompt {
            Some(prompt) => Some(text_or_stdin(prompt)?),
            None if std::io::stdin().is_terminal() => None,
            None => Some(read_stdin()?),
        };
        if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
            return usage("the prompt is empty");
        }
        if prompt.is_none() && self.json {
            return usage("--json answers one prompt; give one with --prompt or on standard input");
        }
        let key = self.api_key.filter(|key| !key.is_empty());
        if key.is_some() && address.is_open() {
            console
                .warn(format_args!("the key goes to {} unencrypted; https keeps it secret", address.host()));
        }
        let client = Client::new(address, key)?;
        let model = match self.model {
            Some(model) => model,
            None => {
                let models =
                    client.models().context("no MODEL is given, and the server does not name one")?;
                let Some(first) = models.into_iter().next() else {
                    return usage("no MODEL is given, and the server names none");
                };
                console.detail(format_args!("model: {first}"));
                first
            }
        };
        let mut remote = Remote::new(client, model, self.system, fields, self.reasoning);
        let Some(prompt) = prompt else { return conversation::run(remote, console) };
        one_shot(&mut remote, prompt, self.json, console)
    }

    /// The request's fields that flags give.
    fn fields(&self) -> anyhow::Result<Map<String, Value>> {
        let sampling = &self.sampling;
        let given = [
            ("max_tokens", sampling.max_new_tokens.map(Value::from)),
            ("temperature", sampling.temperature.map(Value::from)),
            ("top_p", sampling.top_p.map(Value::from)),
            ("top_k", sampling.top_k.map(Value::from)),
            ("min_p", sampling.min_p.map(Value::from)),
            ("repetition_penalty", sampling.repetition_penalty.map(Value::from)),
            ("presence_penalty", sampling.presence_penalty.map(Value::from)),
            ("frequency_penalty", sampling.frequency_penalty.map(Value::from)),
            ("seed", sampling.seed.map(Value::from)),
            ("stop", (!sampling.stop.is_empty()).then(|| Value::from(sampling.stop.clone()))),
        ];
        let mut fields: Map<String, Value> =
            given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        if let Some((name, _)) = fields.iter().find(|(_, value)| value.is_null()) {
            return usage(format!("--{}: give a finite number", name.replace('_', "-")));
        }
        if let Some(extra) = &self.extra {
            let extra: Map<String, Value> = match serde_json::from_str(extra) {
                Ok(extra) => extra,
                Err(error) => return usage(format!("--extra wants a JSON object: {error}")),
            };
            if let Some(name) =
                ["messages", "model", "stream", "n"].iter().find(|name| extra.contains_key(**name))
            {
                return usage(format!("--extra: `{name}` is set by the command itself; leave it out"));
            }
            fields.extend(extra);
        }
        Ok(fields)
    }
}

/// One prompt, one answer.
fn one_shot(remote: &mut Remote, prompt: String, json: bool, console: &Console) -> anyhow::Result<()> {
    use conversation::Partner as _;
    use std::io::Write as _;
    remote.push(prompt);
    if json {
        let answer = remote.ask(&mut |_| ControlFlow::Continue(()))?;
        return Ok(writeln!(crate::console::stdout(), "{:#}", answer.as_json(remote.name()))?);
    }
    let (mut shown, mut failed) = (OneShot::new(console), None);
    let outcome = remote.ask(&mut |part| match shown.part(part) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) => {
            shown.finish_if_any()?;
            return Err(error);
        }
    };
    shown.finish()?;
    console.note(answer.speed());
    Ok(())
}
