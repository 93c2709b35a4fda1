//! What can go wrong with a chat template.

/// An error of a chat template. `template` is where the template comes from, such as the metadata
/// key `tokenizer.chat_template`; `line` is a line of it, 0 where none is to blame.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// There is no template of that name.
    #[error("{wanted} is not in the model's metadata; {available}")]
    Missing {
        /// The metadata key looked for.
        wanted: String,
        /// Which templates there are, and what to do.
        available: String,
    },
    /// The template is not valid Jinja.
    #[error("{template}, line {line}: {message}. The template itself is at fault: give another one")]
    Syntax {
        /// Where the template comes from.
        template: String,
        /// The line at fault.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template called `raise_exception`.
    #[error("the template refused these messages: {message} ({template}, line {line})")]
    Refused {
        /// Where the template comes from.
        template: String,
        /// The line that refused.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// The template cannot be applied to this input.
    #[error(
        "{template}, line {line}: {message}. The messages may lack something this template needs, or have something it does not know"
    )]
    Failed {
        /// Where the template comes from.
        template: String,
        /// The line that failed.
        line: usize,
        /// What failed.
        message: String,
    },
    /// The template asked for more than a limit allows.
    #[error(
        "{template}, line {line}: stopped by the limit on {limit}. No ordinary chat template needs that much: check where it comes from"
    )]
    Limit {
        /// Where the template comes from.
        template: String,
        /// The line that was reached.
        line: usize,
        /// Which limit.
        limit: String,
    },
    /// The request cannot be rendered by any template.
    #[error("{0}")]
    Input(String),
}
