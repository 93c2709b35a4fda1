//! `continue_final_message`: a rendering that stops inside the last message.

use serde_json::{Map, Value};

use super::TemplateError;
use super::python::text::{is_space, strip};
use super::template::{REASONING_FIELDS, RenderInput};

/// Put behind the text to continue, to find in the rendering where that ends. Its space tells
/// whether the template strips the message.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Whether the model continues the last message instead of beginning a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Continuation<'a> {
    /// It does not.
    #[default]
    None,
    /// It continues this field of it: `content`, or `reasoning_content`.
    Field(&'a str),
}

/// A continuation under way.
pub(super) struct Continued {
    /// The text that is continued.
    message: String,
}

impl Continuation<'_> {
    /// Tags the text to continue.
    pub(super) fn begin(
        self,
        input: &RenderInput<'_>,
        template: &str,
        messages: &mut [Map<String, Value>],
    ) -> Result<Option<Continued>, TemplateError> {
        let Continuation::Field(field) = self else {
            return Ok(None);
        };
        let fail = |message: String| Err(TemplateError::Input(format!("continue_final_message: {message}")));
        if input.add_generation_prompt {
            return fail("cannot be combined with add_generation_prompt, which begins a new message".into());
        }
        let Some(last) = messages.last_mut() else {
            return fail("there is no message to continue".into());
        };
        let Some(value) = last.get(field).cloned() else {
            return fail(format!("the last message has no \"{field}\""));
        };
        // Reasoning goes to the template under several names: whichever it reads is tagged.
        let fields: Vec<&str> = match REASONING_FIELDS.contains(&field) {
            true => REASONING_FIELDS.into_iter().filter(|name| last.get(*name) == Some(&value)).collect(),
            false => vec![field],
        };
        if !fields.iter().any(|name| template.contains(name)) {
            return fail(format!("the template does not read \"{field}\""));
        }
        let message = match value {
            Value::String(text) => {
                for name in fields {
                    last.insert(name.to_owned(), Value::from(format!("{text}{TAG}")));
                }
                text
            }
            Value::Array(mut parts) => {
                let text = parts.iter_mut().rev().find_map(|part| part.get_mut("text"));
                let Some(Value::String(text)) = text else {
                    return fail("the last message has no text to continue".into());
                };
                let message = text.clone();
                text.push_str(TAG);
                last.insert(field.to_owned(), Value::Array(parts));
                message
            }
            _ => return fail(format!("\"{field}\" of the last message is not text")),
        };
        Ok(Some(Continued { message }))
    }
}

impl Continued {
    /// Cuts the rendering off where the continued text ends.
    pub(super) fn finish(self, rendered: String) -> Result<String, TemplateError> {
        let at = rendered.rfind(strip(TAG)).filter(|_| rendered.contains(strip(&self.message)));
        let Some((before, after)) = at.and_then(|at| rendered.split_at_checked(at)) else {
            return Err(TemplateError::Input(
                "continue_final_message: the template leaves the last message out or changes it, so it cannot be continued"
                    .to_owned(),
            ));
        };
        // Where the template strips the message, its end is stripped as well.
        Ok(match after.starts_with(TAG) {
            true => before.to_owned(),
            false => before.trim_end_matches(is_space).to_owned(),
        })
    }
}
