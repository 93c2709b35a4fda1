//! Parameters, grammars, hooks, processors and files that mean no good: each is served or refused with a message that
//! names it, and the model goes on.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gruff::floors::engine::Context;
use gruff::{
    AutoModelForCausalLM, AutoTokenizer, Constraint, FinishReason, GenerateOptions, GenerateOutput,
    GenerationConfig, Pretrained, Prompts, Result, processor_fn,
};
use serde_json::{Value, json};

const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");

fn model() -> AutoModelForCausalLM {
    AutoModelForCausalLM::from_pretrained(DENSE).context(Context::Tokens(256)).load().unwrap()
}

fn tokenizer() -> AutoTokenizer {
    Pretrained::<AutoTokenizer>::new(DENSE).load().unwrap()
}

fn config() -> GenerationConfig {
    GenerationConfig { max_new_tokens: Some(6), eos_token_id: Some(vec![]), ..GenerationConfig::default() }
}

fn from_json(fields: Value) -> GenerationConfig {
    GenerationConfig::from_json(&fields).unwrap().or(&config())
}

/// The model answers as it did before.
fn goes_on(model: &AutoModelForCausalLM) {
    let output = model.generate(vec![30, 31, 32], &config()).unwrap();
    assert_eq!(output.new_tokens(0).len(), 6);
}

#[test]
fn numbers_out_of_range_name_their_field() {
    let model = model();
    let bad: Vec<(&str, GenerationConfig)> = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0]
        .into_iter()
        .flat_map(|wild| {
            let sampled = || GenerationConfig { do_sample: Some(true), ..config() };
            let beams = || GenerationConfig { num_beams: Some(2), ..config() };
            let mut cases = vec![
                ("temperature", GenerationConfig { temperature: Some(wild), ..config() }),
                ("top_p", GenerationConfig { top_p: Some(wild), ..sampled() }),
                ("min_p", GenerationConfig { min_p: Some(wild), ..sampled() }),
                ("top_h", GenerationConfig { top_h: Some(wild), ..sampled() }),
                ("typical_p", GenerationConfig { typical_p: Some(wild), ..sampled() }),
                ("epsilon_cutoff", GenerationConfig { epsilon_cutoff: Some(wild), ..sampled() }),
                ("eta_cutoff", GenerationConfig { eta_cutoff: Some(wild), ..sampled() }),
                ("top_n_sigma", GenerationConfig { top_n_sigma: Some(wild), ..sampled() }),
                ("repetition_penalty", GenerationConfig { repetition_penalty: Some(wild), ..config() }),
                (
                    "encoder_repetition_penalty",
                    GenerationConfig { encoder_repetition_penalty: Some(wild), ..config() },
                ),
                (
                    "exponential_decay_length_penalty",
                    GenerationConfig { exponential_decay_length_penalty: Some((1, wild)), ..config() },
                ),
                ("max_time", GenerationConfig { max_time: Some(f64::from(wild)), ..config() }),
                (
                    "assistant_confidence_threshold",
                    GenerationConfig { assistant_confidence_threshold: Some(wild), ..config() },
                ),
            ];
            if !wild.is_finite() {
                cases.extend([
                    ("presence_penalty", GenerationConfig { presence_penalty: Some(wild), ..config() }),
                    ("frequency_penalty", GenerationConfig { frequency_penalty: Some(wild), ..config() }),
                    ("length_penalty", GenerationConfig { length_penalty: Some(wild), ..beams() }),
                    ("guidance_scale", GenerationConfig { guidance_scale: Some(wild), ..config() }),
                ]);
            }
            if wild.is_nan() {
                cases.extend([
                    ("logit_bias", GenerationConfig { logit_bias: Some(vec![(3, wild)]), ..config() }),
                    (
                        "sequence_bias",
                        GenerationConfig { sequence_bias: Some(vec![(vec![3], wild)]), ..config() },
                    ),
                ]);
            }
            cases
        })
        .collect();
    for (field, bad) in bad {
        let error = match model.generate(vec![30, 31], &bad) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{field} was served: {bad:?}"),
        };
        assert!(error.starts_with(&format!("{field}: ")), "{field}: {error}");
    }
    goes_on(&model);
}

#[test]
fn ids_outside_the_vocabulary_name_their_field() {
    let model = model();
    let id = 9_999_999_u32;
    for (field, fields) in [
        ("suppress_tokens", json!({"suppress_tokens": [id]})),
        ("begin_suppress_tokens", json!({"begin_suppress_tokens": [id]})),
        ("bad_words_ids", json!({"bad_words_ids": [[1, id]]})),
        ("bad_words_ids", json!({"bad_words_ids": [[]]})),
        ("sequence_bias", json!({"sequence_bias": [[[id], 1.0]]})),
        ("sequence_bias", json!({"sequence_bias": [[[], 1.0]]})),
        ("logit_bias", json!({"logit_bias": [[id, 1.0]]})),
        ("forced_bos_token_id", json!({"forced_bos_token_id": id})),
        ("forced_eos_token_id", json!({"forced_eos_token_id": [id]})),
    ] {
        let error = model.generate(vec![30], &from_json(fields)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{field}: ")), "{error}");
    }
    for (prompt, message) in
        [(vec![], "no tokens"), (vec![id], "outside the vocabulary"), (vec![30; 256], "no room")]
    {
        let error = model.generate(prompt, &config()).unwrap_err().to_string();
        assert!(error.starts_with("prompt: ") && error.contains(message), "{error}");
    }
    assert!(model.generate(Vec::<Vec<u32>>::new(), &config()).unwrap().sequences.is_empty());
    for negative in [vec![vec![]], vec![vec![id]], vec![vec![30; 256]], vec![vec![1], vec![2]], vec![]] {
        let empty = negative == vec![Vec::<u32>::new()];
        let options = GenerateOptions { negative_prompt_ids: Some(Prompts(negative)), ..Default::default() };
        let guided = GenerationConfig { guidance_scale: Some(2.0), ..config() };
        match model.generate_with_options(vec![30], &guided, options) {
            // An empty one is the prompt's last token, as in transformers.
            Ok(_) => assert!(empty),
            Err(error) => assert!(error.to_string().starts_with("negative_prompt_ids: "), "{error}"),
        }
    }
    goes_on(&model);
}

#[test]
fn numbers_without_measure_are_served_or_refused() {
    let model = model();
    let huge = usize::MAX;
    let sampled = || GenerationConfig { temperature: Some(1.0), ..config() };
    // As much as the context holds, or nothing to do.
    for (what, served) in [
        ("max_new_tokens", GenerationConfig { max_new_tokens: Some(huge), ..config() }),
        ("max_length", GenerationConfig { max_new_tokens: None, max_length: Some(huge), ..config() }),
        ("min_length", GenerationConfig { min_length: Some(huge), ..config() }),
        ("top_k", GenerationConfig { top_k: Some(huge), ..sampled() }),
        ("no_repeat_ngram_size", GenerationConfig { no_repeat_ngram_size: Some(huge), ..config() }),
        ("encoder ngrams", GenerationConfig { encoder_no_repeat_ngram_size: Some(huge), ..config() }),
        ("logprobs", GenerationConfig { logprobs: Some(huge), ..config() }),
        ("lookup", GenerationConfig { prompt_lookup_num_tokens: Some(huge), ..config() }),
        (
            "ngram",
            GenerationConfig {
                prompt_lookup_num_tokens: Some(3),
                max_matching_ngram_size: Some(huge),
                ..config()
            },
        ),
        ("decay", GenerationConfig { exponential_decay_length_penalty: Some((huge, 2.0)), ..config() }),
        ("decay", GenerationConfig { exponential_decay_length_penalty: Some((0, f32::MAX)), ..config() }),
        ("bias", GenerationConfig { logit_bias: Some(vec![(7, f32::MAX), (8, f32::MIN)]), ..sampled() }),
        ("bias", GenerationConfig { logit_bias: Some(vec![(7, f32::INFINITY)]), ..sampled() }),
        ("bias", GenerationConfig { logit_bias: Some(vec![(7, f32::INFINITY)]), ..config() }),
        ("bias", GenerationConfig { sequence_bias: Some(vec![(vec![7], f32::INFINITY)]), ..sampled() }),
        ("seed", GenerationConfig { seed: Some(u64::MAX), num_return_sequences: Some(3), ..sampled() }),
        ("temperature", GenerationConfig { temperature: Some(f32::MAX), ..config() }),
        ("temperature", GenerationConfig { temperature: Some(f32::MIN_POSITIVE), ..config() }),
        ("penalty", GenerationConfig { repetition_penalty: Some(f32::MAX), ..sampled() }),
        ("penalty", GenerationConfig { repetition_penalty: Some(f32::MIN_POSITIVE), ..sampled() }),
        ("penalty", GenerationConfig { frequency_penalty: Some(f32::MAX), ..sampled() }),
        (
            "length_penalty",
            GenerationConfig { num_beams: Some(2), length_penalty: Some(f32::MAX), ..config() },
        ),
        ("guidance", GenerationConfig { guidance_scale: Some(f32::MAX), ..sampled() }),
        ("guidance", GenerationConfig { guidance_scale: Some(f32::MIN), ..config() }),
        ("max_time", GenerationConfig { max_time: Some(1e300), ..config() }),
    ] {
        let output =
            model.generate(vec![30, 31, 32], &served).unwrap_or_else(|error| panic!("{what}: {error}"));
        let length = output.new_tokens(0).len();
        let fills = what == "max_new_tokens" || what == "max_length";
        assert_eq!(length, if fills { 253 } else { 6 }, "{what}");
        let reason = if fills { FinishReason::Context } else { FinishReason::MaxNewTokens };
        assert_eq!(output.finish_reasons[0], reason, "{what}");
    }
    // Every length but 1 makes scores infinite: as in transformers, a beam that had not ended stands in.
    let short = GenerationConfig { num_beams: Some(2), length_penalty: Some(f32::MIN), ..config() };
    assert!(!model.generate(vec![30, 31, 32], &short).unwrap().new_tokens(0).is_empty());
    for (field, refused) in [
        ("not enough memory", GenerationConfig { num_beams: Some(huge), ..config() }),
        ("not enough memory", GenerationConfig { num_return_sequences: Some(huge), ..sampled() }),
        ("not enough memory", GenerationConfig { num_return_sequences: Some(huge / 2), ..sampled() }),
        ("min_new_tokens: ", GenerationConfig { min_new_tokens: Some(huge), ..config() }),
        ("max_length: ", GenerationConfig { max_new_tokens: None, max_length: Some(3), ..config() }),
        ("max_new_tokens: ", GenerationConfig { max_new_tokens: Some(0), ..config() }),
    ] {
        let prompts = vec![vec![30, 31, 32], vec![33, 34, 35]];
        let error = model.generate(prompts, &refused).unwrap_err().to_string();
        assert!(error.starts_with(field), "{field}: {error}");
    }
    goes_on(&model);
}

#[test]
fn an_answer_does_not_end_before_it_may() {
    let (model, tokenizer) = (model(), tokenizer());
    let plain = model.generate(vec![30, 31, 32], &config()).unwrap();
    let second = plain.new_tokens(0)[1];
    let ends = |fields: Value| {
        let mut all = json!({"eos_token_id": [second], "max_new_tokens": 12});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        model.generate(vec![30, 31, 32], &from_json(all)).unwrap()
    };
    assert_eq!(ends(json!({})).new_tokens(0).len(), 2);
    for fields in [
        json!({"min_new_tokens": 7}),
        json!({"min_length": 10}),
        json!({"min_new_tokens": 7, "prompt_lookup_num_tokens": 4}),
        json!({"min_new_tokens": 7, "num_beams": 3}),
        json!({"min_new_tokens": 7, "guidance_scale": 1.2}),
    ] {
        let output = ends(fields.clone());
        assert!(output.new_tokens(0).len() >= 7, "{fields}: {:?}", output.new_tokens(0));
        assert!(!output.new_tokens(0)[..6].contains(&second), "{fields}");
    }
    // Where a grammar is at its end and the answer may not be, nothing can be said.
    let stuck = GenerationConfig {
        min_new_tokens: Some(20),
        max_new_tokens: Some(40),
        constraint: Some(Constraint::Regex("yes".into())),
        ..GenerationConfig::default()
    };
    let prompt = tokenizer.encode("Answer:").unwrap();
    let error = model.generate(prompt, &stuck).unwrap_err().to_string();
    assert!(error.contains("min_new_tokens") && error.contains("constraint"), "{error}");
    goes_on(&model);
}

#[test]
fn prompts_may_fill_the_context_but_for_one_token() {
    let model = model();
    let prompt: Vec<u32> = (0..255).map(|i| 20 + i * 31 % 3900).collect();
    for fields in [
        json!({}),
        json!({"prompt_lookup_num_tokens": 5}),
        json!({"num_beams": 3, "num_return_sequences": 3}),
        json!({"guidance_scale": 1.5}),
        json!({"num_return_sequences": 3, "temperature": 1.0}),
        json!({"output_hidden_states": true}),
    ] {
        let many = GenerationConfig { max_new_tokens: Some(50), ..from_json(fields.clone()) };
        let output = model.generate(prompt.clone(), &many).unwrap();
        for row in 0..output.sequences.len() {
            assert_eq!(output.new_tokens(row).len(), 1, "{fields}");
            assert_eq!(output.finish_reasons[row], FinishReason::Context, "{fields}");
        }
    }
    goes_on(&model);
}

#[test]
fn stop_strings_that_cannot_be_are_refused() {
    let model = model();
    for stops in [json!([""]), json!(["fine", ""]), json!(["word ".repeat(4000)])] {
        let error =
            model.generate(vec![30], &from_json(json!({"stop_strings": stops}))).unwrap_err().to_string();
        assert!(error.starts_with("stop_strings: "), "{error}");
    }
    let many: Vec<String> = (0..5000).map(|i| format!("never {i}")).collect();
    let output = model.generate(vec![30], &from_json(json!({"stop_strings": many}))).unwrap();
    assert_eq!(output.new_tokens(0).len(), 6);
    assert!(model.generate(vec![30], &from_json(json!({"stop_strings": []}))).is_ok());
    goes_on(&model);
}

fn nested(depth: usize) -> Value {
    let mut schema = json!({"type": "boolean"});
    for _ in 0..depth {
        let mut fields = json!({"type": "object", "properties": {}, "required": ["a"]});
        fields["properties"]["a"] = schema;
        schema = fields;
    }
    schema
}

/// `count` lines, each of the rule with its number and the next.
fn chain(count: usize, line: impl Fn(usize, usize) -> String) -> String {
    (0..count).map(|i| line(i, i + 1)).collect()
}

/// What comes of a grammar, which comes soon.
fn constrained(
    model: &AutoModelForCausalLM,
    prompt: &[u32],
    what: &str,
    constraint: Constraint,
) -> Result<GenerateOutput> {
    let config = GenerationConfig {
        constraint: Some(constraint),
        max_new_tokens: Some(8),
        ..GenerationConfig::default()
    };
    let start = Instant::now();
    let result = model.generate(prompt.to_vec(), &config);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "{what} took {took:?}");
    if let Err(error) = &result {
        let error = error.to_string();
        assert!(error.contains("constraint: ") && error.len() < 2000, "{what}: {error}");
    }
    result
}

#[test]
fn grammars_that_cannot_be_honoured_are_refused_before_the_first_token() {
    let (model, tokenizer) = (model(), tokenizer());
    let prompt = tokenizer.encode("Answer:").unwrap();
    let doubling = chain(60, |i, next| format!("A{i}: A{next} A{next}\n"));
    let gbnf_doubling = chain(60, |i, next| format!("a{i} ::= a{next} a{next}\n"));
    let rules = chain(25_000, |i, next| format!("r{i}: \"a\" r{next} | \"b\"\n"));
    let schema = Constraint::json_schema;
    let chained: serde_json::Map<String, Value> = (0..500)
        .map(|i| {
            let next = json!([{"$ref": format!("#/$defs/d{}", (i + 1) % 500)}]);
            let fields =
                json!({"type": "object", "properties": {format!("p{i}"): {"type": "null"}}, "allOf": next});
            (format!("d{i}"), fields)
        })
        .collect();
    for (what, constraint) in [
        ("empty", Constraint::Regex("[a&&b]".into())),
        ("open", Constraint::Regex("(".repeat(5000))),
        ("parentheses", Constraint::Regex(format!("{}a{}", "(".repeat(5000), ")".repeat(5000)))),
        ("look around", Constraint::Regex("(?=a)(?!b)a".into())),
        ("optional", Constraint::Regex("a?".repeat(20_000))),
        ("optional choices", Constraint::Regex("(a|bc)?".repeat(50_000))),
        ("long", Constraint::Regex("ab".repeat(1 << 20))),
        ("brackets", Constraint::Lark(format!("start: {}\"a\"{}", "(".repeat(1900), ")".repeat(1900)))),
        (
            "hidden brackets",
            Constraint::Lark(format!("start: {}\"a\"{}", "(\")\"".repeat(900), ")".repeat(900))),
        ),
        (
            "more brackets",
            Constraint::Lark(format!("start: {}\"a\"{}", "(".repeat(90_000), ")".repeat(90_000))),
        ),
        ("nowhere", Constraint::Lark("start: missing".into())),
        ("doubling", Constraint::Lark(format!("start: A0\n{doubling}A60: \"a\"\n"))),
        ("many rules", Constraint::Lark(format!("start: r0\n{rules}r25000: \"a\"\n"))),
        ("gbnf doubling", Constraint::Gbnf(format!("root ::= a0\n{gbnf_doubling}a60 ::= \"a\"\n"))),
        ("gbnf brackets", Constraint::Gbnf(format!("root ::= {}\"a\"{}", "(".repeat(900), ")".repeat(900)))),
        ("gbnf loop", Constraint::Gbnf("root ::= root".into())),
        ("deep schema", schema(nested(300))),
        ("chained", schema(json!({"$defs": chained, "$ref": "#/$defs/d0"}))),
        ("no reference", schema(json!({"$ref": "#/$defs/missing"}))),
        ("elsewhere", schema(json!({"$ref": "https://example.com/schema.json"}))),
        ("wrong bounds", schema(json!({"type": "integer", "minimum": 5, "maximum": 4}))),
        ("no schema", schema(json!(17))),
        ("nothing", schema(json!(false))),
        ("odd options", schema(json!({"x-guidance": 3}))),
    ] {
        match constrained(&model, &prompt, what, constraint) {
            Ok(output) => panic!("{what}: {:?}", output.new_tokens(0)),
            Err(error) => assert!(error.to_string().starts_with("constraint: "), "{what}: {error}"),
        }
    }
    goes_on(&model);
}

#[test]
fn grammars_that_go_far_are_followed() {
    let (model, tokenizer) = (model(), tokenizer());
    let prompt = tokenizer.encode("Answer:").unwrap();
    let rules = chain(3000, |i, next| format!("r{i}: \"a\" r{next} | \"b\"\n"));
    let terminals = chain(1500, |i, next| format!("T{i}: \"a\" T{next}?\n"));
    let gbnf = chain(1500, |i, next| format!("r{i} ::= \"a\" r{next}?\n"));
    let defs: serde_json::Map<String, Value> = (0..1000)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            (format!("d{i}"), if i == 999 { json!({"type": "null"}) } else { next })
        })
        .collect();
    for (what, constraint, text) in [
        ("rules", Constraint::Lark(format!("start: r0\n{rules}r3000: \"a\"\n")), "a"),
        ("terminals", Constraint::Lark(format!("start: T0\n{terminals}T1500: \"a\"\n")), "a"),
        ("gbnf", Constraint::Gbnf(format!("root ::= r0\n{gbnf}r1500 ::= \"a\"\n")), "a"),
        ("references", Constraint::json_schema(json!({"$defs": defs, "$ref": "#/$defs/d0"})), "null"),
        ("stars of stars", Constraint::Regex("((x*)*)*y".into()), ""),
        ("ambiguous", Constraint::Regex("(a|aa|aaa)+".into()), "a"),
        ("counting", Constraint::Regex("(a|b)*a(a|b){40}".into()), ""),
        ("unicode", Constraint::Regex(r"\p{L}{200}\p{N}{200}".into()), ""),
        ("itself", Constraint::Lark("start: start start | \"a\"".into()), "a"),
        ("nothing forever", Constraint::Lark("start: (\"\")*".into()), ""),
        ("itself alone", Constraint::Gbnf("root ::= (\"\" | root)*".into()), ""),
        ("deep schema", Constraint::json_schema(nested(60)), "{\"a\""),
        ("many items", Constraint::json_schema(json!({"type": "array", "minItems": 1_000_000_000_u64})), "["),
        ("long text", Constraint::json_schema(json!({"type": "string", "minLength": 1_000_000_u64})), "\""),
        ("pattern", Constraint::json_schema(json!({"type": "string", "pattern": "(a{1000}){1000}"})), "\"a"),
        (
            "options",
            Constraint::json_schema(json!({"x-guidance": {"item_separator": "(a{1000}){1000}"}})),
            "",
        ),
        ("any", Constraint::Regex("(?s).{0,1000000}".into()), ""),
    ] {
        // As far as it comes: an answer that is cut short is an error.
        match constrained(&model, &prompt, what, constraint) {
            Ok(output) => {
                let answer = tokenizer.decode(output.new_tokens(0), true);
                assert!(answer.starts_with(text), "{what}: {answer}");
            }
            Err(error) => eprintln!("{what}: {error}"),
        }
    }
    goes_on(&model);
}

fn hooked(
    model: &AutoModelForCausalLM,
    hook: impl Fn(&gruff::Tensor) -> Result<Option<gruff::Tensor>, gruff::HookError> + Send + Sync + 'static,
) -> Result<GenerateOutput> {
    let _guard = model.register_forward_hook("model.layers.1.mlp", move |_, output| hook(output))?;
    model.generate(vec![30, 31, 32], &config())
}

#[test]
fn hooks_and_modules_that_go_wrong_fail_the_request_by_name() {
    let model = model();
    let named = |result: Result<GenerateOutput>, what: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    };
    let module = "model.layers.1.mlp";
    named(hooked(&model, |_| Err("of one's own".into())), "of one's own");
    named(hooked(&model, |_| Err("of one's own".into())), module);
    named(hooked(&model, |x| Ok(Some(x.device().tensor_f32(&[1.0; 8], &[2, 4])?))), module);
    named(hooked(&model, |x| Ok(Some(x.device().tensor_i32(&vec![0; x.len()], x.shape())?))), module);
    let other = gruff::floors::kernels::Device::reference(gruff::floors::kernels::Activations::F32);
    named(
        hooked(&model, move |x| Ok(Some(other.tensor_f32(&vec![0.0; x.len()], x.shape())?))),
        "another device",
    );
    for wild in [f32::NAN, f32::INFINITY] {
        let all = hooked(&model, move |x| Ok(Some(x.device().tensor_f32(&vec![wild; x.len()], x.shape())?)));
        named(all, "no usable logits");
    }
    let guard =
        model.replace(module, Arc::new(|_: &gruff::HookContext, _: &gruff::Tensor| Err("broken".into())));
    named(model.generate(vec![30], &config()), module);
    drop(guard);
    let guard = model.replace(
        module,
        Arc::new(|_: &gruff::HookContext, x: &gruff::Tensor| Ok(x.device().tensor_f32(&[0.0], &[1])?)),
    );
    named(model.generate(vec![30], &config()), module);
    drop(guard);
    // The request of a manager alone.
    let mut manager = model.batching_manager(2).unwrap();
    let nothing = processor_fn("nothing", |_, logits| {
        logits.fill(f32::NEG_INFINITY);
        Ok(())
    });
    let options = GenerateOptions { logits_processor: vec![nothing], ..Default::default() };
    let bad = manager.add_request_with_options(vec![30, 31], &config(), &options).unwrap();
    let good = manager.add_request(vec![30, 31, 32], &config()).unwrap();
    let results: Vec<_> = manager.by_ref().collect();
    let of = |id| results.iter().find(|result| result.request == id).unwrap();
    assert!(of(bad).error.as_ref().unwrap().contains("nothing"));
    assert_eq!((of(good).error.as_deref(), of(good).new_tokens.len()), (None, 6));
    goes_on(&model);
}

#[test]
fn processors_that_leave_nothing_are_named_in_every_mode() {
    let model = model();
    type Fill = fn(&mut [f32]);
    let fills: [(&str, Fill); 3] = [
        ("minus infinity", |logits| logits.fill(f32::NEG_INFINITY)),
        ("NaN", |logits| logits.fill(f32::NAN)),
        ("both", |logits| {
            logits.fill(f32::NEG_INFINITY);
            logits[3] = f32::NAN;
        }),
    ];
    for (what, fill) in fills {
        for fields in [
            json!({}),
            json!({"temperature": 1.0}),
            json!({"num_beams": 2}),
            json!({"num_beams": 2, "do_sample": true}),
            json!({"guidance_scale": 1.5}),
            json!({"prompt_lookup_num_tokens": 3}),
            json!({"temperature": 1.0, "num_return_sequences": 2}),
            json!({"temperature": 1.0, "mirostat": {"version": "v2", "tau": 5.0, "eta": 0.1}}),
            json!({"output_scores": true, "logprobs": 2}),
        ] {
            let late = processor_fn("leaves nothing", move |context, logits| {
                if context.new_tokens().len() == 2 {
                    fill(logits);
                }
                Ok(())
            });
            let options = GenerateOptions { logits_processor: vec![late], ..Default::default() };
            let result = model.generate_with_options(vec![30, 31], &from_json(fields.clone()), options);
            let error = match result {
                Err(error) => error.to_string(),
                Ok(output) => panic!("{what} {fields}: {:?}", output.sequences),
            };
            assert!(error.contains("leaves nothing"), "{what} {fields}: {error}");
        }
    }
    // One number that is infinite is the most likely token.
    for fields in
        [json!({}), json!({"temperature": 1.0}), json!({"temperature": 0.7, "top_p": 0.9, "min_p": 0.1})]
    {
        let sure = processor_fn("sure", |_, logits| {
            logits[77] = f32::INFINITY;
            Ok(())
        });
        let options = GenerateOptions { logits_processor: vec![sure], ..Default::default() };
        let output = model.generate_with_options(vec![30, 31], &from_json(fields.clone()), options).unwrap();
        assert_eq!(output.new_tokens(0), [77; 6], "{fields}");
    }
    goes_on(&model);
}

#[test]
fn generation_parameters_in_files_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(DENSE, folder.path().join("model.gguf")).unwrap();
    let load = || {
        let path = folder.path().join("model.gguf");
        AutoModelForCausalLM::from_pretrained(path.to_str().unwrap()).context(Context::Tokens(256)).load()
    };
    let path = folder.path().join("generation_config.json");
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    for text in [
        "",
        "[]",
        "null",
        "{",
        "\u{feff}{}",
        "{\"temperature\": \"hot\"}",
        "{\"top_k\": 1.5}",
        "{\"eos_token_id\": -1}",
        "{\"eos_token_id\": [[1]]}",
        "{\"stop_strings\": {\"a\": 1}}",
        "{\"sequence_bias\": {\"a\": 1}}",
        "{\"max_new_tokens\": 1e400}",
        &deep,
        &format!("{{\"bad_words_ids\": {deep}}}"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = load().map(drop).unwrap_err().to_string();
        assert!(error.contains("generation_config.json"), "{:.60}: {error}", text);
        assert!(error.len() < 1000, "{error}");
    }
    std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert!(load().is_err());
    // Advice that nobody can follow does not keep a model from answering.
    for text in [
        "{}",
        "{\"temperature\": 0.5, \"temperature\": 0.6}",
        "{\"temperature\": -3.0, \"top_p\": 0, \"repetition_penalty\": 0}",
        "{\"num_beams\": 0}",
        "{\"num_return_sequences\": 0}",
        "{\"max_new_tokens\": 0}",
        "{\"guidance_scale\": 1e39}",
        "{\"suppress_tokens\": [99999999]}",
        "{\"forced_eos_token_id\": 99999999, \"eos_token_id\": 99999999}",
        "{\"stop_strings\": [\"\"]}",
        "{\"max_time\": -1}",
        "{\"length_penalty\": 1e39, \"num_beams\": 2}",
        "{\"unknown\": {\"a\": [1, 2]}, \"use_mtp\": true}",
        "{\"constraint\": {\"regex\": \"(\"}}",
        "{\"xtc\": {\"probability\": 7.0, \"threshold\": 0.1}, \"mirostat\": {\"version\": \"v1\", \"tau\": -1, \"eta\": 0}}",
        "{\"adapters\": {\"nobody\": 1.0}}",
        "{\"num_assistant_tokens_schedule\": \"odd\"}",
        "{\"watermarking_config\": {\"greenlist_ratio\": 7.0}}",
    ] {
        std::fs::write(&path, text).unwrap();
        let model = load().unwrap_or_else(|error| panic!("{text}: {error}"));
        let own = GenerationConfig { max_new_tokens: Some(3), ..GenerationConfig::default() };
        if let Err(error) = model.generate(vec![30, 31], &own) {
            panic!("{text}: {error}");
        }
    }
    // What contradicts itself, or asks for more than there is, says so.
    for (text, named) in [
        ("{\"num_beams\": 1000000000000}", "not enough memory"),
        ("{\"num_return_sequences\": 3}", "num_return_sequences: "),
        ("{\"min_new_tokens\": 100000000}", "min_new_tokens: "),
        ("{\"prompt_lookup_num_tokens\": 3, \"num_beams\": 2}", "prompt_lookup_num_tokens: "),
    ] {
        std::fs::write(&path, text).unwrap();
        let own = GenerationConfig { max_new_tokens: Some(3), ..GenerationConfig::default() };
        let error = load().unwrap().generate(vec![30, 31], &own).unwrap_err().to_string();
        assert!(error.starts_with(named), "{error}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn damaged_adapters_are_refused_or_read() {
    let model = model();
    let whole = tempfile::tempdir().unwrap();
    let [outputs, inputs] = model.weight("model.layers.1.mlp.down_proj.weight").unwrap().shape()[..] else {
        panic!("a matrix")
    };
    let (a, b) = (inputs * 4, outputs * 4);
    let stem = "base_model.model.model.layers.1.mlp.down_proj";
    let mut header = json!({
        format!("{stem}.lora_A.weight"): {"dtype": "F32", "shape": [1, inputs], "data_offsets": [0, a]},
        format!("{stem}.lora_B.weight"): {"dtype": "F32", "shape": [outputs, 1], "data_offsets": [a, a + b]},
    })
    .to_string()
    .into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let data: Vec<u8> = (0..inputs + outputs).flat_map(|i| (i as f32 * 1e-3).to_le_bytes()).collect();
    let weights = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    let settings = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 2.0}).to_string().into_bytes();
    std::fs::write(whole.path().join("adapter_model.safetensors"), &weights).unwrap();
    std::fs::write(whole.path().join("adapter_config.json"), &settings).unwrap();
    model.load_adapter("whole", whole.path()).unwrap();
    model.unload_adapter("whole").unwrap();

    let folder = tempfile::tempdir().unwrap();
    copy_folder(whole.path(), folder.path());
    let mut refused = 0;
    for (name, bytes) in [("adapter_model.safetensors", &weights), ("adapter_config.json", &settings)] {
        let path = folder.path().join(name);
        let mut try_with = |bytes: &[u8], what: String| {
            std::fs::write(&path, bytes).unwrap();
            match model.load_adapter("x", folder.path()) {
                Ok(()) => model.unload_adapter("x").unwrap(),
                Err(error) => {
                    refused += 1;
                    let error = error.to_string();
                    assert!(error.contains("adapter") && error.len() < 2000, "{what}: {error}");
                }
            }
        };
        for cut in (0..bytes.len().min(600)).chain([bytes.len() - 1]) {
            try_with(&bytes[..cut], format!("{name} cut at {cut}"));
        }
        for at in 0..bytes.len().min(400) {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                try_with(&bytes, format!("{name} with byte {at} changed by {flip}"));
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(refused > 1000, "{refused}");
    for settings in [
        json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1e39}),
        json!({"peft_type": "LORA", "r": 18446744073709551615_u64, "lora_alpha": 1}),
        json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "rank_pattern": {"": 0}, "alpha_pattern": {"": -1}}),
        json!({"peft_type": "LORA", "r": -1, "lora_alpha": 1}),
        json!([]),
    ] {
        std::fs::write(folder.path().join("adapter_config.json"), settings.to_string()).unwrap();
        if model.load_adapter("x", folder.path()).is_ok() {
            model.unload_adapter("x").unwrap();
        }
    }
    goes_on(&model);
}

#[test]
fn a_model_is_not_asked_by_its_own_answer() {
    let model = model();
    let mut inner = Vec::new();
    model
        .generate_with(vec![30, 31, 32], &config(), |_| {
            inner.push(model.generate(vec![40], &config()).map(drop).map_err(|error| error.to_string()));
            model.clear_caches();
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    for result in inner {
        let error = result.unwrap_err();
        assert!(error.contains("generate"), "{error}");
    }
    goes_on(&model);
}
