//! Grammars of calls and documents: whatever a model says within one, the parser reads calls out of it whose arguments
//! follow their schemas. Random walks, by a vocabulary in which the marks are special tokens and by one in which they
//! are text.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use gruff_gguf::{Metadata, Strings};
use gruff_text::chat::{
    ChatTemplate, Demand, OutputFormat, OutputParser, ParsedOutput, ReasoningFormat, ToolCallFormat, outline,
};
use gruff_text::{Tokenizer, TokenizerOptions};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

/// Marks that are special tokens where a vocabulary has them.
const MARKS: [&str; 44] = [
    "<|end|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<|tool_call|>",
    "<|function_call|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|tool_call_start|>",
    "<|tool_list_start|>",
    "<arg_key>",
    "</arg_key>",
    "<seed:tool_call>",
];

/// What ends reasoning and values in the formats.
const ENDS: [&str; 14] = [
    "</think>",
    "[/THINK]",
    "<|END_THINKING|>",
    "</seed:think>",
    "</mm:think>",
    "<channel|>",
    "<|inner_suffix|>",
    "<|end|>",
    "[BEGIN FINAL RESPONSE]",
    "</parameter>",
    "</｜DSML｜parameter>",
    "</atem:parameter>",
    "</arg_value>",
    "<|\"|>",
];

/// A byte as GPT-2's alphabet writes it.
fn letter(byte: u8) -> char {
    let visible = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if visible(byte) {
        return char::from(byte);
    }
    let shifted = (0..byte).filter(|&b| !visible(b)).count() as u32;
    char::from_u32(0x100 + shifted).unwrap()
}

/// All bytes, an end token, and perhaps the marks.
fn vocabulary(marks: bool) -> Tokenizer {
    let mut tokens: Vec<(String, i32)> = (0..=255).map(|byte| (letter(byte).to_string(), 1)).collect();
    tokens.push(("<eos>".into(), 3));
    tokens.extend(MARKS.iter().filter(|_| marks).map(|mark| ((*mark).to_owned(), 3)));
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", "gpt-2");
    metadata.insert("tokenizer.ggml.tokens", tokens.iter().map(|(token, _)| token).collect::<Strings>());
    metadata.insert("tokenizer.ggml.token_type", tokens.iter().map(|(_, kind)| *kind).collect::<Vec<i32>>());
    metadata.insert("tokenizer.ggml.merges", ["h e"; 0].iter().collect::<Strings>());
    metadata.insert("tokenizer.ggml.bos_token_id", 256_u32);
    metadata.insert("tokenizer.ggml.eos_token_id", 256_u32);
    Tokenizer::from_gguf(&metadata, &TokenizerOptions::default()).unwrap()
}

struct Walker {
    tokenizer: Tokenizer,
    factory: ParserFactory,
    random: u64,
}

impl Walker {
    fn new(marks: bool) -> Self {
        let tokenizer = vocabulary(marks);
        let size = tokenizer.vocab_size() as u32;
        let word = |id| {
            let mut bytes = tokenizer.token_to_bytes(id);
            if tokenizer.is_control(id) {
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            bytes
        };
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, 256), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &[]).unwrap();
        factory.quiet();
        Self { tokenizer, factory, random: 7 }
    }

    fn matcher(&self, grammar: &str) -> Matcher {
        let mut matcher =
            Matcher::new(self.factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned())));
        assert_eq!(matcher.get_error(), None, "{grammar}");
        assert_eq!(matcher.grammar_warnings(), Vec::<String>::new(), "{grammar}");
        matcher
    }

    fn draw(&mut self, below: usize) -> usize {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % below as u64) as usize
    }

    /// A text of the grammar, drawn token by token; what closes something is drawn more often than what goes on.
    fn text(&mut self, grammar: &str) -> String {
        let mut matcher = self.matcher(grammar);
        let mut ids: Vec<u32> = Vec::new();
        for count in 0..6000 {
            if matcher.is_stopped() || (count > 0 && matcher.is_accepting().unwrap() && self.draw(4) > 0) {
                break;
            }
            // What ends a text is hardly ever found byte by byte.
            if self.draw(8) == 0 {
                let options = gruff_text::EncodeOptions { add_special: false, parse_special: true };
                let end = ENDS[self.draw(ENDS.len())];
                let end = self.tokenizer.encode(end, options).unwrap();
                if matcher.validate_tokens(&end).unwrap() == end.len() {
                    matcher.consume_tokens(&end).unwrap();
                    ids.extend(end);
                    continue;
                }
            }
            let mask = matcher.compute_mask().unwrap();
            let allowed: Vec<u32> = (0..self.tokenizer.vocab_size() as u32)
                .filter(|id| *id != 256 && mask.get(*id as usize))
                .collect();
            let closing: Vec<u32> = allowed
                .iter()
                .copied()
                .filter(|id| *id > 256 || b"\"}]</>,".contains(&(*id as u8)))
                .collect();
            let from = if !closing.is_empty() && self.draw(3) > 0 { &closing } else { &allowed };
            assert!(!from.is_empty(), "nothing may follow {:?}", self.tokenizer.decode(&ids, false));
            let id = from[self.draw(from.len())];
            matcher.consume_token(id).unwrap();
            ids.push(id);
        }
        assert!(
            matcher.is_stopped() || matcher.is_accepting().unwrap(),
            "no end after {:?}",
            self.tokenizer.decode(&ids, false)
        );
        self.tokenizer.decode(&ids, false)
    }

    /// Whether a text is one of the grammar.
    fn accepts(&self, grammar: &str, text: &str) -> bool {
        let mut matcher = self.matcher(grammar);
        let options = gruff_text::EncodeOptions { add_special: false, parse_special: true };
        let ids = self.tokenizer.encode(text, options).unwrap();
        ids.iter().all(|id| matcher.consume_token(*id).is_ok()) && matcher.is_accepting().unwrap()
    }
}

fn tools() -> Vec<Value> {
    let parameters = json!({"type": "object", "required": ["count", "word"], "properties": {
        "word": {"type": "string", "maxLength": 12},
        "unit": {"type": "string", "enum": ["km", "mile s", "\nx\n"]},
        "mixed": {"type": ["string", "null"], "enum": ["celsius", "1", null]},
        "level": {"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]},
        "maybe": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
        "short": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "many": {"enum": (100..150).collect::<Vec<_>>()},
        "three": {"const": 3},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "flag": {"type": "boolean"},
        "places": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/place"}},
        "where": {"$ref": "#/$defs/place"},
    }, "$defs": {"level": {"enum": ["low", "2"]}, "place": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
                           "required": ["x"], "additionalProperties": false}}});
    vec![
        json!({"type": "function", "function": {"name": "alpha", "parameters": parameters}}),
        json!({"type": "function", "function": {"name": "be-ta.2"}}),
        json!({"type": "function", "function": {"name": "na:me"}}),
        json!({"type": "function", "function": {"name": "gamma", "parameters": {"type": "object", "properties": {
            "text": {"type": "string", "maxLength": 6}}}}}),
    ]
}

fn parse(format: OutputFormat, prompt: &str, text: &str) -> ParsedOutput {
    let mut parser = OutputParser::new(format.reasoning, format.tool_calls, prompt, &tools());
    let mut parsed = ParsedOutput::default();
    parser.feed(text).into_iter().chain(parser.finish()).for_each(|event| parsed.push(event));
    parsed
}

fn check_arguments(name: &str, arguments: &Value, context: &str) {
    let fields = arguments.as_object().unwrap_or_else(|| panic!("{context}"));
    let place = |value: &Value| value["x"].is_u64() && value.as_object().unwrap().len() == 1;
    for (key, value) in fields {
        let good = match (name, key.as_str()) {
            ("alpha", "word") => value.as_str().is_some_and(|word| word.chars().count() <= 12),
            ("alpha", "unit") => value == "km" || value == "mile s" || value == "\nx\n",
            ("alpha", "mixed") => value == "celsius" || value == "1" || value.is_null(),
            ("alpha", "level") => value == "low" || value == "2" || value.is_null(),
            ("alpha", "maybe") => value.is_null() || place(value),
            ("alpha", "short") => {
                value.as_str().is_some_and(|text| text.chars().count() <= 3) || value.is_null()
            }
            ("alpha", "many") => value.as_u64().is_some_and(|value| (100..150).contains(&value)),
            ("alpha", "three") => value == 3,
            ("alpha", "count") => value.as_u64().is_some_and(|count| count < 100),
            ("alpha", "flag") => value.is_boolean(),
            ("alpha", "places") => {
                value.as_array().is_some_and(|all| all.len() <= 2 && all.iter().all(place))
            }
            ("alpha", "where") => place(value),
            ("gamma", "text") => value.as_str().is_some_and(|text| text.chars().count() <= 6),
            _ => false,
        };
        assert!(good, "{key}: {value} in {context}");
    }
    if name == "alpha" {
        assert!(fields.contains_key("word") && fields.contains_key("count"), "{context}");
    }
}

/// The formats of all templates, each once.
fn formats() -> Vec<OutputFormat> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/templates");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("{} is absent: one format alone is looked at", folder.display());
        let reasoning = Some(ReasoningFormat::Tags { start: "<think>", end: "</think>" });
        return vec![OutputFormat { reasoning, tool_calls: Some(ToolCallFormat::Hermes) }];
    };
    let mut found: Vec<OutputFormat> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let template = ChatTemplate::named("template", &std::fs::read_to_string(&path).unwrap()).unwrap();
        let format = OutputFormat::of(&template);
        if format.tool_calls.is_some() && seen.insert(format!("{format:?}")) {
            found.push(format);
        }
    }
    assert!(found.len() > 15, "{found:?}");
    found
}

/// A prompt behind which reasoning is written anew, goes on, or is over.
fn prompts(format: OutputFormat) -> Vec<String> {
    match format.reasoning {
        Some(ReasoningFormat::Tags { start, end }) => {
            vec![String::new(), format!("{start}\n"), format!("{start}\n\n{end}\n\n")]
        }
        _ => vec![String::new()],
    }
}

#[test]
fn what_a_grammar_allows_is_read_as_calls() {
    let tools = tools();
    for marks in [false, true] {
        let mut walker = Walker::new(marks);
        for format in formats() {
            if format.reasoning == Some(ReasoningFormat::Recipients) {
                let demand = Demand::Calls { tools: &tools, many: true };
                let refused = format.grammar(&walker.tokenizer, "", demand).unwrap_err();
                assert!(refused.message.contains("no grammar"), "{refused}");
                continue;
            }
            for prompt in prompts(format) {
                for many in [false, true] {
                    let demand = Demand::Calls { tools: &tools, many };
                    let grammar = format.grammar(&walker.tokenizer, &prompt, demand).unwrap();
                    for _ in 0..4 {
                        let said = walker.text(&grammar);
                        let context = format!("{format:?} {prompt:?} {said}");
                        let parsed = parse(format, &prompt, &said);
                        let calls = parsed.tool_calls();
                        assert!(!calls.is_empty(), "{context}");
                        assert!(many || calls.len() == 1, "{context}");
                        assert_eq!(parsed.content.trim(), "", "{context}");
                        for call in calls {
                            check_arguments(&call.name, &call.arguments, &context);
                        }
                    }
                }
            }
        }
    }
}

/// Models are held to outlines, and their calls are read by the schemas as they were given.
#[test]
fn what_an_outline_allows_is_read_with_its_types() {
    let outlines: Vec<Value> = tools().iter().map(outline).collect();
    for marks in [false, true] {
        let mut walker = Walker::new(marks);
        for format in formats() {
            if format.reasoning == Some(ReasoningFormat::Recipients) {
                continue;
            }
            let demand = Demand::Calls { tools: &outlines[..1], many: false };
            let grammar = format.grammar(&walker.tokenizer, "", demand).unwrap();
            for _ in 0..8 {
                let said = walker.text(&grammar);
                let parsed = parse(format, "", &said);
                let context = format!("{format:?} {said}");
                let calls = parsed.tool_calls();
                let [call] = calls.as_slice() else { panic!("{context}") };
                for (key, value) in call.arguments.as_object().unwrap() {
                    let good = match key.as_str() {
                        "word" | "short" => value.is_string(),
                        "unit" => value == "km" || value == "mile s" || value == "\nx\n",
                        "mixed" => value == "celsius" || value == "1" || value.is_null(),
                        "level" => value == "low" || value == "2" || !value.is_string(),
                        "maybe" | "many" => !value.is_string(),
                        "count" => value.is_number(),
                        "flag" => value.is_boolean(),
                        "places" => value.is_array(),
                        "where" => value.is_object(),
                        "three" => value == 3,
                        _ => false,
                    };
                    assert!(good, "{key}: {value} in {context}");
                }
            }
        }
    }
}

#[test]
fn documents_and_calls_as_the_model_likes() {
    let tools = tools();
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
                        "required": ["x"], "additionalProperties": false});
    for marks in [false, true] {
        let mut walker = Walker::new(marks);
        for format in formats() {
            if format.reasoning == Some(ReasoningFormat::Recipients) {
                continue;
            }
            for prompt in prompts(format) {
                let demand = Demand::Json { schema: &schema, tools: &[], many: true };
                let grammar = format.grammar(&walker.tokenizer, &prompt, demand).unwrap();
                let said = walker.text(&grammar);
                let parsed = parse(format, &prompt, &said);
                let value: Value = serde_json::from_str(&parsed.content)
                    .unwrap_or_else(|error| panic!("{format:?} {prompt:?} {said:?} {parsed:?}: {error}"));
                assert!(value["x"].is_u64(), "{said}");

                let demand = Demand::MayCall { tools: &tools, many: true };
                let lazy = format.grammar(&walker.tokenizer, &prompt, demand);
                let framed =
                    !matches!(format.tool_calls, Some(ToolCallFormat::Llama | ToolCallFormat::Channels));
                assert_eq!(lazy.is_ok(), framed, "{format:?}");
                let Ok(grammar) = lazy else { continue };
                if prompt.is_empty() || !prompt.contains('\n') || prompt.contains('/') {
                    assert!(
                        walker.accepts(&grammar, "Just <some> words.\n{\"x\": 1}"),
                        "{format:?} {grammar}"
                    );
                }
                for _ in 0..2 {
                    let said = walker.text(&grammar);
                    for call in parse(format, &prompt, &said).tool_calls() {
                        check_arguments(&call.name, &call.arguments, &said);
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_followed_is_refused_by_its_place() {
    let tokenizer = vocabulary(false);
    let with = |parameters: Value| {
        vec![tools()[0].clone(), json!({"function": {"name": "f", "parameters": parameters}})]
    };
    let xml = OutputFormat { reasoning: None, tool_calls: Some(ToolCallFormat::Xml) };
    let json = OutputFormat { reasoning: None, tool_calls: Some(ToolCallFormat::Hermes) };
    let union = with(json!({"oneOf": [{"type": "object"}, {"type": "object"}]}));
    fn calls(tools: &[Value]) -> Demand<'_> {
        Demand::Calls { tools, many: true }
    }
    assert_eq!(xml.grammar(&tokenizer, "", calls(&union)).unwrap_err().tool, Some(1));
    assert!(json.grammar(&tokenizer, "", calls(&union)).is_ok(), "JSON can say all of it");
    for name in ["", "a b", "f<g", "{"] {
        let tools = [json!({"function": {"name": name}})];
        assert_eq!(json.grammar(&tokenizer, "", calls(&tools)).unwrap_err().tool, Some(0), "{name}");
    }
    let none = OutputFormat::default();
    assert!(none.grammar(&tokenizer, "", calls(&tools())).unwrap_err().message.contains("no calls"));
}

#[test]
fn hundreds_of_tools_and_large_schemas_compile() {
    let walker = Walker::new(false);
    let tool = |index: usize| {
        let property = |field: usize| {
            let description =
                format!("Field {field} of tool {index}, which says at some length what it is about.");
            (format!("field_{field}"), json!({"type": "string", "description": description}))
        };
        let properties: serde_json::Map<String, Value> = (0..8).map(property).collect();
        json!({"type": "function", "function": {"name": format!("tool_{index}"), "parameters": {
            "type": "object", "properties": properties, "required": ["field_1"]}}})
    };
    let many: Vec<Value> = (0..400).map(tool).collect();
    let property = |field: usize| {
        let inner = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array",
                           "items": {"enum": ["one", "two", "three", field]}}}, "required": ["a"]});
        (format!("property_{field}"), inner)
    };
    let properties: serde_json::Map<String, Value> = (0..900).map(property).collect();
    let large = json!({"type": "object", "properties": properties, "required": ["property_7"]});
    assert!(large.to_string().len() > 100_000);
    let large = vec![json!({"type": "function", "function": {"name": "large", "parameters": large}})];
    for format in [ToolCallFormat::Hermes, ToolCallFormat::Xml, ToolCallFormat::Gemma, ToolCallFormat::Kimi] {
        let format = OutputFormat { reasoning: None, tool_calls: Some(format) };
        for tools in [&many, &large] {
            let grammar = format.grammar(&walker.tokenizer, "", Demand::Calls { tools, many: true }).unwrap();
            let mut matcher = walker.matcher(&grammar);
            matcher.compute_mask().unwrap();
        }
    }
}
