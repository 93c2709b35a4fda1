//! What an answer has to be, and how the model is held to it.

use gruff::floors::engine::logits::{LogitsProcessor, TokenContext};
use gruff::floors::engine::{Error as EngineError, FinishReason};
use gruff::floors::text::Tokenizer;
use gruff::floors::text::chat::{Demand, GrammarError, OutputFormat, outline};
use gruff::{AutoModelForCausalLM, Constraint};
use serde_json::{Value, json};

use crate::api_error::ApiError;

/// What an answer has to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Form {
    /// The schema of a document, where it is one.
    pub(crate) schema: Option<Value>,
    /// Which calls it makes.
    pub(crate) calls: Calls,
}

/// Which calls an answer makes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Calls {
    /// As the model likes, and writes them.
    #[default]
    Free,
    /// As the model likes, but these, following their schemas.
    Only(Vec<Value>),
    /// At least one of these.
    Required(Vec<Value>),
}

impl Form {
    /// Whether anything at all may be the answer.
    pub(crate) fn is_free(&self) -> bool {
        self.schema.is_none() && self.calls == Calls::Free
    }

    /// The same with no more of the schemas of tools than outlines: calls that are asked for then name tools and arguments
    /// that there are, and values have their types. `None` where schemas were promised to be followed.
    pub(crate) fn outlined(&self) -> Option<Self> {
        let outlines = |tools: &[Value]| -> Option<Vec<Value>> {
            let promised =
                tools.iter().any(|tool| tool.pointer("/function/strict") == Some(&Value::from(true)));
            (!promised).then(|| tools.iter().map(outline).collect())
        };
        let calls = match &self.calls {
            Calls::Free => Calls::Free,
            Calls::Only(tools) => Calls::Only(outlines(tools)?),
            Calls::Required(tools) => Calls::Required(outlines(tools)?),
        };
        Some(Self { schema: self.schema.clone(), calls })
    }

    /// The grammar of the answer behind a prompt; `None` where anything may be. `tools` are those that may be called.
    pub(crate) fn constraint(
        &self,
        format: &OutputFormat,
        tokenizer: &Tokenizer,
        prompt: &str,
        tools: &[Value],
        many: bool,
    ) -> Result<Option<Constraint>, ApiError> {
        let demand = match (&self.schema, &self.calls) {
            (_, Calls::Required(tools)) => Demand::Calls { tools, many },
            (Some(schema), Calls::Only(tools)) => Demand::Json { schema, tools, many },
            (Some(schema), Calls::Free) => Demand::Json { schema, tools, many },
            (None, Calls::Only(tools)) => Demand::MayCall { tools, many },
            (None, Calls::Free) => return Ok(None),
        };
        match format.grammar(tokenizer, prompt, demand) {
            Ok(lark) => Ok(Some(Constraint::Lark(lark))),
            Err(error) => Err(self.refusal(&error)),
        }
    }

    /// A grammar that there is not, as an error about the field that asks for it.
    fn refusal(&self, error: &GrammarError) -> ApiError {
        let (field, message) = (self.field(), &error.message);
        match error.tool {
            Some(place) => ApiError::unsupported(&format!("tools[{place}]"), message),
            None => ApiError::unsupported(field, format!("`{field}`: {message}")),
        }
    }

    fn field(&self) -> &'static str {
        match &self.calls {
            Calls::Required(_) => "tool_choice",
            Calls::Only(_) if self.schema.is_none() => "tools",
            _ => "response_format",
        }
    }

    /// Says which part of the request is to blame for a grammar that does not compile: each schema is tried alone.
    pub(crate) fn blame(&self, model: &AutoModelForCausalLM, tools: &[Value], error: ApiError) -> ApiError {
        // Other fields are at fault by themselves.
        if error.param.as_deref() != Some("response_format") {
            return error;
        }
        let fault = |schema: &Value| {
            model.constraint(&Constraint::json_schema(schema.clone())).err().map(ApiError::from)
        };
        if let Some(error) = self.schema.as_ref().and_then(fault) {
            return error;
        }
        for (place, tool) in tools.iter().enumerate() {
            let schema = tool.pointer("/function/parameters").cloned().unwrap_or_else(|| json!({}));
            if let Some(error) = fault(&schema) {
                let field = format!("tools[{place}]");
                let message = format!("{field}: {}", error.message.replacen("constraint", "parameters", 1));
                return ApiError { param: Some(field), message, ..error };
            }
        }
        ApiError { param: Some(self.field().to_owned()), ..error }
    }
}

/// A grammar that `max_tokens` or the end of the context may cut off: the answer's `finish_reason` then says so, as
/// OpenAI's API has it.
#[derive(Clone, Debug)]
pub(crate) struct MayBeCut(pub(crate) Box<dyn LogitsProcessor>);

impl LogitsProcessor for MayBeCut {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<(), EngineError> {
        self.0.process(context, logits)
    }

    fn finish(&mut self, context: &TokenContext<'_>, reason: FinishReason) -> Result<(), EngineError> {
        match reason {
            FinishReason::MaxNewTokens | FinishReason::Context | FinishReason::MaxTime => Ok(()),
            _ => self.0.finish(context, reason),
        }
    }
}
