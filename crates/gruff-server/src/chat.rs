//! A chat request in the terms that all chat endpoints share, and its answers.

use std::collections::VecDeque;
use std::sync::Arc;

use gruff::floors::engine::Request;
use gruff::floors::text::Tokenizer;
use gruff::floors::text::chat::{OutputEvent, OutputFormat, OutputParser, ReasoningMode, outline};
use gruff::{ChatOptions, FinishReason, GenerationConfig, Message, Usage};
use serde_json::{Map, Value};

use crate::answer::{Generation, TextReader, ended_with, finish_reason};
use crate::api_error::{ApiError, GRAMMAR_SIZE};
use crate::background;
use crate::engine_thread::Update;
use crate::form::{Form, MayBeCut};
use crate::limits::{MAX_MESSAGES, MAX_TOOLS};
use crate::logprobs::TokenLogprob;
use crate::reasoning_budget::ReasoningBudget;
use crate::service::Service;
use crate::untold::Untold;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct ChatJob {
    pub(crate) messages: Vec<Message>,
    /// As in OpenAI's API; empty for none.
    pub(crate) tools: Vec<Value>,
    /// What the answer has to be.
    pub(crate) form: Form,
    /// Whether an answer may make several calls.
    pub(crate) parallel_tool_calls: bool,
    pub(crate) n: usize,
    pub(crate) stops: Vec<String>,
    pub(crate) config: GenerationConfig,
    /// Whether the model shall reason; `None` for the server's default.
    pub(crate) reasoning: Option<ReasoningMode>,
    /// Tokens that it may reason with; `None` for the server's default.
    pub(crate) reasoning_budget: Option<usize>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
}

/// A prompt, as text and as ids.
pub(crate) struct Prompt {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
}

impl Service {
    /// Renders a conversation. Long ones take a while: not for a thread that serves others.
    pub(crate) fn prompt(&self, job: &ChatJob) -> Result<Prompt, ApiError> {
        let mut variables = self.options.template_variables.clone();
        variables.extend(job.reasoning.unwrap_or(self.options.reasoning).variables());
        variables.extend(job.variables.clone());
        let options = ChatOptions {
            add_generation_prompt: true,
            tools: (!job.tools.is_empty()).then(|| job.tools.clone()),
            variables,
            ..ChatOptions::default()
        };
        let messages = messages(self, &job.messages)?;
        let text = self.tokenizer.render_chat(&messages, &options)?;
        let as_written = gruff::floors::text::EncodeOptions { add_special: false, parse_special: true };
        let ids = self.tokenizer.tokenizer().encode(&text, as_written).map_err(gruff::Error::from)?;
        Ok(Prompt { text, ids })
    }

    /// Renders on a thread of its own and hands the prompt to the engine.
    pub(crate) async fn chat(self: &Arc<Self>, job: ChatJob) -> Result<ChatRun, ApiError> {
        if !job.tools.is_empty() && self.format.tool_calls.is_none() {
            return Err(ApiError::unsupported(
                "tools",
                "this model's chat template has no calls of tools in a format that gruff knows; leave `tools` out",
            ));
        }
        let service = self.clone();
        let work = move || service.prepare(job);
        let (job, prompt, requests) = background::run(work).await?;
        let generation = self.begin(requests)?;
        let format = OutputFormat {
            reasoning: self.format.reasoning,
            tool_calls: self.format.tool_calls.filter(|_| !job.tools.is_empty()),
        };
        let choice = || Choice {
            reader: TextReader::new(
                self.tokenizer.tokenizer(),
                self.end_tokens.clone(),
                format,
                job.stops.clone(),
                false,
            ),
            parser: OutputParser::new(format.reasoning, format.tool_calls, &prompt.text, &job.tools),
            logprobs: Untold::default(),
            calls: 0,
            tokens: 0,
            told: 0,
            reasoning_tokens: 0,
            most_calls: if job.parallel_tool_calls { usize::MAX } else { 1 },
            over: false,
        };
        let choices = (0..job.n).map(|_| choice()).collect();
        Ok(ChatRun {
            tokenizer: self.tokenizer.tokenizer().clone(),
            generation,
            choices,
            queue: VecDeque::new(),
            prompt_tokens: prompt.ids.len(),
        })
    }

    /// The prompt and the engine's requests.
    fn prepare(&self, job: ChatJob) -> Result<(ChatJob, Prompt, Vec<Request>), ApiError> {
        let prompt = self.prompt(&job)?;
        let tokenizer = self.tokenizer.tokenizer();
        let ask = |form: &Form, tools: &[Value]| {
            let many = job.parallel_tool_calls;
            let constraint = form.constraint(&self.format, tokenizer, &prompt.text, tools, many)?;
            let config = GenerationConfig { constraint, ..job.config.clone() };
            self.requests(std::slice::from_ref(&prompt.ids), job.n, &config)
        };
        let mut requests = ask(&job.form, &job.tools);
        if requests.as_ref().is_err_and(|error| error.code == Some(GRAMMAR_SIZE))
            && let Some(form) = job.form.outlined()
        {
            let tools: Vec<Value> = job.tools.iter().map(outline).collect();
            requests = ask(&form, &tools);
        }
        let mut requests = match requests {
            Err(error) if !job.form.is_free() => return Err(job.form.blame(&self.model, &job.tools, error)),
            requests => requests?,
        };
        for request in &mut requests {
            let processors = request.processors.drain(..);
            request.processors = processors.map(|own| Box::new(MayBeCut(own)) as Box<_>).collect();
        }
        let budget = job.reasoning_budget.or(self.options.reasoning_budget).zip(self.format.reasoning);
        if let Some(budget) =
            budget.and_then(|(budget, format)| ReasoningBudget::new(tokenizer, format, &prompt.text, budget))
        {
            requests.iter_mut().for_each(|request| request.processors.push(Box::new(budget.clone())));
        }
        Ok((job, prompt, requests))
    }
}

/// Messages as templates read them: text content as one text, arguments as objects.
fn messages(service: &Service, messages: &[Message]) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let message = format!("{} messages; a conversation has 1 to {MAX_MESSAGES}", messages.len());
        return Err(ApiError::field("messages", message));
    }
    let source = service.tokenizer.chat_template().map(|template| template.source()).unwrap_or_default();
    let knows_developers = source.contains("developer");
    let convert = |(index, message): (usize, &Message)| {
        let fault = |fault: &str| {
            ApiError::field(format!("messages[{index}]"), format!("messages[{index}]: {fault}"))
        };
        let mut converted = message.clone();
        match message.role() {
            None => return Err(fault("it has no `role`")),
            Some("developer") if !knows_developers => converted.set("role", "system"),
            Some(_) => {}
        }
        match message.get("content") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(Value::Array(parts)) => {
                let text = |part: &Value| match part.get("type").and_then(Value::as_str) {
                    Some("text" | "input_text" | "output_text") | None => {
                        part.get("text")?.as_str().map(str::to_owned)
                    }
                    _ => None,
                };
                let texts: Option<String> = parts.iter().map(text).collect();
                let texts =
                    texts.ok_or_else(|| fault("this model reads text alone; leave other parts out"))?;
                converted.set("content", texts);
            }
            Some(_) => return Err(fault("`content` is a text or a list of parts")),
        }
        if message.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
            let calls = message.tool_calls();
            if message.get("tool_calls").and_then(Value::as_array).map(Vec::len) != Some(calls.len()) {
                return Err(fault(
                    "`tool_calls` is a list of calls with `function.name` and `function.arguments`",
                ));
            }
            converted = converted.with_tool_calls(&calls);
        }
        Ok(converted)
    };
    messages.iter().enumerate().map(convert).collect()
}

/// Checks that tools are functions with names.
pub(crate) fn check_tools(tools: &[Value]) -> Result<(), ApiError> {
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::field("tools", format!("{} tools are more than {MAX_TOOLS}", tools.len())));
    }
    for (index, tool) in tools.iter().enumerate() {
        let named =
            tool.get("function").and_then(|function| function.get("name")).is_some_and(Value::is_string);
        if tool.get("type").and_then(Value::as_str) != Some("function") || !named {
            let fault = "a tool has the type \"function\" and a `function` with a `name`";
            return Err(ApiError::field(format!("tools[{index}]"), fault));
        }
    }
    Ok(())
}

/// The answers to a chat request.
pub(crate) struct ChatRun {
    tokenizer: Tokenizer,
    generation: Generation,
    choices: Vec<Choice>,
    queue: VecDeque<(usize, ChatEvent)>,
    pub(crate) prompt_tokens: usize,
}

/// What happens to an answer.
#[derive(Clone, Debug)]
pub(crate) enum ChatEvent {
    /// More of it, and of content the tokens it is made of, where that was asked for.
    Output(OutputEvent, Vec<TokenLogprob>),
    /// It has ended.
    Finished(Finish),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    /// `stop`, `length` or `tool_calls`.
    pub(crate) reason: &'static str,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
    pub(crate) usage: Usage,
    /// Tokens up to the end of the reasoning.
    pub(crate) reasoning_tokens: usize,
}

struct Choice {
    reader: TextReader,
    parser: OutputParser,
    /// Of tokens whose text has not been told.
    logprobs: Untold,
    calls: usize,
    most_calls: usize,
    tokens: usize,
    /// Tokens up to the last one of which something was told.
    told: usize,
    reasoning_tokens: usize,
    /// Nothing more is told of it.
    over: bool,
}

impl Choice {
    /// The events that a piece of text brings, up to the last call that is allowed.
    fn events(&mut self, events: Vec<OutputEvent>) -> Vec<OutputEvent> {
        let mut kept = Vec::with_capacity(events.len());
        for event in events {
            if matches!(event, OutputEvent::CallStart { .. }) {
                if self.calls >= self.most_calls {
                    self.over = true;
                }
                self.calls += usize::from(!self.over);
            }
            if !self.over {
                kept.push(event);
            }
        }
        kept
    }

    /// The events that one more token brings with a piece of text.
    fn token(&mut self, text: &str) -> Vec<OutputEvent> {
        let events = self.parser.feed(text);
        let events = self.events(events);
        self.tokens += 1;
        if !events.is_empty() {
            self.told = self.tokens;
        }
        if events.iter().any(|event| matches!(event, OutputEvent::Reasoning(_))) {
            self.reasoning_tokens = self.tokens;
        }
        events
    }

    /// Whether it ended because a call began that is one too many.
    fn has_enough_calls(&self) -> bool {
        self.over && self.reader.stopped().is_none()
    }

    /// Its tokens, where it ended before the engine heard of it. What shows that a call is one too many is no part of it.
    fn own_tokens(&self) -> usize {
        if self.has_enough_calls() { self.told } else { self.tokens }
    }

    /// Each event with what there is to say of its tokens.
    fn tell(&mut self, event: OutputEvent) -> ChatEvent {
        let OutputEvent::Content(text) = &event else {
            // Only content is told of in tokens.
            self.logprobs.clear();
            return ChatEvent::Output(event, Vec::new());
        };
        let tokens = self.logprobs.take(text);
        ChatEvent::Output(event, tokens)
    }
}

impl ChatRun {
    /// What comes next, and of which answer; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, ChatEvent)>, ApiError> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(Some(event));
            }
            let Some((index, update)) = self.generation.next().await? else { return Ok(None) };
            let Some(choice) = self.choices.get_mut(index) else { continue };
            match update {
                Update::Token(id, details) if !choice.over => {
                    let text = choice.reader.token(id);
                    if let (Some(_), Some(details)) = (&text, details) {
                        choice.logprobs.push(TokenLogprob::new(&self.tokenizer, id, &details));
                    }
                    let events = choice.token(&text.unwrap_or_default());
                    choice.over |= choice.reader.stopped().is_some();
                    if choice.over {
                        self.generation.cancel(index);
                    }
                    self.queue.extend(events.into_iter().map(|event| (index, choice.tell(event))));
                }
                Update::Token(..) | Update::Prompt(_) => {}
                Update::Finished(reason, usage) => {
                    let (reason, usage) = match choice.over {
                        // Whatever else was computed until the engine heard of it.
                        true => (FinishReason::Cancelled, ended_with(choice.own_tokens(), usage)),
                        false => (reason, usage),
                    };
                    self.generation.ended(index, &usage);
                    if !choice.has_enough_calls() {
                        choice.over = false;
                        let mut events = choice.parser.feed(&choice.reader.finish());
                        events.extend(choice.parser.finish());
                        let events = choice.events(events);
                        self.queue.extend(events.into_iter().map(|event| (index, choice.tell(event))));
                    }
                    let mut reason = finish_reason(reason);
                    if choice.calls > 0 && reason == "stop" {
                        reason = "tool_calls";
                    }
                    let stop = choice.reader.stopped().map(str::to_owned);
                    let reasoning_tokens = choice.reasoning_tokens;
                    let finish = Finish { reason, stop, usage, reasoning_tokens };
                    self.queue.push_back((index, ChatEvent::Finished(finish)));
                }
                Update::Failed(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gruff::floors::text::chat::ToolCallFormat;
    use gruff::{AutoTokenizer, BUNDLED};

    use super::*;

    #[test]
    fn what_shows_that_a_call_is_one_too_many_is_not_counted() {
        let tokenizer = AutoTokenizer::from_pretrained(BUNDLED).load().unwrap();
        let format = OutputFormat { reasoning: None, tool_calls: Some(ToolCallFormat::Hermes) };
        let choice = |most_calls| Choice {
            reader: TextReader::new(tokenizer.tokenizer(), Arc::default(), format, Vec::new(), false),
            parser: OutputParser::new(None, format.tool_calls, "", &[]),
            logprobs: Untold::default(),
            calls: 0,
            most_calls,
            tokens: 0,
            told: 0,
            reasoning_tokens: 0,
            over: false,
        };
        let call = ["<tool_call>", "\n", "{\"name\": \"", "f", "\", \"arguments\": {\"x\": ", "1", "}}"];
        let between = ["\n", "</tool_call>", "\n"];
        let pieces: Vec<&str> = call.iter().chain(&between).chain(&call).copied().collect();
        let read = |most_calls| {
            let mut choice = choice(most_calls);
            let mut events = Vec::new();
            for piece in &pieces {
                events.extend(choice.token(piece));
                if choice.over {
                    break;
                }
            }
            let begun = events.iter().filter(|event| matches!(event, OutputEvent::CallStart { .. })).count();
            (begun, choice.over, choice.own_tokens())
        };
        let (calls, over, tokens) = read(1);
        assert_eq!((calls, over), (1, true));
        assert!((call.len()..=call.len() + between.len()).contains(&tokens), "{tokens}");
        assert_eq!(read(2), (2, false, pieces.len()));
    }
}
