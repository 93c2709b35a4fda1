//! Tokens with a role: where a sequence begins and ends, and what ends the answer.

use gruff_gguf::Metadata;

use super::vocab::{TokenType, Vocab};
use crate::Error;

/// The ids of the tokens with a role.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecialTokens {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) sep: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) mask: Option<u32>,
    /// The tokens around a gap to be filled in.
    pub(crate) fill: Option<FillTokens>,
    /// Every token that ends generation, ascending.
    pub(crate) end_of_generation: Vec<u32>,
}

/// The tokens that a model was trained with to fill a gap in a text: `prefix` before what precedes the gap, `suffix`
/// before what follows it, `middle` before what fills it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillTokens {
    /// Before what precedes the gap.
    pub prefix: u32,
    /// Before what follows the gap.
    pub suffix: u32,
    /// Before what fills the gap.
    pub middle: u32,
}

/// Texts and metadata keys of the tokens around a gap: Qwen, StarCoder, Granite, DeepSeek, CodeLlama, GLM. The second
/// key is what early files say.
const FILL: [(&[&str], [&str; 2]); 3] = [
    (
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
        ],
        ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
    ),
    (
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
        ],
        ["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
    ),
    (
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
        ],
        ["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
    ),
];

/// Texts of tokens that end a turn, a message or a document, whatever else the file says of them.
const ENDS: &[&str] = &[
    "<|eot_id|>",       // Llama 3
    "<|eom_id|>",       // Llama 3.1, before the result of a tool
    "<|im_end|>",       // ChatML
    "<|end|>",          // Phi 3; but see `NOT_ENDS`
    "<|return|>",       // gpt-oss
    "<|call|>",         // gpt-oss
    "<|flush|>",        // Solar Open
    "<|calls|>",        // Solar Open
    "<end_of_turn>",    // Gemma 2 and 3
    "<turn|>",          // Gemma 4
    "<|tool_response>", // Gemma 4
    "<eos>",            // Gemma 4
    "<|endoftext|>",    // GPT-2, Qwen
    "<|end_of_text|>",  // Llama 3, Granite
    "</s>",             // Llama 2, Mistral; but see `NOT_ENDS`
    "<EOT>",            // CodeLlama
    "_<EOT>",
    "[EOT]",                 // Kimi K2
    "[EOS]",                 // Kimi K2
    "<end_of_utterance>",    // SmolVLM
    "<｜end▁of▁sentence｜>", // DeepSeek
    "[e~[",                  // MiniMax M2
];

/// Texts of the tokens around repositories and files in code models: generation that reaches one is done.
const CODE_ENDS: &[&[&str]] = &[
    &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];

/// Their metadata keys, in the same order.
const CODE_END_KEYS: &[&str] = &[
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// An end that is none when the others in the row are ends too: `<|end|>` closes one message of several in
/// gpt-oss and Solar Open; `</s>` is plain text in Gemma 4 and PLaMo.
const NOT_ENDS: &[(&str, &[&str])] = &[
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|return|>", "<|calls|>"]),
    ("<|end|>", &["<|flush|>", "<|call|>"]),
    ("<|end|>", &["<|flush|>", "<|calls|>"]),
    ("</s>", &["<|tool_response>"]),
    ("</s>", &["<|plamo:eos|>"]),
];

/// The roles that a kind of tokenizer gives to fixed ids when the file is silent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) sep: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) mask: Option<u32>,
}

impl SpecialTokens {
    /// Reads the roles, and marks the tokens that end generation as control tokens in `vocab`.
    pub(crate) fn new(
        metadata: &Metadata,
        vocab: &mut Vocab,
        defaults: Defaults,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let count = vocab.len() as u32;
        let mut role = |key: &'static str, default: Option<u32>, needed: bool| {
            role(metadata, key, default, count, needed, warnings)
        };
        let cls = role("tokenizer.ggml.cls_token_id", defaults.bos, false)?;
        let bos = role("tokenizer.ggml.bos_token_id", cls, true)?;
        let eos = role("tokenizer.ggml.eos_token_id", defaults.eos, true)?;
        let eot = role("tokenizer.ggml.eot_token_id", None, true)?;
        let eom = role("tokenizer.ggml.eom_token_id", None, true)?;
        let unk = role("tokenizer.ggml.unknown_token_id", defaults.unk, false)?;
        let sep = role("tokenizer.ggml.seperator_token_id", defaults.sep, false)?;
        let pad = role("tokenizer.ggml.padding_token_id", defaults.pad, false)?;
        let mask = role("tokenizer.ggml.mask_token_id", defaults.mask, false)?;
        let mut ends: Vec<u32> = [eos, eot, eom].into_iter().flatten().collect();
        for (key, texts) in CODE_END_KEYS.iter().zip(CODE_ENDS) {
            let by_text = texts.iter().find_map(|text| vocab.id(text.as_bytes()));
            ends.extend(role(key, by_text, false)?);
        }
        let mut fill = [None; 3];
        for (found, (texts, [key, early])) in fill.iter_mut().zip(FILL) {
            let by_text = texts.iter().find_map(|text| vocab.id(text.as_bytes()));
            let early = role(early, by_text, false)?;
            *found = role(key, early, false)?;
        }
        let fill = match fill {
            [Some(prefix), Some(suffix), Some(middle)] => Some(FillTokens { prefix, suffix, middle }),
            _ => None,
        };
        ends.extend(ENDS.iter().filter_map(|text| vocab.id(text.as_bytes())));
        for (text, others) in NOT_ENDS {
            let id = |text: &str| vocab.id(text.as_bytes()).filter(|id| ends.contains(id));
            let Some(end) = id(text).filter(|&end| Some(end) != eos && Some(end) != eot) else { continue };
            if others.iter().all(|other| id(other).is_some()) {
                ends.retain(|&other| other != end);
            }
        }
        // Some converters left these as plain text.
        for &end in &ends {
            vocab.set_type(end, TokenType::Control);
        }
        ends.sort_unstable();
        ends.dedup();
        Ok(SpecialTokens { bos, eos, unk, sep, pad, mask, fill, end_of_generation: ends })
    }
}

/// The id under `key`. Ids beyond the vocabulary are errors where the role is `needed` to run the model, and
/// otherwise count as absent: published files name padding tokens that they do not have.
fn role(
    metadata: &Metadata,
    key: &'static str,
    default: Option<u32>,
    count: u32,
    needed: bool,
    warnings: &mut Vec<String>,
) -> Result<Option<u32>, Error> {
    // -1, and what it becomes as an unsigned number, say "none".
    let id = metadata.i64(key)?.filter(|&id| id != -1 && id != i64::from(u32::MAX));
    let Some(id) = id else { return Ok(default.filter(|&id| id < count)) };
    match u32::try_from(id).ok().filter(|&id| id < count) {
        Some(id) => Ok(Some(id)),
        None if needed => Err(Error::vocabulary(
            key,
            format!("the id {id} is not one of the {count} tokens of the vocabulary"),
        )),
        None => {
            warnings.push(format!("`{key}` is {id}, but the vocabulary has only {count} tokens: ignored"));
            Ok(default.filter(|&id| id < count))
        }
    }
}
