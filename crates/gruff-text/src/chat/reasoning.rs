//! Thinking models: switching their reasoning on and off, and telling it from the answer.

mod channels;
mod tags;

use serde_json::{Map, Value};

use super::{ChatTemplate, Message, RenderInput};
use channels::Channels;
use tags::Tags;

/// Whether a model is asked to reason before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningMode {
    /// It is.
    On,
    /// It is not.
    Off,
    /// The template's own default.
    #[default]
    Auto,
}

impl ReasoningMode {
    /// The template variables that ask for it, for [`RenderInput::variables`]. Templates read
    /// `enable_thinking` (Qwen, GLM, SmolLM3 …) or `thinking` (DeepSeek, Granite, Kimi).
    pub fn variables(self) -> Map<String, Value> {
        let on = match self {
            ReasoningMode::Auto => return Map::new(),
            ReasoningMode::On => true,
            ReasoningMode::Off => false,
        };
        ["enable_thinking", "thinking"].map(|name| (name.to_owned(), Value::from(on))).into_iter().collect()
    }
}

/// How a model's output tells reasoning from answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningFormat {
    /// Reasoning comes first, between two tags.
    Tags {
        /// What begins it.
        start: &'static str,
        /// What ends it.
        end: &'static str,
    },
    /// Messages in channels (gpt-oss): `<|channel|>analysis<|message|>…<|end|>`.
    Channels,
    /// Messages to recipients: `<|start|>assistant to=self<|message|>…<|eom|>`.
    Recipients,
}

/// The tags that models use, most particular first.
const KNOWN: [ReasoningFormat; 12] = [
    ReasoningFormat::Recipients,
    ReasoningFormat::Channels,
    ReasoningFormat::Tags { start: "<|channel>thought", end: "<channel|>" },
    ReasoningFormat::Tags { start: "<|START_THINKING|>", end: "<|END_THINKING|>" },
    ReasoningFormat::Tags { start: "<seed:think>", end: "</seed:think>" },
    ReasoningFormat::Tags { start: "<mm:think>", end: "</mm:think>" },
    ReasoningFormat::Tags { start: "[THINK]", end: "[/THINK]" },
    ReasoningFormat::Tags { start: "<|inner_prefix|>", end: "<|inner_suffix|>" },
    ReasoningFormat::Tags { start: "◁think▷", end: "◁/think▷" },
    ReasoningFormat::Tags { start: "<|think|>", end: "<|end|>" },
    ReasoningFormat::Tags { start: "Here are my reasoning steps:", end: "[BEGIN FINAL RESPONSE]" },
    ReasoningFormat::Tags { start: "<think>", end: "</think>" },
];

impl ReasoningFormat {
    fn in_text(text: &str) -> Option<ReasoningFormat> {
        KNOWN.into_iter().find(|format| match format {
            ReasoningFormat::Channels => text.contains("<|channel|>") && text.contains("analysis"),
            ReasoningFormat::Recipients => text.contains(" to=self<|message|>"),
            ReasoningFormat::Tags { start, end } => text.contains(start) && text.contains(end),
        })
    }

    /// Whether a special token is one of its marks.
    pub(super) fn uses(self, token: &str) -> bool {
        match self {
            ReasoningFormat::Tags { start, end } => start.contains(token) || end.contains(token),
            ReasoningFormat::Channels | ReasoningFormat::Recipients => channels::uses(token),
        }
    }

    /// Whether a prompt ends inside reasoning, because the template began it (`<think>\n`).
    pub fn is_opened_by(self, prompt: &str) -> bool {
        match self {
            ReasoningFormat::Tags { start, .. } => prompt.trim_end().ends_with(start),
            ReasoningFormat::Channels => prompt.ends_with("<|channel|>analysis<|message|>"),
            ReasoningFormat::Recipients => prompt.ends_with(" to=self<|message|>"),
        }
    }
}

/// What a template knows of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningSupport {
    /// How the model's output tells reasoning from answer; `None` for models that do not reason.
    pub format: Option<ReasoningFormat>,
    /// Whether [`ReasoningMode::On`] and [`ReasoningMode::Off`] make a difference.
    pub switchable: bool,
}

impl ChatTemplate {
    /// Finds out what the template knows of reasoning, from its text and by rendering a greeting.
    pub fn reasoning(&self) -> ReasoningSupport {
        let messages = [Message::user("Hi")];
        let render = |mode: ReasoningMode| {
            let input = RenderInput {
                messages: &messages,
                add_generation_prompt: true,
                bos_token: Some(""),
                eos_token: Some(""),
                variables: mode.variables(),
                ..RenderInput::default()
            };
            self.render(&input).map(|rendered| rendered.text).ok()
        };
        let on = render(ReasoningMode::On);
        let format =
            ReasoningFormat::in_text(self.source()).or_else(|| ReasoningFormat::in_text(on.as_deref()?));
        ReasoningSupport { format, switchable: on.is_some() && on != render(ReasoningMode::Off) }
    }
}

/// A piece of what a model says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Of its reasoning.
    Reasoning(String),
    /// Of its answer.
    Content(String),
}

/// Tells reasoning from answer in text that arrives piece by piece.
///
/// However the text is cut, the pieces add up to the same: nothing is lost or doubled. Only the
/// tags, and white space next to them, are left out.
///
/// ```
/// use gruff_text::chat::{Piece, ReasoningFormat, ReasoningParser};
///
/// let format = ReasoningFormat::Tags { start: "<think>", end: "</think>" };
/// let mut parser = ReasoningParser::new(Some(format), "<|im_start|>assistant\n<think>\n");
/// let mut pieces = parser.feed("Two and two.</th");
/// pieces.extend(parser.feed("ink>\n\nFour."));
/// pieces.extend(parser.finish());
/// assert_eq!(pieces, [
///     Piece::Reasoning("Two and two.".to_owned()),
///     Piece::Content("Four.".to_owned()),
/// ]);
/// ```
#[derive(Debug, Clone)]
pub struct ReasoningParser {
    machine: Machine,
}

#[derive(Debug, Clone)]
enum Machine {
    Plain,
    Tags(Tags),
    Channels(Channels),
}

impl ReasoningParser {
    /// A parser for what follows `prompt`. Without a format everything is content.
    pub fn new(format: Option<ReasoningFormat>, prompt: &str) -> ReasoningParser {
        let machine = match format {
            None => Machine::Plain,
            Some(format @ ReasoningFormat::Tags { start, end }) => {
                Machine::Tags(Tags::new(start, end, format.is_opened_by(prompt)))
            }
            Some(format @ (ReasoningFormat::Channels | ReasoningFormat::Recipients)) => {
                Machine::Channels(Channels::new(format.is_opened_by(prompt)))
            }
        };
        ReasoningParser { machine }
    }

    /// Whether the reasoning goes on: more text would be part of it, whatever it is.
    pub(super) fn is_open(&self) -> bool {
        matches!(&self.machine, Machine::Tags(tags) if tags.is_open())
    }

    /// Takes more text and gives what is certain by now.
    pub fn feed(&mut self, text: &str) -> Vec<Piece> {
        let mut out = Vec::new();
        match &mut self.machine {
            Machine::Plain => push(&mut out, false, text.to_owned()),
            Machine::Tags(tags) => tags.feed(text, &mut out),
            Machine::Channels(channels) => channels.feed(text, &mut out),
        }
        out
    }

    /// Gives what was held back, when the text is at its end.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut out = Vec::new();
        match &mut self.machine {
            Machine::Plain => {}
            Machine::Tags(tags) => tags.finish(&mut out),
            Machine::Channels(channels) => channels.finish(&mut out),
        }
        out
    }
}

/// Adds text to the pieces, joined to the last where that is of the same kind.
fn push(out: &mut Vec<Piece>, reasoning: bool, text: String) {
    if text.is_empty() {
        return;
    }
    match (out.last_mut(), reasoning) {
        (Some(Piece::Reasoning(last)), true) | (Some(Piece::Content(last)), false) => last.push_str(&text),
        (_, true) => out.push(Piece::Reasoning(text)),
        (_, false) => out.push(Piece::Content(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const THINK: ReasoningFormat = ReasoningFormat::Tags { start: "<think>", end: "</think>" };

    fn parse<'a>(
        format: ReasoningFormat,
        prompt: &str,
        parts: impl IntoIterator<Item = &'a str>,
    ) -> (String, String) {
        let mut parser = ReasoningParser::new(Some(format), prompt);
        let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| parser.feed(part)).collect();
        pieces.extend(parser.finish());
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => reasoning.push_str(&text),
                Piece::Content(text) => content.push_str(&text),
            }
        }
        (reasoning, content)
    }

    #[test]
    fn reasoning_is_told_from_the_answer() {
        for (prompt, text, reasoning, content) in [
            ("", "<think>\na\n</think>\n\nb", "a", "b"),
            ("", "\n<think>a</think>b", "a", "b"),
            ("<think>\n", "a\n</think>\n\nb", "a", "b"),
            ("<think>\n", "<think>\na</think>b", "a", "b"),
            ("<think>\n", "a never ends \n", "a never ends \n", ""),
            ("<think>\n\n</think>\n\n", "b", "", "b"),
            ("", "b about <think> tags </think>", "", "b about <think> tags </think>"),
            ("", "  b ", "", "  b "),
            ("", "<thin", "", "<thin"),
            ("", "<think>a</think", "a</think", ""),
            ("", "<think></think>b", "", "b"),
            ("", "\n</think>\nb", "", "b"),
            ("", "</thin", "", "</thin"),
            ("", "<think>a</think>b</think>c", "a", "b</think>c"),
            ("", "", "", ""),
        ] {
            assert_eq!(
                parse(THINK, prompt, [text]),
                (reasoning.into(), content.into()),
                "{prompt:?} {text:?}"
            );
        }
    }

    #[test]
    fn channels_are_told_apart() {
        for (text, reasoning, content) in [
            (
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
                "a",
                "b",
            ),
            ("<|channel|>final<|message|>b", "", "b"),
            (
                "<|channel|>commentary<|message|>first<|end|><|start|>assistant<|channel|>analysis<|message|>a",
                "a",
                "first",
            ),
            (
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
                "a",
                "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
            ),
            ("plain text", "", "plain text"),
            ("<|channel|>ana", "", "<|channel|>ana"),
        ] {
            assert_eq!(
                parse(ReasoningFormat::Channels, "", [text]),
                (reasoning.into(), content.into()),
                "{text}"
            );
        }
    }

    /// Text with many tags, whole and broken.
    fn text() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("<think>".to_owned()),
            Just("</think>".to_owned()),
            Just("<|channel|>analysis".to_owned()),
            Just("<|channel|>final".to_owned()),
            Just("<|channel|>commentary to=functions.f".to_owned()),
            Just("<|message|>".to_owned()),
            Just("<|end|>".to_owned()),
            Just("<|start|>assistant".to_owned()),
            Just("<|call|>".to_owned()),
            Just("<|".to_owned()),
            Just("</thi".to_owned()),
            Just("\n".to_owned()),
            "[a-c \u{e9}\u{1f600}]{0,5}",
        ];
        prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
    }

    /// Cuts a text into pieces at the given places.
    fn cut<'a>(text: &'a str, places: &[usize]) -> Vec<&'a str> {
        let mut at: Vec<usize> = places.iter().map(|place| place % (text.len() + 1)).collect();
        at.retain(|at| text.is_char_boundary(*at));
        at.extend([0, text.len()]);
        at.sort_unstable();
        at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn cuts_make_no_difference(text in text(), places in prop::collection::vec(0usize..200, 0..20), opened: bool) {
            let prompt = if opened { "<think>\n" } else { "" };
            for format in [THINK, ReasoningFormat::Channels] {
                let whole = parse(format, prompt, [text.as_str()]);
                prop_assert_eq!(&parse(format, prompt, cut(&text, &places)), &whole);
                let chars: Vec<String> = text.chars().map(String::from).collect();
                prop_assert_eq!(&parse(format, prompt, chars.iter().map(String::as_str)), &whole);
            }
        }

        #[test]
        fn nothing_but_tags_and_space_is_left_out(text in text(), opened: bool) {
            let prompt = if opened { "<think>" } else { "" };
            let (reasoning, content) = parse(THINK, prompt, [text.as_str()]);
            let squeeze = |text: &str| text.split_whitespace().collect::<String>();
            let kept = squeeze(&format!("{reasoning}{content}"));
            let all = squeeze(&text);
            let without_tags = [
                all.clone(),
                all.replacen("<think>", "", 1),
                all.replacen("</think>", "", 1),
                all.replacen("<think>", "", 1).replacen("</think>", "", 1),
            ];
            prop_assert!(without_tags.contains(&kept), "{:?} -> {:?}", text, kept);
        }
    }
}
