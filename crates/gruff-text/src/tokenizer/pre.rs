//! The pre-tokenizers that files name (`tokenizer.ggml.pre`): how text is cut before byte-pair merges, and what
//! else goes with a name. Each pattern is the one in the published tokenizer.json of the models that use it.

use super::bpe::Alphabet;
use super::split::Stage::{self, Regex, Thousands, ThousandsBeforeBorder};

/// What a pre-tokenizer's name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pre {
    /// The steps that cut the text.
    pub(crate) stages: &'static [Stage],
    /// What merges start from.
    pub(crate) alphabet: Alphabet,
    /// Whether a piece that is a token as it stands is taken whole, even where merges would not build it.
    pub(crate) ignore_merges: bool,
    /// Whether the beginning-of-sequence token is added when the file does not say.
    pub(crate) add_bos: bool,
    /// Whether spaces are written as U+2581, as in SentencePiece.
    pub(crate) escape_spaces: bool,
    /// Whether a run of line feeds that is a token is taken whole.
    pub(crate) whole_line_feeds: bool,
}

impl Pre {
    const fn new(stages: &'static [Stage]) -> Self {
        Pre {
            stages,
            alphabet: Alphabet::Bytes,
            ignore_merges: false,
            add_bos: false,
            escape_spaces: false,
            whole_line_feeds: false,
        }
    }

    const fn ignore_merges(self) -> Self {
        Pre { ignore_merges: true, ..self }
    }

    const fn add_bos(self) -> Self {
        Pre { add_bos: true, ..self }
    }

    const fn characters(self) -> Self {
        Pre { alphabet: Alphabet::Characters, ..self }
    }

    const fn escape_spaces(self) -> Self {
        Pre { escape_spaces: true, ..self }
    }

    const fn whole_line_feeds(self) -> Self {
        Pre { whole_line_feeds: true, ..self }
    }

    /// The pre-tokenizer with this name.
    pub(crate) fn named(name: &str) -> Option<Pre> {
        TABLE.iter().find(|(names, _)| names.contains(&name)).map(|(_, pre)| *pre)
    }

    /// Every name with what it stands for, the usual one of those that stand for the same first.
    pub(crate) fn table() -> impl Iterator<Item = (&'static str, &'static Pre)> {
        TABLE.iter().flat_map(|(names, pre)| names.iter().map(move |name| (*name, pre)))
    }

    /// Whether merges start from bytes, and nothing else is done to the text than cutting it.
    pub(crate) fn is_byte_level(&self) -> bool {
        matches!(self.alphabet, Alphabet::Bytes) && !self.escape_spaces
    }

    /// Every name, in alphabetical order.
    pub(crate) fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = TABLE.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        names.sort_unstable();
        names
    }
}

/// The name that files without one get.
pub(crate) const DEFAULT: &str = "default";
/// The one that goes with the model `gemma4`, whatever the file says.
pub(crate) const GEMMA4: &str = "gemma4";

/// GPT-2's pattern, which a byte-level step of tokenizer.json applies unless told otherwise.
pub(crate) const GPT2_PATTERN: &str =
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// How tokenizer.json writes [`Stage::ThousandsBeforeBorder`].
pub(crate) const THOUSANDS_BEFORE_BORDER: &str = r"\d{1,3}(?=(?:\d{3})*\b)";

const GPT2: Stage = Regex(GPT2_PATTERN);

const LLAMA3: Stage = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const QWEN2: Stage = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const QWEN35: Stage = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Words split where case changes; o200k of tiktoken.
const GPT4O: Stage = Regex(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const TEKKEN: Stage = Regex(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const YOUTU: Stage = Regex(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const KIMI_K2: Stage = Regex(
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const DEEPSEEK3: Stage = Regex(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
);

const SPARK: Stage = Regex(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
);

/// DeepSeek LLM's list of cased letters.
const DEEPSEEK_LETTERS: Stage = Regex(
    r"\s?[A-Za-z\u{00B5}\u{00C0}-\u{00D6}\u{00D8}-\u{00F6}\u{00F8}-\u{01BA}\u{01BC}-\u{01BF}\u{01C4}-\u{0293}\u{0295}-\u{02AF}\u{0370}-\u{0373}\u{0376}\u{0377}\u{037B}-\u{037D}\u{037F}\u{0386}\u{0388}-\u{038A}\u{038C}\u{038E}-\u{03A1}\u{03A3}-\u{03F5}\u{03F7}-\u{0481}\u{048A}-\u{052F}\u{0531}-\u{0556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
);

/// CJK, and the wide ranges that DeepSeek's first models put with it.
const DEEPSEEK_CJK: Stage = Regex(r"[\u{4E00}-\u{9FA5}\u{0800}-\u{4E00}\u{AC00}-\u{D7FF}]+");
const HAN_AND_KANA: Stage = Regex(r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+");
const LINE_BREAK: Stage = Regex(r"[\r\n]");
const DIGIT: Stage = Regex(r"\p{N}");
const DIGITS: Stage = Regex(r"\p{N}+");
const THREE_DIGITS: Stage = Regex(r"\p{N}{1,3}");
const ASCII_TRIPLES: Stage = Regex("[0-9][0-9][0-9]");
const LINES: Stage = Regex(r"[^\n]+|[\n]+");

/// BLOOM's words: anything but white space and the punctuation of several scripts.
const BLOOM: Stage = Regex(r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{0964}\u{06D4}\u{060C})]+");

type Row = (&'static [&'static str], Pre);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    (&["default"], Pre::new(&[Regex(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, DIGITS, ASCII_TRIPLES])),
    (&["gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum",
       "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling", "jina-v1-en",
       "jina-v2-code", "roberta-bpe"],
        Pre::new(&[GPT2])),
    (&["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        Pre::new(&[DIGIT, GPT2])),
    (&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
        Pre::new(&[LLAMA3]).ignore_merges().add_bos()),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], Pre::new(&[LLAMA3])),
    (&["glm4", "glm5"], Pre::new(&[LLAMA3]).ignore_merges()),
    (&["jais-2"], Pre::new(&[Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    )])),
    (&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"],
        Pre::new(&[QWEN2])),
    (&["qwen35"], Pre::new(&[QWEN35])),
    (&["laguna"], Pre::new(&[LINES, QWEN2])),
    (&["minicpm5"], Pre::new(&[THREE_DIGITS, Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )]).ignore_merges()),
    (&["ufakzeka"], Pre::new(&[Regex(
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )])),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], Pre::new(&[Regex(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )])),
    (&["seed-coder"], Pre::new(&[Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    )])),
    (&["exaone-moe"], Pre::new(&[Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )])),
    (&["tekken"], Pre::new(&[TEKKEN]).ignore_merges().add_bos()),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], Pre::new(&[GPT4O])),
    (&["granite-embed-multi-97m"], Pre::new(&[GPT4O]).ignore_merges()),
    (&["tiny_aya", "cohere2moe"], Pre::new(&[ThousandsBeforeBorder, GPT4O])),
    (&["youtu"], Pre::new(&[
        Regex(r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"),
        YOUTU,
    ]).ignore_merges()),
    (&["kimi-k2"], Pre::new(&[KIMI_K2])),
    (&["deepseek-llm"], Pre::new(&[
        LINE_BREAK, DEEPSEEK_LETTERS, Regex(r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+"), Regex(r"\s+$"), DEEPSEEK_CJK, DIGITS,
    ])),
    (&["deepseek-coder"], Pre::new(&[LINE_BREAK, Regex(r"\s?\p{L}+"), Regex(r"\s?\p{P}+"), DEEPSEEK_CJK, DIGIT])),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], Pre::new(&[THREE_DIGITS, HAN_AND_KANA, DEEPSEEK3])),
    (&["spark2_5"], Pre::new(&[THREE_DIGITS, HAN_AND_KANA, SPARK, DIGIT])),
    (&["afmoe"], Pre::new(&[
        Thousands,
        Regex(r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{0E40}-\u{0E7F}\u{0E80}-\u{0EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"),
        DEEPSEEK3,
    ])),
    (&["falcon"], Pre::new(&[Regex(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, ASCII_TRIPLES])),
    (&["bloom", "poro-chat", "gpt3-finnish"], Pre::new(&[BLOOM])),
    (&["viking"], Pre::new(&[BLOOM, DIGIT])),
    (&["chameleon"], Pre::new(&[
        Regex("<sentinel:[0-9]+>"),
        Regex("(?:IMGIMG)(?:(?:A|B|C|D|E|F|G|H|I){1,4})Z"),
        Regex(r"(?:[\t\n]|    |  )"),
        DIGIT,
        Regex(r"[\p{P}!-/:-@\[-`{-~]"),
        GPT2,
    ]).add_bos()),
    (&["superbpe"], Pre::new(&[Thousands])),
    (&["gemma4", "granite-embed-multi-311m", "mmbert"],
        Pre::new(&[LINES]).characters().escape_spaces().whole_line_feeds().add_bos()),
    (&["sarvam-moe"], Pre::new(&[LINES]).characters().escape_spaces()),
    (&["whitespace"], Pre::new(&[Regex(r"\S+")]).characters()),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::split::Splitter;

    #[test]
    fn every_name_is_there_once_and_its_patterns_compile() {
        let names = Pre::names();
        assert_eq!(names.len(), 92);
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
        for (names, pre) in TABLE {
            let splitter = Splitter::new(pre.stages).unwrap_or_else(|error| panic!("{names:?}: {error}"));
            let text = "Hello, WORLD's 12345 naïve  déjà-vu\n\n 中文かな 한국어 👍🏽\t\u{301}x";
            let ends = splitter.ends(text);
            assert_eq!(ends.last(), Some(&text.len()), "{names:?}");
            assert!(ends.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
            assert!(ends.iter().all(|&end| text.is_char_boundary(end)), "{names:?}");
        }
        assert!(Pre::named("no-such-name").is_none());
    }
}
