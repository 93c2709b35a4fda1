//! What may be asked for together: guidance, beams, several answers, drafts, grammars, stop strings, interventions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gruff::floors::engine::{Context, EngineOptions};
use gruff::{
    AutoModelForCausalLM, AutoTokenizer, Constraint, Dtype, FinishReason, GenerateOptions, GenerateOutput,
    GenerationConfig, LogitRows, Pretrained, Prompts, Result, Weight, processor_fn,
};
use serde_json::{Value, json};

const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");

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
        eos_token_id: Some(vec![]),
        ..GenerationConfig::default()
    }
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| 20 + (i * 37 + 5) % 3900).collect()
}

fn negative() -> Vec<u32> {
    (0..23).map(|i| 30 + i * 151 % 3800).collect()
}

fn guided(model: &AutoModelForCausalLM, prompt: &[u32], config: &GenerationConfig) -> Result<GenerateOutput> {
    let negative_prompt_ids = Some(Prompts::from(negative()));
    let options = GenerateOptions { negative_prompt_ids, ..Default::default() };
    model.generate_with_options(prompt, config, options)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - most) - sum.ln()).collect()
}

/// For each of `answer`'s tokens, and what comes behind them: the guided logarithms of all tokens.
fn guided_rows(model: &AutoModelForCausalLM, prompt: &[u32], answer: &[u32], scale: f64) -> Vec<Vec<f64>> {
    let rows = |prompt: &[u32]| -> Vec<Vec<f64>> {
        let mut cache = model.new_cache(1, 256).unwrap();
        let ids = [prompt, answer].concat();
        let output = model.forward_with(ids, &mut cache, LogitRows::All, &Default::default()).unwrap();
        output.all_logits(0).skip(prompt.len() - 1).map(log_softmax).collect()
    };
    let pairs = rows(prompt).into_iter().zip(rows(&negative()));
    pairs.map(|(own, other)| own.iter().zip(other).map(|(p, n)| scale * (p - n) + n).collect()).collect()
}

#[test]
fn several_guided_answers_are_those_that_each_seed_gives_alone() {
    let model = model(Dtype::Auto);
    let several = GenerationConfig {
        guidance_scale: Some(1.7),
        num_return_sequences: Some(3),
        temperature: Some(0.9),
        seed: Some(11),
        ..config(20)
    };
    let together = guided(&model, &prompt(40), &several).unwrap();
    assert_eq!(together.sequences.len(), 3);
    for index in 0..3 {
        let alone =
            GenerationConfig { num_return_sequences: None, seed: Some(11 + index as u64), ..several.clone() };
        let alone = guided(&model, &prompt(40), &alone).unwrap();
        assert_eq!(together.new_tokens(index), alone.new_tokens(0), "answer {index}");
    }
    assert_ne!(together.new_tokens(0), together.new_tokens(1));
}

#[test]
fn a_guided_search_follows_every_beams_own_negative_text() {
    let model = model(Dtype::F32);
    let (prompt, scale) = (prompt(17), 1.6_f32);
    let search = GenerationConfig {
        guidance_scale: Some(scale),
        num_beams: Some(4),
        num_return_sequences: Some(4),
        length_penalty: Some(1.0),
        ..config(12)
    };
    let found = guided(&model, &prompt, &search).unwrap();
    let scores = found.sequences_scores.clone().unwrap();
    for (row, score) in scores.iter().enumerate() {
        let answer = found.new_tokens(row);
        let rows = guided_rows(&model, &prompt, answer, f64::from(scale));
        let sum: f64 = answer.iter().zip(&rows).map(|(id, row)| row[*id as usize]).sum();
        let mean = sum / answer.len() as f64;
        assert!((mean - f64::from(*score)).abs() < 1e-3, "row {row}: {mean}, but {score}");
    }
    assert!(scores.windows(2).all(|pair| pair[0] >= pair[1]));
    let indices = found.beam_indices.unwrap();
    assert!(indices.iter().flatten().any(|beam| *beam > 0), "beams took over from each other");

    // Two steps, found by trying every continuation of the best first tokens.
    let two = GenerationConfig { max_new_tokens: Some(2), num_return_sequences: Some(1), ..search };
    let found = guided(&model, &prompt, &two).unwrap();
    let first = guided_rows(&model, &prompt, &[], f64::from(scale)).remove(0);
    let mut order: Vec<usize> = (0..first.len()).collect();
    order.sort_by(|a, b| first[*b].total_cmp(&first[*a]));
    let tried = order[..4].iter().map(|token| {
        let second = guided_rows(&model, &prompt, &[*token as u32], f64::from(scale)).remove(1);
        let best = (0..second.len()).max_by(|a, b| second[*a].total_cmp(&second[*b])).unwrap();
        (first[*token] + second[best], vec![*token as u32, best as u32])
    });
    let best = tried.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    assert_eq!(found.new_tokens(0), best.1);
}

#[test]
fn drafts_change_nothing_of_guided_answers() {
    let (model, tokenizer) = (model(Dtype::Auto), tokenizer());
    let text = "one two three four five six seven, one two three four five six seven, one two three";
    let prompt = tokenizer.encode(text).unwrap();
    let mut accepted = 0;
    for (temperature, answers) in [(0.0, 1), (0.8, 3)] {
        let plain = GenerationConfig {
            guidance_scale: Some(1.4),
            temperature: Some(temperature),
            num_return_sequences: Some(answers),
            ..config(90)
        };
        let expected = guided(&model, &prompt, &plain).unwrap();
        let drafted = GenerationConfig { prompt_lookup_num_tokens: Some(5), ..plain };
        let found = guided(&model, &prompt, &drafted).unwrap();
        assert_eq!(found.sequences, expected.sequences, "at {temperature}");
        assert!(found.usage.iter().all(|usage| usage.drafted_tokens > 0));
        accepted += found.usage.iter().map(|usage| usage.accepted_tokens).sum::<usize>();
    }
    assert!(accepted > 0, "something is said again");
}

#[test]
fn what_is_told_of_a_guided_answer_is_the_models_own() {
    let model = model(Dtype::Auto);
    let seen = GenerationConfig {
        guidance_scale: Some(2.0),
        output_logits: Some(true),
        output_scores: Some(true),
        logprobs: Some(2),
        ..config(5)
    };
    let output = guided(&model, &prompt(20), &seen).unwrap();
    let plain = GenerationConfig { guidance_scale: None, ..seen };
    let own = model.generate(prompt(20), &plain).unwrap();
    let first = &output.details[0][0];
    assert!(first.logits == own.details[0][0].logits, "the logits of the model, not the guided ones");
    assert!(first.scores != own.details[0][0].scores);
    assert_eq!(first.top, own.details[0][0].top);
}

#[test]
fn the_negative_prompts_context_ends_an_answer_as_ones_own_does() {
    let context = 64;
    let model =
        AutoModelForCausalLM::from_pretrained(DENSE).context(Context::Tokens(context)).load().unwrap();
    let negative = vec![40; context - 6];
    let options = || GenerateOptions {
        negative_prompt_ids: Some(Prompts::from(negative.clone())),
        ..Default::default()
    };
    for lookup in [None, Some(4)] {
        let config =
            GenerationConfig { guidance_scale: Some(1.5), prompt_lookup_num_tokens: lookup, ..config(50) };
        let output = model.generate_with_options(vec![40; 9], &config, options()).unwrap();
        assert_eq!((output.new_tokens(0).len(), output.finish_reasons[0]), (6, FinishReason::Context));
    }
    // A grammar that has no room is not left incomplete in silence.
    let config = GenerationConfig {
        guidance_scale: Some(1.5),
        constraint: Some(Constraint::Regex("[ab]{40}".into())),
        eos_token_id: None,
        ..config(60)
    };
    let error = model.generate_with_options(vec![40; 9], &config, options()).unwrap_err().to_string();
    assert!(error.contains("the context is full before"), "{error}");
}

#[test]
fn a_search_gives_whole_texts_of_its_grammar_or_fails() {
    let (model, tokenizer) = (model(Dtype::Auto), tokenizer());
    let prompt = tokenizer.encode("Answer:").unwrap();
    let search = |regex: &str, max_new_tokens, answers| GenerationConfig {
        num_beams: Some(3),
        num_return_sequences: Some(answers),
        constraint: Some(Constraint::Regex(regex.into())),
        eos_token_id: None,
        ..config(max_new_tokens)
    };
    let error = model.generate(prompt.clone(), &search("a{400}", 3, 1)).unwrap_err().to_string();
    assert!(error.contains("max_new_tokens was reached before the answer was a whole text"), "{error}");

    let output = model.generate(prompt.clone(), &search("yes|no", 12, 2)).unwrap();
    let mut texts = [output.text(0, &tokenizer, true), output.text(1, &tokenizer, true)];
    texts.sort();
    assert_eq!(texts, ["no", "yes"]);
    assert_eq!(output.finish_reasons, [FinishReason::EndToken; 2]);

    // Whatever is given is whole, even where the length ends most of the search.
    for most in 2..7 {
        match model.generate(prompt.clone(), &search("(a|bc|def)+!", most, 3)) {
            Ok(output) => {
                for row in 0..3 {
                    let text = output.text(row, &tokenizer, true);
                    assert!(text.ends_with('!'), "{text:?} within {most}");
                }
            }
            Err(error) => assert!(error.to_string().contains("answer"), "{error}"),
        }
    }
}

#[test]
fn beams_stop_strings_and_grammars_agree_on_where_to_end() {
    let (model, tokenizer) = (model(Dtype::Auto), tokenizer());
    let prompt = tokenizer.encode("Once upon a time").unwrap();
    let plain = GenerationConfig { num_beams: Some(3), num_return_sequences: Some(3), ..config(20) };
    let whole = model.generate(prompt.clone(), &plain).unwrap();
    let text = tokenizer.decode(whole.new_tokens(0), true);
    let stop: String = text.chars().skip(9).take(4).collect();
    let stopped = GenerationConfig { stop_strings: Some(vec![stop.clone()]), ..plain };
    let output = model.generate(prompt, &stopped).unwrap();
    for row in 0..3 {
        let raw = tokenizer.decode(output.new_tokens(row), true);
        let trimmed = output.text(row, &tokenizer, true);
        assert!(!trimmed.contains(&stop), "{trimmed:?}");
        assert_eq!(raw.contains(&stop), output.finish_reasons[row] == FinishReason::StopString, "{raw:?}");
    }
}

#[test]
fn drafts_grammars_logprobs_and_stop_strings_go_together() {
    let (model, tokenizer) = (model(Dtype::Auto), tokenizer());
    let prompt = tokenizer.encode("A list: aba aba aba aba aba aba").unwrap();
    let everything = GenerationConfig {
        constraint: Some(Constraint::Regex("( aba| bab)+( end)?".into())),
        stop_strings: Some(vec!["bab aba bab".to_owned(), " end".to_owned()]),
        logprobs: Some(2),
        output_scores: Some(true),
        output_logits: Some(true),
        repetition_penalty: Some(1.05),
        eos_token_id: None,
        ..config(60)
    };
    for temperature in [0.0, 1.1] {
        for seed in 0..3 {
            let plain =
                GenerationConfig { temperature: Some(temperature), seed: Some(seed), ..everything.clone() };
            let drafted = GenerationConfig { prompt_lookup_num_tokens: Some(6), ..plain.clone() };
            let expected = model.generate(prompt.clone(), &plain);
            let found = model.generate(prompt.clone(), &drafted);
            match (expected, found) {
                (Ok(expected), Ok(found)) => {
                    assert_eq!(found.sequences, expected.sequences);
                    assert_eq!(found.finish_reasons, expected.finish_reasons);
                    assert!(found.details == expected.details, "scores and all");
                }
                (Err(expected), Err(found)) => assert_eq!(found.to_string(), expected.to_string()),
                (expected, found) => panic!("{:?} and {:?}", expected.is_ok(), found.is_ok()),
            }
        }
    }
}

/// Whether what a manager answers is what `generate` does with empty caches.
fn check_manager(
    model: &AutoModelForCausalLM,
    manager: &mut gruff::BatchingManager<'_>,
    what: &str,
) -> Vec<u32> {
    manager.add_request(prompt(150), &config(8)).unwrap();
    let result = manager.next().unwrap();
    model.clear_caches();
    let anew = model.generate(prompt(150), &config(8)).unwrap();
    assert_eq!(result.new_tokens, anew.new_tokens(0), "{what}");
    assert_eq!(result.usage.cached_tokens, 0, "{what}: another model computed what is there");
    result.new_tokens
}

#[test]
fn a_manager_forgets_what_another_model_has_computed() {
    let model = model(Dtype::Auto);
    let options = EngineOptions { max_sequences: 2, rollback: 8, ..model.engine_options().clone() };
    let mut manager = model.batching_manager_with(options).unwrap();
    let plain = check_manager(&model, &mut manager, "at first");
    manager.add_request(prompt(150), &config(8)).unwrap();
    let again = manager.next().unwrap();
    assert_eq!((&again.new_tokens, again.usage.cached_tokens), (&plain, 128), "nothing has changed");

    let name = "model.layers.1.mlp.down_proj.weight";
    let own = model.weight(name).unwrap();
    let turned: Vec<f32> = own.to_vec_f32().unwrap().iter().map(|value| -3.0 * value).collect();
    let turned = Weight::pack(model.device(), &turned, own.block_type(), &own.shape()).unwrap();
    model.set_weight(name, turned).unwrap();
    assert_ne!(check_manager(&model, &mut manager, "with another weight"), plain);
    model.model().named_parameters().reset(name);
    assert_eq!(check_manager(&model, &mut manager, "with its own weight"), plain);

    let guard = model.register_forward_hook("model.layers.2", |_, output| {
        let twisted: Vec<f32> = output.to_vec_f32()?.iter().rev().copied().collect();
        Ok(Some(output.device().tensor_f32(&twisted, output.shape())?))
    });
    assert_ne!(check_manager(&model, &mut manager, "with a hook"), plain);
    drop(guard);
    assert_eq!(check_manager(&model, &mut manager, "without the hook"), plain);
}

#[test]
fn a_panic_in_a_hook_leaves_the_model_usable() {
    let model = model(Dtype::Auto);
    let plain = model.generate(prompt(80), &config(6)).unwrap();
    let guard = model.register_forward_hook("model.layers.1.mlp", |_, _| panic!("a fault of one's own"));
    let panicked = catch_unwind(AssertUnwindSafe(|| model.generate(prompt(80), &config(6)).map(drop)));
    assert!(panicked.is_err());
    drop(guard);
    let after = model.generate(prompt(80), &config(6)).unwrap();
    assert_eq!((&after.sequences, after.usage[0].cached_tokens), (&plain.sequences, 0));
    let mut next = after.sequences[0].clone();
    next.extend([21, 22]);
    let next = model.generate(next, &config(6)).unwrap();
    assert!(next.usage[0].cached_tokens > 80, "caches are kept again");
}

#[test]
fn a_manager_whose_step_panics_says_so_and_stops() {
    let model = model(Dtype::Auto);
    let mut manager = model.batching_manager(2).unwrap();
    let faulty = processor_fn("faulty", |context, _| match context.new_tokens().len() {
        3 => panic!("three is too many"),
        _ => Ok(()),
    });
    let options = GenerateOptions { logits_processor: vec![faulty], ..Default::default() };
    manager.add_request(prompt(9), &config(30)).unwrap();
    manager.add_request_with_options(prompt(5), &config(30), &options).unwrap();
    let results: Vec<_> = manager.by_ref().collect();
    assert_eq!(results.len(), 2);
    for result in &results {
        let error = result.error.as_deref().unwrap();
        assert!(error.contains("three is too many") && error.contains("make another"), "{error}");
    }
    let error = manager.add_request(prompt(5), &config(3)).unwrap_err().to_string();
    assert!(error.contains("three is too many"), "{error}");
    assert!(manager.next().is_none());
}

#[test]
fn documents_are_not_filled_with_white_space() {
    let (model, tokenizer) = (model(Dtype::Auto), tokenizer());
    let prompt = tokenizer.encode("Answer:").unwrap();
    // Whoever may say white space says it.
    let blanks: Vec<u32> = (0..model.model().config().vocab_size as u32)
        .filter(|id| {
            let text = tokenizer.decode(&[*id], true);
            !text.is_empty() && text.trim().is_empty()
        })
        .collect();
    assert!(blanks.len() > 3, "spaces, line ends, tabs");
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
                       "b": {"type": "object", "properties": {"c": {"enum": [1, 2]}}, "required": ["c"],
                             "additionalProperties": false}},
        "required": ["a", "b"], "additionalProperties": false,
    });
    for constraint in
        [Constraint::json_schema(schema), Constraint::json_schema(json!(true)), Constraint::JsonObject]
    {
        let dawdles = GenerationConfig {
            constraint: Some(constraint.clone()),
            logit_bias: Some(blanks.iter().map(|id| (*id, 100.0)).collect()),
            eos_token_id: None,
            ..config(200)
        };
        match model.generate(prompt.clone(), &dawdles) {
            Ok(output) => {
                let text = output.text(0, &tokenizer, true);
                let value: Value = serde_json::from_str(&text).unwrap();
                let compact = serde_json::to_string(&value).unwrap();
                let gaps = compact.matches([',', ':']).count();
                assert!(text.len() <= compact.len() + gaps, "{text:?}");
            }
            // A text inside a document may be as blank and as long as it likes.
            Err(error) => {
                assert!(!matches!(constraint, Constraint::JsonSchema(Value::Object(_))), "{error}");
                assert!(error.to_string().contains("max_new_tokens"), "{error}");
            }
        }
    }
}

#[test]
fn longer_matches_draft_otherwise() {
    let model = model(Dtype::Auto);
    // Behind 61 70 stood 71, behind 70 alone last 80; the first token is not drafted.
    let prompt = vec![50, 61, 70, 71, 72, 55, 70, 80, 81, 82, 50, 61];
    let usage = |max_matching_ngram_size| {
        let config =
            GenerationConfig { prompt_lookup_num_tokens: Some(3), max_matching_ngram_size, ..config(4) };
        let says = processor_fn("says", |context, logits| {
            logits.fill(f32::NEG_INFINITY);
            logits[[70, 71, 72, 99][context.new_tokens().len()]] = 0.0;
            Ok(())
        });
        let options = GenerateOptions { logits_processor: vec![says], ..Default::default() };
        let output = model.generate_with_options(prompt.clone(), &config, options).unwrap();
        assert_eq!(output.new_tokens(0), [70, 71, 72, 99]);
        output.usage[0].accepted_tokens
    };
    assert!(usage(None) > usage(Some(1)), "two tokens in a row find the right place");
}
