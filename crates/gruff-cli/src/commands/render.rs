use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use gruff::floors::text::chat::{ChatTemplate, RenderInput};
use gruff::{ChatOptions, Message};
use serde_json::{Map, Value};

use crate::args::{SourceArgs, read_file};
use crate::console::{Console, stdout};
use crate::failure::usage;

/// Show the text that a chat template makes of messages
///
/// MESSAGES is a JSON file with a list of messages, or an object with the fields `messages` and `tools` as in a
/// request to an OpenAI-compatible server; `-` is standard input.
#[derive(Debug, Args)]
#[command(
    override_usage = "gruff render [OPTIONS] <MODEL> <MESSAGES.json>\n       \
                      gruff render [OPTIONS] --template <FILE> [MODEL] <MESSAGES.json>",
    after_help = "Examples:\n  gruff render model.gguf messages.json\n  \
                  gruff render model.gguf messages.json --kwargs '{\"enable_thinking\": false}'\n  \
                  gruff render --template chat_template.jinja messages.json --tools tools.json"
)]
pub(crate) struct Render {
    /// The model (only its header is read) and the messages
    #[arg(required = true, num_args = 1..=2, value_names = ["MODEL", "MESSAGES.json"])]
    inputs: Vec<String>,
    /// Template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// JSON file with a list of tools
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Further variables of the template, as a JSON object
    #[arg(long, value_name = "JSON")]
    kwargs: Option<String>,
    /// End with the last message instead of the header of the assistant's answer
    #[arg(long)]
    no_generation_prompt: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Render {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let (model, messages) = match (self.inputs.as_slice(), &self.template) {
            ([model, messages], _) => (Some(model), Path::new(messages)),
            ([messages], Some(_)) => (None, Path::new(messages)),
            _ => {
                return usage(
                    "give a model and a file of messages, or --template FILE and a file of messages",
                );
            }
        };
        let variables = match &self.kwargs {
            None => Map::new(),
            Some(json) => match serde_json::from_str(json) {
                Ok(variables) => variables,
                Err(error) => return usage(format!("--kwargs is not a JSON object: {error}")),
            },
        };
        let (messages, mut tools) = read_messages(messages)?;
        if let Some(path) = &self.tools {
            tools = Some(parse(path, &read_file(path)?)?);
        }
        let add_generation_prompt = !self.no_generation_prompt;
        let template = self.template.as_deref().map(read_template).transpose()?;
        let text = match (model, template) {
            (Some(model), template) => {
                let checkpoint = self.source.open(model, console)?;
                let mut tokenizer = self.source.tokenizer(&checkpoint, console)?;
                if let Some(template) = template {
                    tokenizer = tokenizer.with_chat_template(template);
                }
                let options =
                    ChatOptions { add_generation_prompt, tools, variables, ..ChatOptions::default() };
                tokenizer.render_chat(&messages, &options)?
            }
            (None, Some(template)) => {
                let input = RenderInput {
                    messages: &messages,
                    tools: tools.as_deref(),
                    add_generation_prompt,
                    variables,
                    ..RenderInput::default()
                };
                template.render(&input)?.text
            }
            (None, None) => return usage("give a model or --template FILE"),
        };
        let mut out = stdout();
        out.write_text(&text)?;
        if out.is_terminal() && !text.ends_with('\n') {
            writeln!(out)?;
        }
        Ok(out.flush()?)
    }
}

/// Reads and compiles a template file.
pub(super) fn read_template(path: &Path) -> anyhow::Result<ChatTemplate> {
    let source = read_file(path)?;
    Ok(ChatTemplate::named(&path.display().to_string(), &source)?)
}

/// Messages and tools of a list or of a request.
fn read_messages(path: &Path) -> anyhow::Result<(Vec<Message>, Option<Vec<Value>>)> {
    #[derive(serde::Deserialize)]
    struct Request {
        messages: Vec<Message>,
        tools: Option<Vec<Value>>,
    }
    let text = read_file(path)?;
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        let request: Request = parse(path, &text)?;
        return Ok((request.messages, request.tools));
    }
    Ok((parse(path, &text)?, None))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> anyhow::Result<T> {
    // Editors on Windows put a byte order mark before JSON, where it is no part of it.
    serde_json::from_str(text.trim_start_matches('\u{feff}')).with_context(|| {
        let name = if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
        format!("{name} is not the JSON expected")
    })
}
