//! Renders chat templates in bulk: a JSON job a line on standard input, an answer a line on
//! standard output. `tools/checks/templates.py` compares the answers with transformers'.
//!
//! A job has `id`, `template` (a path) or `source`, `messages`, and perhaps `tools`, `documents`,
//! `add_generation_prompt`, `continue_final_message` (true or a field), `bos_token`, `eos_token`,
//! `kwargs`, `now` (ISO 8601) and `assistant_spans`. An answer has `id` and either `text` and
//! `spans` or `error`.

use std::collections::HashMap;
use std::io::{BufRead, Write};

use gruff_text::chat::{ChatTemplate, Continuation, Message, NaiveDateTime, RenderInput};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Job {
    id: String,
    template: Option<String>,
    source: Option<String>,
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    #[serde(default)]
    add_generation_prompt: bool,
    continue_final_message: Option<Value>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    #[serde(default)]
    kwargs: Map<String, Value>,
    now: Option<String>,
    #[serde(default)]
    assistant_spans: bool,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut templates: HashMap<String, Result<ChatTemplate, String>> = HashMap::new();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let job: Job = serde_json::from_str(&line?)?;
        let template = match (&job.source, &job.template) {
            (Some(source), _) => &ChatTemplate::new(source).map_err(|error| error.to_string()),
            (None, path) => {
                let path = path.clone().unwrap_or_default();
                templates
                    .entry(path.clone())
                    .or_insert_with(|| load(&path).map_err(|error| error.to_string()))
            }
        };
        let answer = match template {
            Ok(template) => render(template, &job),
            Err(error) => json!({"id": job.id, "error": error}),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

fn load(path: &str) -> Result<ChatTemplate, Failure> {
    Ok(ChatTemplate::named(path, &std::fs::read_to_string(path)?)?)
}

fn render(template: &ChatTemplate, job: &Job) -> Value {
    let rendered = template.render(&RenderInput {
        messages: &job.messages,
        tools: job.tools.as_deref(),
        documents: job.documents.as_deref(),
        add_generation_prompt: job.add_generation_prompt,
        continue_final_message: match &job.continue_final_message {
            Some(Value::String(field)) => Continuation::Field(field),
            Some(Value::Bool(true)) => Continuation::Field("content"),
            _ => Continuation::None,
        },
        bos_token: job.bos_token.as_deref(),
        eos_token: job.eos_token.as_deref(),
        variables: job.kwargs.clone(),
        now: job.now.as_deref().and_then(|now| now.parse::<NaiveDateTime>().ok()),
        assistant_spans: job.assistant_spans,
    });
    match rendered {
        Ok(rendered) => {
            let spans: Vec<_> = rendered.assistant_spans.iter().map(|span| [span.start, span.end]).collect();
            json!({"id": job.id, "text": rendered.text, "spans": spans})
        }
        Err(error) => json!({"id": job.id, "error": error.to_string()}),
    }
}
