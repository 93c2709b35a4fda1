//! `generate` on the bundled hybrid model: what it finds is what transformers finds with the same weights (recorded by
//! tools/peers/generation.py), and every way to compute it gives the same.

use gruff::floors::engine::EngineOptions;
use gruff::{
    AutoModelForCausalLM, AutoTokenizer, Constraint, Dtype, FinishReason, GenerateOptions, GenerationConfig,
    Pretrained, Prompts, Result, Streamer, TextIteratorStreamer, TextPieces, criterion_fn, processor_fn,
};
use serde_json::{Value, json};

const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");
const MOE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-moe-Q4_K_M.gguf");
const RECORDED: &str = include_str!("../../../tests/peers/generation.json");

fn model(dtype: Dtype) -> AutoModelForCausalLM {
    AutoModelForCausalLM::from_pretrained(DENSE).dtype(dtype).load().unwrap()
}

fn tokenizer() -> AutoTokenizer {
    Pretrained::<AutoTokenizer>::new(DENSE).load().unwrap()
}

fn config(max_new_tokens: usize) -> GenerationConfig {
    GenerationConfig {
        max_new_tokens: Some(max_new_tokens),
        temperature: Some(0.0),
        ..GenerationConfig::default()
    }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn close(found: &[f32], expected: &[f32], what: &Value) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 2e-3, "{found}, but {expected} was recorded: {what}");
    }
}

#[test]
fn searches_and_greedy_answers_are_those_of_transformers() {
    let model = model(Dtype::F32);
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    let ends = ids(&recorded["end_tokens"]);
    for case in recorded["cases"].as_array().unwrap() {
        let own =
            GenerationConfig { eos_token_id: Some(ends.clone()), output_scores: Some(true), ..config(16) };
        let config = GenerationConfig::from_json(&case["config"]).unwrap().or(&own);
        let output = model.generate(ids(&case["prompt"]), &config).unwrap();
        let what = &case["config"];
        for (row, expected) in case["sequences"].as_array().unwrap().iter().enumerate() {
            assert_eq!(output.new_tokens(row), ids(expected), "row {row} of {case}");
        }
        if !case["sequences_scores"].is_null() {
            let scores = output.sequences_scores.as_ref().unwrap();
            close(scores, &floats(&case["sequences_scores"]), what);
            for (row, indices) in case["beam_indices"].as_array().unwrap().iter().enumerate() {
                let found: Vec<u32> =
                    output.beam_indices.as_ref().unwrap()[row].iter().map(|beam| *beam as u32).collect();
                assert_eq!(found, ids(indices), "{what}");
            }
        }
        let scores = output.compute_transition_scores(false).unwrap();
        for (row, expected) in case["transition_scores"].as_array().unwrap().iter().enumerate() {
            close(&scores[row], &floats(expected), what);
        }
    }
}

/// Thirty-two prompts of unequal length.
fn prompts() -> Vec<Vec<u32>> {
    (0..32u32).map(|n| (0..3 + n * 5 % 67).map(|i| 20 + (i * 37 + n * 101) % 3900).collect()).collect()
}

#[test]
fn an_answer_is_the_same_alone_in_a_batch_and_behind_a_cache() {
    let model = model(Dtype::Auto);
    for sampled in [false, true] {
        let config = GenerationConfig {
            temperature: Some(if sampled { 0.9 } else { 0.0 }),
            no_repeat_ngram_size: sampled.then_some(3),
            ..config(12)
        };
        model.clear_caches();
        let together = model.generate(prompts(), &config).unwrap();
        for (index, prompt) in prompts().into_iter().enumerate() {
            let alone = GenerationConfig { seed: Some(index as u64), ..config.clone() };
            model.clear_caches();
            let first = model.generate(prompt.clone(), &alone).unwrap();
            assert_eq!(first.new_tokens(0), together.new_tokens(index));
            // What the first turn has left in the caches, and a second turn without them.
            let mut next = first.sequences[0].clone();
            next.extend([21, 22, 23]);
            let continued = model.generate(next.clone(), &alone).unwrap();
            // Less than a page of keys and values is not worth keeping.
            assert_eq!(continued.usage[0].cached_tokens > 0, first.sequences[0].len() > 32);
            if index % 8 == 0 {
                model.clear_caches();
                let anew = model.generate(next, &alone).unwrap();
                assert_eq!(anew.usage[0].cached_tokens, 0);
                assert_eq!(continued.sequences, anew.sequences);
            }
        }
    }
}

#[test]
fn one_beam_is_greedy_and_several_answers_share_a_prompt() {
    let model = model(Dtype::Auto);
    let prompt: Vec<u32> = prompts().swap_remove(7);
    let greedy = model.generate(prompt.clone(), &config(20)).unwrap();
    let one = GenerationConfig { num_beams: Some(1), ..config(20) };
    assert_eq!(model.generate(prompt.clone(), &one).unwrap().sequences, greedy.sequences);

    let several = GenerationConfig {
        num_return_sequences: Some(5),
        temperature: Some(1.2),
        seed: Some(40),
        ..config(20)
    };
    let output = model.generate(prompt.clone(), &several).unwrap();
    assert_eq!(output.sequences.len(), 5);
    for index in 0..5 {
        let alone =
            GenerationConfig { num_return_sequences: None, seed: Some(40 + index as u64), ..several.clone() };
        let alone = model.generate(prompt.clone(), &alone).unwrap();
        assert_eq!(output.sequences[index], alone.sequences[0], "answer {index}");
    }
    let beams = GenerationConfig { num_beams: Some(3), num_return_sequences: Some(3), ..several };
    let first = model.generate(prompt.clone(), &beams).unwrap();
    assert_eq!(
        first.sequences,
        model.generate(prompt, &beams).unwrap().sequences,
        "a search draws by its seed"
    );
}

#[test]
fn drafts_change_nothing_but_the_number_of_steps() {
    let (target, assistant) = (model(Dtype::Auto), model(Dtype::Auto));
    let tokenizer = tokenizer();
    let text = "one two three four five six seven, one two three four five six seven, one two three";
    let mut accepted = 0;
    for prompt in [tokenizer.encode(text).unwrap(), prompts().swap_remove(9)] {
        for temperature in [0.0, 0.8] {
            // Long enough to cross several chunks of the recurrent state.
            let plain = GenerationConfig {
                temperature: Some(temperature),
                repetition_penalty: Some(1.05),
                eos_token_id: Some(vec![]),
                ..config(150)
            };
            let expected = target.generate(prompt.clone(), &plain).unwrap();
            let lookup = GenerationConfig { prompt_lookup_num_tokens: Some(6), ..plain.clone() };
            let found = target.generate(prompt.clone(), &lookup).unwrap();
            assert_eq!(found.sequences, expected.sequences, "prompt lookup at {temperature}");
            accepted += found.usage[0].accepted_tokens;
            let with_host = GenerationConfig { no_repeat_ngram_size: Some(9), ..lookup };
            let without = GenerationConfig { prompt_lookup_num_tokens: None, ..with_host.clone() };
            let found = target.generate(prompt.clone(), &with_host).unwrap();
            assert_eq!(found.sequences, target.generate(prompt.clone(), &without).unwrap().sequences);

            let drafted = GenerationConfig {
                num_assistant_tokens: Some(5),
                num_assistant_tokens_schedule: Some("heuristic".into()),
                assistant_confidence_threshold: Some(0.1),
                ..plain.clone()
            };
            let options = GenerateOptions { assistant_model: Some(&assistant), ..Default::default() };
            let found = target.generate_with_options(prompt.clone(), &drafted, options).unwrap();
            assert_eq!(found.sequences, expected.sequences, "a draft model at {temperature}");
            // The draft model is the model itself, and draws with the same numbers: all it drafts is right.
            let usage = &found.usage[0];
            assert!(usage.accepted_tokens > 40, "{usage:?}");
            assert!(usage.acceptance().unwrap() > 0.9, "{usage:?}");
        }
    }
    assert!(accepted > 0, "something of the prompt is said again");
    let other = AutoModelForCausalLM::from_pretrained(MOE).load().unwrap();
    let options = GenerateOptions { assistant_model: Some(&other), ..Default::default() };
    let plain = target.generate(vec![30, 31, 32], &config(20)).unwrap();
    match target.generate_with_options(vec![30, 31, 32], &config(20), options) {
        Ok(found) => assert_eq!(found.sequences, plain.sequences),
        Err(error) => assert!(error.to_string().contains("vocabulary differs"), "{error}"),
    }
}

#[test]
fn looking_at_scores_changes_no_token() {
    let model = model(Dtype::Auto);
    let plain = GenerationConfig {
        temperature: Some(0.9),
        top_k: Some(40),
        top_p: Some(0.9),
        min_p: Some(0.02),
        repetition_penalty: Some(1.1),
        ..config(24)
    };
    let seen = GenerationConfig {
        output_scores: Some(true),
        output_logits: Some(true),
        logprobs: Some(3),
        ..plain.clone()
    };
    for prompt in prompts().into_iter().take(8) {
        // The device samples by itself in one run; in the other the host computes every processor.
        let fused = model.generate(prompt.clone(), &plain).unwrap();
        let output = model.generate(prompt, &seen).unwrap();
        assert_eq!(output.sequences, fused.sequences);
        assert_eq!(output.details[0].len(), output.new_tokens(0).len());
        for (details, id) in output.details[0].iter().zip(output.new_tokens(0)) {
            let (scores, logits) = (details.scores.as_ref().unwrap(), details.logits.as_ref().unwrap());
            assert!(scores[*id as usize].is_finite());
            let kept = scores.iter().filter(|score| score.is_finite()).count();
            assert!((1..=40).contains(&kept), "top-k keeps 40 at most, not {kept}");
            let best = details.top[0];
            assert!(logits.iter().all(|logit| *logit <= logits[best.0 as usize]));
            assert!(best.1 >= details.logprob.unwrap() && details.top.len() == 3);
        }
    }
}

#[test]
fn stop_strings_end_an_answer_across_token_borders() {
    let (model, tokenizer) = (model(Dtype::Auto), tokenizer());
    let prompt = tokenizer.encode("Once upon a time").unwrap();
    let whole = model.generate(prompt.clone(), &config(24)).unwrap();
    let text = tokenizer.decode(whole.new_tokens(0), true);
    // A piece that begins and ends within words, so that no token border helps.
    let middle: Vec<char> = text.chars().skip(7).take(5).collect();
    let stop: String = middle.into_iter().collect();
    let before = text[..text.find(&stop).unwrap()].to_owned();
    let stopped = GenerationConfig { stop_strings: Some(vec![stop.clone()]), ..config(24) };
    let output = model.generate(prompt.clone(), &stopped).unwrap();
    assert_eq!(output.finish_reasons[0], FinishReason::StopString);
    assert!(output.new_tokens(0).len() < whole.new_tokens(0).len());
    assert_eq!(output.text(0, &tokenizer, true), before);
    let kept = GenerationConfig { include_stop_str_in_output: Some(true), ..stopped.clone() };
    let output = model.generate(prompt.clone(), &kept).unwrap();
    assert!(output.text(0, &tokenizer, true).contains(&stop));

    let mut shown = String::new();
    let mut streamer = TextPieces::new(&tokenizer, |text: &str| {
        shown.push_str(text);
        Ok(())
    })
    .skip_prompt()
    .stop_strings(vec![stop]);
    let options = GenerateOptions { streamer: Some(&mut streamer), ..Default::default() };
    model.generate_with_options(prompt, &stopped, options).unwrap();
    drop(streamer);
    assert_eq!(shown, before);
}

#[test]
fn answers_can_be_read_on_another_thread() {
    let (model, tokenizer) = (model(Dtype::Auto), tokenizer());
    let prompt = tokenizer.encode("Once upon a time").unwrap();
    let expected = model.generate(prompt.clone(), &config(10)).unwrap();
    let (streamer, texts) = TextIteratorStreamer::new(&tokenizer, None);
    let mut streamer = streamer.skip_prompt();
    let text: String = std::thread::scope(|scope| {
        scope.spawn(|| {
            let options = GenerateOptions { streamer: Some(&mut streamer), ..Default::default() };
            model.generate_with_options(prompt, &config(10), options).unwrap();
        });
        texts.collect()
    });
    assert_eq!(text, tokenizer.decode(expected.new_tokens(0), true));
}

#[test]
fn ones_own_processors_and_criteria_take_part() {
    let model = model(Dtype::Auto);
    let always = processor_fn("always 77", |_, logits| {
        logits.fill(f32::NEG_INFINITY);
        logits[77] = 0.0;
        Ok(())
    });
    let four = criterion_fn("four", |context| context.new_tokens().len() == 4);
    let options = GenerateOptions {
        logits_processor: vec![always],
        stopping_criteria: vec![four],
        ..Default::default()
    };
    let output = model.generate_with_options(vec![30, 31], &config(20), options).unwrap();
    assert_eq!((output.new_tokens(0), output.finish_reasons[0]), (&[77u32; 4][..], FinishReason::Criterion));
    let nothing = processor_fn("nothing", |_, logits| {
        logits.fill(f32::NEG_INFINITY);
        Ok(())
    });
    let options = GenerateOptions { logits_processor: vec![nothing], ..Default::default() };
    let message = model.generate_with_options(vec![30], &config(4), options).unwrap_err().to_string();
    assert!(message.contains("every token was ruled out") && message.contains("nothing"), "{message}");
    let timed = GenerationConfig { max_time: Some(1e-6), ..config(20) };
    let output = model.generate(vec![30, 31], &timed).unwrap();
    assert_eq!((output.new_tokens(0).len(), output.finish_reasons[0]), (1, FinishReason::MaxTime));
}

fn constrained(constraint: Constraint) -> GenerationConfig {
    GenerationConfig { constraint: Some(constraint), temperature: Some(1.0), ..config(60) }
}

#[test]
fn constrained_answers_follow_their_grammar_or_fail() {
    let (model, tokenizer) = (model(Dtype::Auto), tokenizer());
    let prompt = tokenizer.encode("Answer:").unwrap();
    let answer = |config: &GenerationConfig| -> Result<String> {
        let output = model.generate(prompt.clone(), config)?;
        Ok(output.text(0, &tokenizer, true))
    };
    let schema = json!({
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["red", "green"]}},
        "required": ["ok", "kind"], "additionalProperties": false,
    });
    let sums = "root ::= term (\"+\" term){1,3}\nterm ::= [0-9]{1,2} | \"(\" root \")\"";
    for seed in 0..6 {
        let seeded = |constraint| GenerationConfig { seed: Some(seed), ..constrained(constraint) };
        let document = seeded(Constraint::json_schema(schema.clone()));
        let text = answer(&GenerationConfig { max_new_tokens: Some(300), ..document }).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(value["ok"].is_boolean() && ["red", "green"].contains(&value["kind"].as_str().unwrap()));
        let text = answer(&seeded(Constraint::Regex("(yes|no), [0-9]{2,4}!".into()))).unwrap();
        let (word, rest) = text.split_once(", ").unwrap();
        assert!(
            ["yes", "no"].contains(&word) && rest.ends_with('!') && (3..=5).contains(&rest.len()),
            "{text}"
        );
        let text = answer(&seeded(Constraint::Lark("start: \"a\" (\"b\" | \"c\")~2 \"d\"".into()))).unwrap();
        assert!(["abbd", "abcd", "acbd", "accd"].contains(&text.as_str()), "{text}");
        match answer(&seeded(Constraint::Gbnf(sums.into()))) {
            Ok(text) => {
                assert!(text.contains('+') && text.chars().all(|c| "0123456789+()".contains(c)), "{text}")
            }
            // Parentheses can nest beyond the sixty tokens; then it says so.
            Err(error) => assert!(error.to_string().contains("max_new_tokens was reached"), "{error}"),
        }
    }
    let long =
        GenerationConfig { max_new_tokens: Some(3), ..constrained(Constraint::Regex("a{400}".into())) };
    let message = answer(&long).unwrap_err().to_string();
    assert!(message.contains("max_new_tokens was reached before the answer was a whole text"), "{message}");
    for bad in [
        Constraint::json_schema(json!({"type": "object", "unevaluatedProperties": {"if": 1}})),
        Constraint::json_schema(json!({"type": "nothing"})),
        Constraint::Regex("(a".into()),
        Constraint::Lark("start: missing".into()),
        Constraint::Gbnf("root ::= missing".into()),
    ] {
        let message = answer(&constrained(bad.clone())).unwrap_err().to_string();
        assert!(message.starts_with("constraint: "), "{bad:?}: {message}");
    }
    let beams = GenerationConfig {
        num_beams: Some(3),
        temperature: Some(0.0),
        ..constrained(Constraint::Regex("[a-c]{5}".into()))
    };
    let text = answer(&beams).unwrap();
    assert!(text.len() == 5 && text.chars().all(|c| "abc".contains(c)), "{text}");
}

#[test]
fn padded_batches_cost_what_their_tokens_cost() {
    let model = model(Dtype::Auto);
    let ragged: Vec<Vec<u32>> = prompts().into_iter().take(4).collect();
    let width = ragged.iter().map(Vec::len).max().unwrap();
    for left in [false, true] {
        let pad = |row: &[u32], fill: u32| -> Vec<u32> {
            let padding = vec![fill; width - row.len()];
            if left { [&padding, row].concat() } else { [row, &padding].concat() }
        };
        let ids: Vec<_> = ragged.iter().map(|row| pad(row, 0)).collect();
        let masks: Vec<Vec<u8>> = ragged
            .iter()
            .map(|row| pad(&vec![1; row.len()], 0).into_iter().map(|x| x as u8).collect())
            .collect();
        let padded = Prompts::from_padded(&ids, &masks).unwrap();
        assert_eq!(padded.0, ragged);
        let output = model.generate(padded, &config(6)).unwrap();
        assert_eq!(output.sequences, model.generate(ragged.clone(), &config(6)).unwrap().sequences);
    }
}

#[test]
fn a_manager_serves_requests_as_they_come() {
    let model = model(Dtype::Auto);
    let mut manager = model.batching_manager(3).unwrap();
    let prompts: Vec<_> = prompts().into_iter().take(7).collect();
    let mut asked = Vec::new();
    for prompt in &prompts {
        asked.push(manager.add_request(prompt.clone(), &config(9)).unwrap());
    }
    let endless =
        manager.add_request(vec![40, 41], &GenerationConfig { eos_token_id: Some(vec![]), ..config(2000) });
    let endless = endless.unwrap();
    manager.cancel(endless);
    assert!(manager.add_request(vec![], &config(9)).is_err());
    let results: Vec<_> = manager.by_ref().collect();
    assert_eq!(results.len(), 8);
    for (prompt, id) in prompts.iter().zip(&asked) {
        let result = results.iter().find(|result| result.request == *id).unwrap();
        let alone = model.generate(prompt.clone(), &config(9)).unwrap();
        assert_eq!(result.new_tokens, alone.new_tokens(0));
        assert_eq!(result.finish_reason, Some(alone.finish_reasons[0]));
    }
    let cancelled = results.iter().find(|result| result.request == endless).unwrap();
    assert_eq!(cancelled.finish_reason, Some(FinishReason::Cancelled));
    assert_eq!(manager.in_progress(), 0);
}

#[test]
fn a_manager_with_room_to_go_back_serves_drafts() {
    let model = model(Dtype::Auto);
    let lookup = GenerationConfig { prompt_lookup_num_tokens: Some(6), ..config(40) };
    let prompt = prompts().remove(0);
    let refused = model.batching_manager(2).unwrap().add_request(prompt.clone(), &lookup);
    assert!(refused.unwrap_err().to_string().contains("rollback of 6 tokens"));
    let options = EngineOptions { max_sequences: 2, rollback: 6, ..model.engine_options().clone() };
    let mut manager = model.batching_manager_with(options).unwrap();
    manager.add_request(prompt.clone(), &lookup).unwrap();
    let result = manager.next().unwrap();
    let plain = model.generate(prompt, &config(40)).unwrap();
    assert_eq!((result.error, result.new_tokens), (None, plain.new_tokens(0).to_vec()));
}

#[test]
fn parameters_that_cannot_be_served_name_their_field() {
    let model = model(Dtype::Auto);
    let none = GenerationConfig::default;
    for (field, bad) in [
        ("top_p", GenerationConfig { top_p: Some(0.0), temperature: Some(1.0), ..none() }),
        ("temperature", GenerationConfig { temperature: Some(-1.0), ..none() }),
        ("min_new_tokens", GenerationConfig { min_new_tokens: Some(9), max_new_tokens: Some(3), ..none() }),
        ("max_length", GenerationConfig { max_length: Some(2), ..none() }),
        ("num_beams", GenerationConfig { num_beams: Some(0), ..none() }),
        ("bad_words_ids", GenerationConfig { bad_words_ids: Some(vec![vec![9_999_999]]), ..none() }),
        ("stop_strings", GenerationConfig { stop_strings: Some(vec!["word, ".repeat(50_000)]), ..none() }),
        ("typical_p", GenerationConfig { typical_p: Some(2.0), temperature: Some(1.0), ..none() }),
    ] {
        let message = model.generate(vec![30, 31, 32], &bad).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{field}: ")), "{field}: {message}");
    }
    struct Fails;
    impl Streamer for Fails {
        fn on_token(&mut self, _: u32, is_prompt: bool) -> Result<()> {
            if is_prompt { Ok(()) } else { Err(gruff::Error::Option("the pipe is broken".into())) }
        }
    }
    let options = GenerateOptions { streamer: Some(&mut Fails), ..Default::default() };
    let message = model.generate_with_options(vec![30], &config(9), options).unwrap_err().to_string();
    assert_eq!(message, "the pipe is broken");
}
