//! Properties of small vocabularies made here, and what damaged ones are answered.

use std::time::{Duration, Instant};

use gruff_gguf::{Metadata, Strings};
use gruff_text::{Detokenizer, EncodeOptions, Error, TokenType, Tokenizer, TokenizerOptions};
use proptest::prelude::*;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// A byte as GPT-2's alphabet writes it.
fn letter(byte: u8) -> char {
    let visible = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if visible(byte) {
        return char::from(byte);
    }
    let shifted = (0..byte).filter(|&b| !visible(b)).count() as u32;
    char::from_u32(0x100 + shifted).unwrap()
}

fn set_tokens(metadata: &mut Metadata, tokens: &[(String, i32)]) {
    metadata.insert("tokenizer.ggml.tokens", tokens.iter().map(|(token, _)| token).collect::<Strings>());
    let types: Vec<i32> = tokens.iter().map(|(_, token_type)| *token_type).collect();
    metadata.insert("tokenizer.ggml.token_type", types);
}

/// All bytes, a few merges, two control tokens (256, 257) and a user-defined one (258).
fn byte_level(pre: &str) -> Metadata {
    let merges = ["Ġ t", "h e", "Ġt he", "i n", "a a", "aa aa", "Ã ©", "Ġ Ġ", "ĠĠ ĠĠ", "ð Ł", "ðŁ ĳ"];
    let mut tokens: Vec<(String, i32)> = (0..=255).map(|byte| (letter(byte).to_string(), NORMAL)).collect();
    tokens.push(("<|im_start|>".into(), CONTROL));
    tokens.push(("<|im_end|>".into(), CONTROL));
    tokens.push(("<think>".into(), USER_DEFINED));
    tokens.extend(merges.iter().map(|merge| (merge.replace(' ', ""), NORMAL)));
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", pre);
    set_tokens(&mut metadata, &tokens);
    metadata.insert("tokenizer.ggml.merges", merges.iter().collect::<Strings>());
    metadata.insert("tokenizer.ggml.bos_token_id", 256_u32);
    metadata.insert("tokenizer.ggml.eos_token_id", 257_u32);
    metadata
}

/// A vocabulary of the kind `model` with scores and byte tokens (3 to 258).
fn scored(model: &str) -> Metadata {
    let pieces = ["▁", "t", "h", "e", "▁t", "he", "▁the", "a", "aa", "aaaa", "é", "▁▁"];
    let mut tokens: Vec<(String, i32)> =
        vec![("<unk>".into(), UNKNOWN), ("<s>".into(), CONTROL), ("</s>".into(), CONTROL)];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.extend(pieces.iter().map(|piece| ((*piece).to_owned(), NORMAL)));
    let scores: Vec<f32> =
        (0..tokens.len()).map(|id| if id < 259 { 0.0 } else { -((id - 258) as f32) }).collect();
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", model);
    set_tokens(&mut metadata, &tokens);
    metadata.insert("tokenizer.ggml.scores", scores);
    metadata
}

fn build(metadata: &Metadata) -> Result<Tokenizer, Error> {
    Tokenizer::from_gguf(metadata, &TokenizerOptions::new())
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions::default()).unwrap()
}

fn tokens(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.id_to_token(id).unwrap()).collect()
}

/// Every vocabulary here, by a name for messages.
fn all() -> Vec<(&'static str, Tokenizer)> {
    let mut gemma = scored("gemma4");
    gemma
        .insert("tokenizer.ggml.merges", ["h e", "▁ t", "▁t he", "a a", "aa aa"].iter().collect::<Strings>());
    [
        ("gpt-2", byte_level("gpt-2")),
        ("qwen35", byte_level("qwen35")),
        ("gpt-4o", byte_level("gpt-4o")),
        ("superbpe", byte_level("superbpe")),
        ("llama", scored("llama")),
        ("t5", scored("t5")),
        ("plamo2", scored("plamo2")),
        ("gemma4", gemma),
    ]
    .into_iter()
    .map(|(name, metadata)| (name, build(&metadata).unwrap_or_else(|error| panic!("{name}: {error}"))))
    .collect()
}

#[test]
fn merges_go_by_rank() {
    let tokenizer = build(&byte_level("gpt-2")).unwrap();
    assert_eq!(tokens(&tokenizer, &plain(&tokenizer, "the the  é")), ["t", "he", "Ġthe", "Ġ", "Ġ", "Ã©"]);
    assert_eq!(tokens(&tokenizer, &plain(&tokenizer, "aaaaaaa")), ["aaaa", "aa", "a"]);
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let tokenizer = build(&scored("llama")).unwrap();
    assert_eq!(tokens(&tokenizer, &plain(&tokenizer, "the ü")), ["▁the", "▁", "<0xC3>", "<0xBC>"]);
    assert_eq!(tokenizer.decode(&plain(&tokenizer, "the ü"), true), "the ü");
    let continued: String = {
        let mut detokenizer = Detokenizer::new(&tokenizer, true).continuing();
        plain(&tokenizer, "the").into_iter().map(|id| detokenizer.push(id).to_owned()).collect()
    };
    assert_eq!(continued, " the");
}

#[test]
fn special_tokens_are_parsed_on_request_only() {
    let tokenizer = build(&byte_level("qwen35")).unwrap();
    let text = "<|im_start|>the<think><|im_end|>";
    let parsed = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
    assert_eq!(tokens(&tokenizer, &parsed), ["<|im_start|>", "t", "he", "<think>", "<|im_end|>"]);
    let unparsed = plain(&tokenizer, text);
    assert!(!unparsed.contains(&256) && !unparsed.contains(&257) && unparsed.contains(&258));
    assert_eq!(tokenizer.decode(&parsed, true), "the<think>");
    assert_eq!(tokenizer.decode(&parsed, false), text);
    assert_eq!(tokenizer.decode(&unparsed, true), text);
    assert!(tokenizer.is_control(256) && !tokenizer.is_control(258) && !tokenizer.is_control(9999));
    assert_eq!(tokenizer.token_type(258), TokenType::UserDefined);
    assert_eq!(tokenizer.token_to_id("<|im_end|>"), Some(257));

    // A control token in the text of a SentencePiece model is not to be had by merging either.
    let llama = build(&scored("llama")).unwrap();
    assert!(plain(&llama, "<s></s><unk><0x41>").iter().all(|&id| id > 2));
}

#[test]
fn sequences_begin_and_end_as_the_file_says() {
    let mut metadata = byte_level("llama-bpe");
    let add = EncodeOptions { add_special: true, parse_special: false };
    let ids = |metadata: &Metadata| build(metadata).unwrap().encode("a", add).unwrap();
    assert_eq!(ids(&metadata), [256, u32::from(b'a')]);
    metadata.insert("tokenizer.ggml.add_eos_token", true);
    assert_eq!(ids(&metadata), [256, u32::from(b'a'), 257]);
    metadata.insert("tokenizer.ggml.add_bos_token", false);
    assert_eq!(ids(&metadata), [u32::from(b'a'), 257]);
    assert_eq!(ids(&scored("llama"))[0], 1);
    assert_eq!(ids(&scored("t5")).last(), Some(&1));
}

#[test]
fn ends_of_generation_come_from_keys_and_texts() {
    let mut metadata = byte_level("qwen2");
    assert_eq!(build(&metadata).unwrap().end_of_generation(), [257]);
    metadata.insert("tokenizer.ggml.eot_token_id", 258_u32);
    metadata.insert("tokenizer.ggml.eos_token_id", 10_u32);
    let tokenizer = build(&metadata).unwrap();
    assert_eq!(tokenizer.end_of_generation(), [10, 257, 258]);
    assert!(tokenizer.is_end_of_generation(258) && !tokenizer.is_end_of_generation(256));
}

#[test]
fn an_unknown_pre_tokenizer_names_the_way_out() {
    let metadata = byte_level("brand-new");
    let error = build(&metadata).unwrap_err().to_string();
    assert!(
        error.contains("brand-new") && error.contains("qwen35") && error.contains("option `pre`"),
        "{error}"
    );
    let tokenizer = Tokenizer::from_gguf(&metadata, &TokenizerOptions::new().pre("gpt-2")).unwrap();
    assert_eq!(plain(&tokenizer, "he").len(), 1);

    let mut metadata = byte_level("gpt-2");
    metadata.remove("tokenizer.ggml.pre");
    assert!(build(&metadata).unwrap().warnings()[0].contains("tokenizer.ggml.pre"));
}

#[test]
fn damaged_vocabularies_are_named() {
    /// Name, what is damaged, how, and what the error must say.
    type Case = (&'static str, fn() -> Metadata, fn(&mut Metadata), &'static [&'static str]);
    let cases: &[Case] = &[
        (
            "no model",
            || byte_level("gpt-2"),
            |m| drop(m.remove("tokenizer.ggml.model")),
            &["tokenizer.ggml.model"],
        ),
        (
            "none",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.model", "none")),
            &["no vocabulary"],
        ),
        (
            "new kind",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.model", "bpe9")),
            &["bpe9", "gpt2"],
        ),
        (
            "no tokens",
            || byte_level("gpt-2"),
            |m| drop(m.remove("tokenizer.ggml.tokens")),
            &["tokenizer.ggml.tokens"],
        ),
        (
            "empty table",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.tokens", Strings::new())),
            &["tokenizer.ggml.tokens", "0 tokens"],
        ),
        (
            "numbers for tokens",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.tokens", vec![1_u32])),
            &["tokenizer.ggml.tokens", "array of strings"],
        ),
        (
            "no merges",
            || byte_level("gpt-2"),
            |m| drop(m.remove("tokenizer.ggml.merges")),
            &["tokenizer.ggml.merges"],
        ),
        (
            "merge of one",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.merges", ["he"].iter().collect::<Strings>())),
            &["tokenizer.ggml.merges", "merge 0", "\"he\""],
        ),
        (
            "merge into nothing",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.merges", ["h e", "e h"].iter().collect::<Strings>())),
            &["tokenizer.ggml.merges", "merge 1", "lacks"],
        ),
        (
            "few types",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.token_type", vec![1_i32; 5])),
            &["tokenizer.ggml.token_type", "5 values"],
        ),
        (
            "few scores",
            || scored("llama"),
            |m| drop(m.insert("tokenizer.ggml.scores", vec![1.0_f32])),
            &["tokenizer.ggml.scores", "1 values"],
        ),
        (
            "no scores",
            || scored("t5"),
            |m| drop(m.remove("tokenizer.ggml.scores")),
            &["tokenizer.ggml.scores"],
        ),
        (
            "score that is none",
            || scored("llama"),
            |m| {
                let mut scores = vec![0.0_f32; 271];
                scores[7] = f32::NAN;
                m.insert("tokenizer.ggml.scores", scores);
            },
            &["tokenizer.ggml.scores", "token 7"],
        ),
        (
            "end beyond the table",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.eos_token_id", 1_000_000_u32)),
            &["tokenizer.ggml.eos_token_id", "1000000"],
        ),
        (
            "text for an id",
            || byte_level("gpt-2"),
            |m| drop(m.insert("tokenizer.ggml.eos_token_id", "</s>")),
            &["tokenizer.ggml.eos_token_id"],
        ),
        (
            "twins",
            || byte_level("gpt-2"),
            |m| {
                set_tokens(m, &[("a".into(), 1), ("b".into(), 1), ("a".into(), 1)]);
                m.insert("tokenizer.ggml.merges", Strings::new());
            },
            &["tokenizer.ggml.tokens", "tokens 0 and 2", "\"a\""],
        ),
        (
            "endless token",
            || scored("llama"),
            |m| {
                set_tokens(m, &[("a".repeat(100_000), 1)]);
                m.insert("tokenizer.ggml.scores", vec![0.0_f32]);
            },
            &["tokenizer.ggml.tokens", "100000 bytes"],
        ),
        (
            "nothing but control tokens",
            || scored("llama"),
            |m| {
                let tokens: Vec<(String, i32)> =
                    (0..50_000).map(|n| (format!("{n:0>100}"), CONTROL)).collect();
                set_tokens(m, &tokens);
                m.insert("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()]);
            },
            &["tokenizer.ggml.token_type", "50000 special tokens"],
        ),
        (
            "short map",
            || scored("t5"),
            |m| drop(m.insert("tokenizer.ggml.precompiled_charsmap", vec![255_u8; 9])),
            &["tokenizer.ggml.precompiled_charsmap"],
        ),
        (
            "map of strings",
            || scored("t5"),
            |m| drop(m.insert("tokenizer.ggml.precompiled_charsmap", Strings::new())),
            &["tokenizer.ggml.precompiled_charsmap"],
        ),
        (
            "missing bytes",
            || scored("plamo2"),
            |m| {
                set_tokens(m, &[("a".into(), 1)]);
                m.insert("tokenizer.ggml.scores", vec![0.0_f32]);
            },
            &["tokenizer.ggml.tokens", "<0x00>"],
        ),
        (
            "bad escape",
            || scored("rwkv"),
            |m| {
                set_tokens(m, &[("\\x4".into(), 1)]);
                m.insert("tokenizer.ggml.scores", vec![0.0_f32]);
            },
            &["tokenizer.ggml.tokens", "token 0"],
        ),
    ];
    for (name, metadata, damage, fragments) in cases {
        let mut metadata = metadata();
        damage(&mut metadata);
        let error = match build(&metadata) {
            Ok(_) => panic!("{name}: built all the same"),
            Err(error) => error.to_string(),
        };
        for fragment in *fragments {
            assert!(error.contains(fragment), "{name}: {error} lacks {fragment}");
        }
    }
}

#[test]
fn odd_but_harmless_metadata_are_borne() {
    let mut metadata = byte_level("gpt-2");
    metadata.insert("tokenizer.ggml.padding_token_id", 1_000_000_u32);
    metadata.insert("tokenizer.ggml.unknown_token_id", u32::MAX);
    let tokenizer = build(&metadata).unwrap();
    assert_eq!((tokenizer.pad(), tokenizer.unk()), (None, None));
    assert!(tokenizer.warnings()[0].contains("padding_token_id"), "{:?}", tokenizer.warnings());

    // Scores without measure.
    for model in ["llama", "t5", "plamo2"] {
        for score in [f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut metadata = scored(model);
            metadata.insert("tokenizer.ggml.scores", vec![score; 271]);
            let tokenizer = build(&metadata).unwrap();
            let ids = plain(&tokenizer, "the aaaa é ü the");
            assert_eq!(tokenizer.decode(&ids, true).trim_start(), "the aaaa é ü the", "{model} {score}");
        }
    }
}

#[test]
fn hostile_texts_take_no_more_than_their_length_in_time() {
    let texts = [
        " ".repeat(200_000),
        "a".repeat(200_000),
        "A".repeat(200_000),
        "\n ".repeat(100_000),
        "1".repeat(200_000),
        "\u{301}".repeat(100_000),
        "'".repeat(200_000),
        "é".repeat(100_000),
        "the ".repeat(250_000),
        "<|im_star".repeat(20_000),
    ];
    for (name, tokenizer) in all() {
        for text in &texts {
            let started = Instant::now();
            let ids = plain(&tokenizer, text);
            let took = started.elapsed();
            assert!(took < Duration::from_secs(10), "{name}: {took:?} for {:?}…", &text[..4]);
            assert!(!ids.is_empty());
        }
    }
}

#[test]
fn sharing_is_cheap_and_safe() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let tokenizer = build(&byte_level("qwen35")).unwrap();
    shared(&tokenizer);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let tokenizer = tokenizer.clone();
            std::thread::spawn(move || plain(&tokenizer, "the quick the éé"))
        })
        .collect();
    let expected = plain(&tokenizer, "the quick the éé");
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}

proptest! {
    #[test]
    fn byte_level_text_comes_back(text in any::<String>()) {
        for pre in ["gpt-2", "qwen35", "llama-bpe", "deepseek-llm", "jais-2", "default", "kimi-k2", "tiny_aya"] {
            let tokenizer = build(&byte_level(pre)).unwrap();
            prop_assert_eq!(tokenizer.decode(&plain(&tokenizer, &text), false), text.as_str());
        }
    }

    #[test]
    fn text_of_scored_vocabularies_comes_back(text in "[the a\u{e9}\u{1F44D}]{0,40}") {
        for model in ["llama", "t5", "plamo2"] {
            let tokenizer = build(&scored(model)).unwrap();
            prop_assert_eq!(tokenizer.decode(&plain(&tokenizer, &text), false), text.as_str(), "{}", model);
        }
    }

    #[test]
    fn pushed_ids_give_the_decoded_text(ids in prop::collection::vec(0_u32..300, 0..60), skip in any::<bool>()) {
        for (name, tokenizer) in all() {
            let mut detokenizer = Detokenizer::new(&tokenizer, skip);
            let mut text = String::new();
            for &id in &ids {
                text.push_str(detokenizer.push(id));
            }
            text.push_str(detokenizer.finish());
            prop_assert_eq!(&text, &tokenizer.decode(&ids, skip), "{}", name);
            let mut continuing = Detokenizer::new(&tokenizer, skip).continuing();
            let mut text: String = ids.iter().map(|&id| continuing.push(id).to_owned()).collect();
            text.push_str(continuing.finish());
            let shown = ids.iter().filter(|&&id| !(skip && tokenizer.is_control(id)));
            let bytes: Vec<u8> = shown.flat_map(|&id| tokenizer.token_to_bytes(id)).collect();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes), "{}", name);
        }
    }

    #[test]
    fn any_strings_make_a_vocabulary_or_an_error(
        strings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 1..30),
        merges in prop::collection::vec("[a-c ]{0,4}", 0..6),
        types in prop::collection::vec(-1_i32..8, 30),
        model in prop::sample::select(vec!["gpt2", "gemma4", "llama", "bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace"]),
        text in any::<String>(),
    ) {
        let mut metadata = Metadata::new();
        metadata.insert("tokenizer.ggml.model", model);
        metadata.insert("tokenizer.ggml.pre", "qwen35");
        metadata.insert("tokenizer.ggml.tokens", strings.iter().collect::<Strings>());
        metadata.insert("tokenizer.ggml.token_type", types[..strings.len()].to_vec());
        metadata.insert("tokenizer.ggml.scores", vec![-1.0_f32; strings.len()]);
        metadata.insert("tokenizer.ggml.merges", merges.iter().collect::<Strings>());
        if let Ok(tokenizer) = build(&metadata) {
            let ids = tokenizer.encode(&text, EncodeOptions::PROMPT).unwrap();
            let _ = tokenizer.decode(&ids, false);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        }
    }
}

#[test]
fn gaps_are_filled_where_the_vocabulary_has_tokens_for_it() {
    let fill = |metadata: &Metadata| build(metadata).unwrap().encode_fill("aa", "the</s>").unwrap();
    assert_eq!(fill(&byte_level("gpt-2")), None);
    // By their texts, as Qwen, StarCoder and DeepSeek write them.
    for texts in [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ] {
        let mut tokens: Vec<(String, i32)> =
            (0..=255).map(|byte| (letter(byte).to_string(), NORMAL)).collect();
        tokens.extend(texts.map(|text| (text.to_owned(), CONTROL)));
        let mut metadata = byte_level("gpt-2");
        set_tokens(&mut metadata, &tokens);
        metadata.insert("tokenizer.ggml.merges", ["a a"; 0].iter().collect::<Strings>());
        let tokenizer = build(&metadata).unwrap();
        let ids = tokenizer.encode_fill("aa", texts[2]).unwrap().unwrap();
        // What looks like a mark in the texts is text.
        assert_eq!(ids[..4], [256, 97, 97, 257]);
        assert_eq!((ids.len(), ids.last()), (4 + texts[2].len() + 1, Some(&258)));
        assert_eq!(ids.iter().filter(|id| **id > 255).count(), 3);
    }
    // By keys, new and early; all three are needed.
    let keys = [["fim_pre", "fim_suf", "fim_mid"], ["prefix", "suffix", "middle"]];
    for names in keys {
        let mut metadata = byte_level("gpt-2");
        for (name, id) in names.iter().zip([258_u32, 256, 257]) {
            let before = build(&metadata).unwrap().fill_tokens();
            assert_eq!(before, None);
            metadata.insert(&format!("tokenizer.ggml.{name}_token_id"), id);
        }
        let found = build(&metadata).unwrap().fill_tokens().unwrap();
        assert_eq!((found.prefix, found.suffix, found.middle), (258, 256, 257));
    }
}
