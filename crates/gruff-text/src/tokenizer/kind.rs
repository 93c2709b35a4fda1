//! The kinds of tokenizer that `tokenizer.ggml.model` names, and what each does when the file is silent.

use gruff_gguf::Metadata;

use super::bpe::{self, Bpe};
use super::dna::HybridDna;
use super::plamo2::Plamo2;
use super::pre::{self, Pre};
use super::rwkv::Rwkv;
use super::space::SpaceRules;
use super::special::{Defaults, SpecialTokens};
use super::spm::Spm;
use super::unigram::Unigram;
use super::vocab::{SCORES, Vocab};
use super::whitespace::Whitespace;
use super::wordpiece::WordPiece;
use super::{Model, PRE, TokenizerOptions};
use crate::Error;

/// A kind of tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gpt2,
    Gemma4,
    HybridDna,
    Whitespace,
    Llama,
    Bert,
    T5,
    Rwkv,
    Plamo2,
}

const NAMES: &[(&str, Kind)] = &[
    ("gpt2", Kind::Gpt2),
    ("gemma4", Kind::Gemma4),
    ("hybriddna", Kind::HybridDna),
    ("whitespace", Kind::Whitespace),
    ("llama", Kind::Llama),
    ("bert", Kind::Bert),
    ("t5", Kind::T5),
    ("rwkv", Kind::Rwkv),
    ("plamo2", Kind::Plamo2),
];

/// A model, and which special tokens a sequence gets when the file does not say.
pub(crate) struct Built {
    pub(crate) model: Box<dyn Model>,
    pub(crate) add_bos: bool,
    pub(crate) add_eos: bool,
    /// Whether the vocabulary writes spaces as U+2581.
    pub(crate) escaped_spaces: bool,
}

impl Built {
    fn new(model: impl Model + 'static) -> Self {
        Built { model: Box::new(model), add_bos: false, add_eos: false, escaped_spaces: false }
    }
}

impl Kind {
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind).ok_or_else(|| {
            let known: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
            Error::UnknownModel { model: name.to_owned(), known: known.join(", ") }
        })
    }

    /// The roles of fixed ids.
    pub(crate) fn defaults(self) -> Defaults {
        let none = Defaults::default();
        match self {
            Kind::Llama => Defaults { bos: Some(1), eos: Some(2), unk: Some(0), ..none },
            Kind::Bert => Defaults {
                bos: Some(101),
                unk: Some(100),
                sep: Some(102),
                pad: Some(0),
                mask: Some(103),
                ..none
            },
            Kind::T5 => Defaults { eos: Some(1), unk: Some(2), pad: Some(0), ..none },
            Kind::Plamo2 => Defaults { bos: Some(1), eos: Some(2), unk: Some(0), pad: Some(3), ..none },
            _ => none,
        }
    }

    pub(crate) fn build(
        self,
        metadata: &Metadata,
        options: &TokenizerOptions,
        vocab: &Vocab,
        special: &SpecialTokens,
        warnings: &mut Vec<String>,
    ) -> Result<Built, Error> {
        Ok(match self {
            Kind::Llama => {
                require_scores(vocab)?;
                let model = Spm::new(vocab, space_rules(metadata)?, special.unk);
                Built { add_bos: true, escaped_spaces: true, ..Built::new(model) }
            }
            Kind::Bert => {
                Built { add_bos: true, add_eos: true, ..Built::new(WordPiece::new(metadata, special.unk)?) }
            }
            Kind::T5 => {
                require_scores(vocab)?;
                let model = Unigram::new(metadata, vocab, space_rules(metadata)?, special.unk)?;
                Built { add_eos: true, escaped_spaces: true, ..Built::new(model) }
            }
            Kind::Rwkv => Built::new(Rwkv::new(vocab, special.unk)?),
            Kind::Plamo2 => {
                require_scores(vocab)?;
                Built::new(Plamo2::new(vocab)?)
            }
            Kind::Gpt2 | Kind::Gemma4 | Kind::HybridDna | Kind::Whitespace => {
                let pre = self.pre(metadata, options, warnings)?;
                let bpe = Bpe::new(vocab, metadata.require_str_array(bpe::MERGES)?, &pre)?;
                let model: Box<dyn Model> = match self {
                    Kind::HybridDna => HybridDna::around(bpe, vocab),
                    Kind::Whitespace => {
                        let lowercase = metadata.bool_or("tokenizer.ggml.normalizer.lowercase", false)?;
                        Box::new(Whitespace { bpe, lowercase })
                    }
                    _ => Box::new(bpe),
                };
                Built { model, add_bos: pre.add_bos, add_eos: false, escaped_spaces: pre.escape_spaces }
            }
        })
    }

    /// The pre-tokenizer: the one asked for, else the file's, else the one of old files.
    fn pre(
        self,
        metadata: &Metadata,
        options: &TokenizerOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Pre, Error> {
        let name = match (&options.pre, metadata.str(PRE)?) {
            (Some(pre), _) => pre,
            (None, _) if self == Kind::Gemma4 => pre::GEMMA4,
            (None, Some(pre)) => pre,
            (None, None) => {
                warnings.push(format!(
                    "`{PRE}` is missing, as in files of before May 2024: text is split by the rule `{}`, which \
                     may not be how the model learned it; the option `pre` names another",
                    pre::DEFAULT
                ));
                pre::DEFAULT
            }
        };
        Pre::named(name)
            .ok_or_else(|| Error::UnknownPre { pre: name.to_owned(), known: Pre::names().join(", ") })
    }
}

fn require_scores(vocab: &Vocab) -> Result<(), Error> {
    if vocab.has_scores() {
        return Ok(());
    }
    Err(Error::vocabulary(SCORES, "is missing, but this kind of tokenizer goes by score"))
}

fn space_rules(metadata: &Metadata) -> Result<SpaceRules, Error> {
    Ok(SpaceRules {
        prefix: metadata.bool_or("tokenizer.ggml.add_space_prefix", true)?,
        remove_extra: metadata.bool_or("tokenizer.ggml.remove_extra_whitespaces", false)?,
    })
}
