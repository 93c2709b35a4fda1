//! What the processors do to random logits, against transformers' classes and plain formulas (recorded by
//! tools/peers/processors.py), and that no chain of them panics or yields NaN.

use gruff_engine::logits::{
    Dry, DynamicTemperatureRange, LogitsProcessor, Mirostat, MirostatVersion, PrefixAllowedTokens,
    ProcessorList, SeedingScheme, TokenContext, WatermarkConfig, Xtc, guide, processor_fn,
};
use gruff_engine::{Error, SamplingParams};
use proptest::prelude::*;
use serde_json::Value;

const RECORDED: &str = include_str!("../../../tests/peers/processors.json");

/// Recorded numbers have seven decimals.
const TOLERANCE: f32 = 1e-6;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().map_or(Vec::new(), |ids| ids.iter().map(|id| id.as_u64().unwrap() as u32).collect())
}

fn row(value: &Value) -> Vec<f32> {
    let number = |x: &Value| x.as_f64().map_or(f32::NEG_INFINITY, |x| x as f32);
    value.as_array().unwrap().iter().map(number).collect()
}

/// The parameters of a recorded case; truncation belongs to sampling, so the temperature is 1 where none is given.
fn params(value: &Value) -> SamplingParams {
    let float = |name: &str, default: f32| value[name].as_f64().map_or(default, |x| x as f32);
    let count = |name: &str| value[name].as_u64().unwrap_or(0) as usize;
    let allowed = ids(&value["allowed"]);
    let dry = &value["dry"];
    let watermark = &value["watermark"];
    let default = WatermarkConfig::default();
    SamplingParams {
        temperature: float("temperature", 1.0),
        top_k: count("top_k"),
        top_p: float("top_p", 1.0),
        min_p: float("min_p", 0.0),
        repetition_penalty: float("repetition_penalty", 1.0),
        encoder_repetition_penalty: float("encoder_repetition_penalty", 1.0),
        presence_penalty: float("presence_penalty", 0.0),
        frequency_penalty: float("frequency_penalty", 0.0),
        sequence_bias: value["sequence_bias"].as_array().map_or(Vec::new(), |pairs| {
            pairs.iter().map(|pair| (ids(&pair[0]), pair[1].as_f64().unwrap() as f32)).collect()
        }),
        no_repeat_ngram_size: count("no_repeat_ngram_size"),
        encoder_no_repeat_ngram_size: count("encoder_no_repeat_ngram_size"),
        bad_words_ids: value["bad_words_ids"]
            .as_array()
            .map_or(Vec::new(), |words| words.iter().map(ids).collect()),
        min_length: count("min_length"),
        min_new_tokens: count("min_new_tokens"),
        prefix_allowed_tokens: (!allowed.is_empty())
            .then(|| PrefixAllowedTokens::new(move |_| allowed.clone())),
        forced_bos_token_id: value["forced_bos_token_id"].as_u64().map(|id| id as u32),
        forced_eos_token_id: ids(&value["forced_eos_token_id"]),
        exponential_decay_length_penalty: value["exponential_decay_length_penalty"]
            .as_array()
            .map(|pair| (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap() as f32)),
        suppress_tokens: ids(&value["suppress_tokens"]),
        begin_suppress_tokens: ids(&value["begin_suppress_tokens"]),
        dynamic_temperature: value["dynamic_temperature"]["range"].as_f64().map(|range| {
            let exponent = value["dynamic_temperature"]["exponent"].as_f64().unwrap() as f32;
            DynamicTemperatureRange { range: range as f32, exponent }
        }),
        top_n_sigma: float("top_n_sigma", 0.0),
        top_h: value["top_h"].as_f64().map(|h| h as f32),
        typical_p: float("typical_p", 1.0),
        epsilon_cutoff: float("epsilon_cutoff", 0.0),
        eta_cutoff: float("eta_cutoff", 0.0),
        dry: dry.is_object().then(|| Dry {
            multiplier: dry["multiplier"].as_f64().unwrap() as f32,
            base: dry["base"].as_f64().unwrap() as f32,
            allowed_length: dry["allowed_length"].as_u64().unwrap() as usize,
            penalty_last_n: None,
            sequence_breakers: dry["sequence_breakers"].as_array().unwrap().iter().map(ids).collect(),
        }),
        xtc: value["xtc"]["threshold"].as_f64().map(|threshold| Xtc {
            probability: value["xtc"]["probability"].as_f64().unwrap() as f32,
            threshold: threshold as f32,
        }),
        mirostat: value["mirostat"]["tau"].as_f64().map(|tau| Mirostat {
            version: if value["mirostat"]["version"] == 1 {
                MirostatVersion::V1
            } else {
                MirostatVersion::V2
            },
            tau: tau as f32,
            eta: value["mirostat"]["eta"].as_f64().unwrap() as f32,
        }),
        watermark: watermark.is_object().then(|| WatermarkConfig {
            greenlist_ratio: watermark["greenlist_ratio"]
                .as_f64()
                .map_or(default.greenlist_ratio, |x| x as f32),
            bias: watermark["bias"].as_f64().map_or(default.bias, |x| x as f32),
            hashing_key: watermark["hashing_key"].as_u64().unwrap_or(default.hashing_key),
            seeding_scheme: if watermark["seeding_scheme"] == "selfhash" {
                SeedingScheme::SelfHash
            } else {
                SeedingScheme::LeftHash
            },
            context_width: watermark["context_width"].as_u64().map_or(1, |width| width as usize),
        }),
        renormalize_logits: value["renormalize_logits"] == true,
        ..SamplingParams::default()
    }
}

fn compare(name: &str, case: &Value, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (id, (found, expected)) in found.iter().zip(expected).enumerate() {
        let equal = found == expected || (found - expected).abs() <= TOLERANCE * expected.abs().max(1.0);
        assert!(equal, "{name}, token {id}: {found}, but {expected} was recorded; {}", case["params"]);
    }
}

fn run(case: &Value, list: &mut ProcessorList, step: &Value) -> Vec<f32> {
    let (tokens, end_tokens) = (ids(&step["tokens"]), ids(&case["end_tokens"]));
    let context = TokenContext {
        tokens: &tokens,
        prompt_len: case["prompt_len"].as_u64().map_or(1, |len| len as usize),
        end_tokens: &end_tokens,
        max_length: case["max_length"].as_u64().map_or(usize::MAX, |len| len as usize),
        seed: 0,
    };
    let mut logits = row(&step["logits"]);
    list.process(&context, &mut logits).unwrap();
    logits
}

#[test]
fn values_are_those_of_transformers() {
    let cases: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
    assert!(cases.len() > 80);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        if name == "guidance" {
            let mut logits = row(&case["logits"]);
            let scale = case["params"]["guidance_scale"].as_f64().unwrap() as f32;
            guide(&mut logits, &row(&case["params"]["negative"]), scale);
            compare(name, case, &logits, &row(&case["expected"]));
            continue;
        }
        let prompt_len = case["prompt_len"].as_u64().map_or(1, |len| len as usize);
        let keep = case["min_tokens_to_keep"].as_u64().map_or(1, |keep| keep as usize);
        let params = params(&case["params"]);
        params.validate().unwrap();
        let mut list = ProcessorList::new(&params, &[], prompt_len, &ids(&case["end_tokens"]), keep);
        assert!(!list.names().is_empty(), "{name} is asked for");
        let steps = case["steps"].as_array().cloned().unwrap_or_else(|| vec![case.clone()]);
        for step in &steps {
            let found = run(case, &mut list, step);
            compare(name, case, &found, &row(&step["expected"]));
        }
    }
}

#[test]
fn the_order_is_that_of_transformers() {
    let params = SamplingParams {
        temperature: 0.7,
        top_k: 5,
        top_p: 0.9,
        min_p: 0.1,
        repetition_penalty: 1.1,
        sequence_bias: vec![(vec![1], 1.0)],
        encoder_repetition_penalty: 1.1,
        no_repeat_ngram_size: 2,
        encoder_no_repeat_ngram_size: 2,
        bad_words_ids: vec![vec![3]],
        min_length: 3,
        min_new_tokens: 3,
        prefix_allowed_tokens: Some(PrefixAllowedTokens::new(|_| vec![1])),
        forced_bos_token_id: Some(1),
        forced_eos_token_id: vec![1],
        remove_invalid_values: true,
        exponential_decay_length_penalty: Some((1, 1.1)),
        suppress_tokens: vec![1],
        begin_suppress_tokens: vec![1],
        top_h: Some(0.5),
        typical_p: 0.9,
        epsilon_cutoff: 0.1,
        eta_cutoff: 0.1,
        watermark: Some(WatermarkConfig::default()),
        renormalize_logits: true,
        ..SamplingParams::default()
    };
    let own = [processor_fn("own", |_, _| Ok(()))];
    let list = ProcessorList::new(&params, &own, 4, &[2], 1);
    let expected = [
        "sequence_bias",
        "encoder_repetition_penalty",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "min_length",
        "min_new_tokens",
        "prefix_allowed_tokens_fn",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "own",
        "temperature",
        "top_h",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "watermarking_config",
        "renormalize_logits",
    ];
    assert_eq!(list.names(), expected);
    let greedy = ProcessorList::new(&SamplingParams { temperature: 0.0, ..params }, &[], 4, &[2], 1);
    assert!(!greedy.names().contains(&"top_k"), "truncation belongs to sampling");
    assert!(greedy.names().contains(&"watermarking_config"));
}

#[test]
fn what_a_device_does_by_itself_needs_no_list() {
    let fused = |params: &SamplingParams| ProcessorList::new(params, &[], 1, &[], 1).is_fused();
    let plain = SamplingParams {
        temperature: 0.7,
        top_k: 5,
        top_p: 0.9,
        min_p: 0.1,
        repetition_penalty: 1.1,
        ..SamplingParams::default()
    };
    assert!(fused(&plain) && fused(&SamplingParams::default()));
    assert!(!fused(&SamplingParams { min_length: 1, ..plain.clone() }));
    assert!(!fused(&SamplingParams { typical_p: 0.5, ..plain.clone() }));
    assert!(!ProcessorList::new(&plain, &[processor_fn("own", |_, _| Ok(()))], 1, &[], 1).is_fused());
}

#[test]
fn a_row_without_a_token_names_the_processors() {
    let params = SamplingParams {
        suppress_tokens: vec![0, 1],
        bad_words_ids: vec![vec![2]],
        min_new_tokens: 1,
        ..SamplingParams::default()
    };
    let mut list = ProcessorList::new(&params, &[], 1, &[3], 1);
    let context = TokenContext { tokens: &[1], prompt_len: 1, end_tokens: &[3], max_length: 9, seed: 0 };
    let error = list.process(&context, &mut [1.0; 4]).unwrap_err();
    assert!(matches!(&error, Error::RuledOut { position: 1, .. }));
    let message = error.to_string();
    assert!(message.contains("bad_words_ids, min_new_tokens, suppress_tokens"), "{message}");
}

/// A logit: mostly ordinary, now and then huge, equal to another, or ruled out.
fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -30.0f32..30.0,
        1 => prop::sample::select(vec![0.0, 1.0, f32::MAX, f32::MIN, 1e-40, f32::NEG_INFINITY]),
    ]
}

const VOCABULARY: u32 = 24;

fn tokens(most: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..VOCABULARY, 1..most)
}

fn random_params() -> impl Strategy<Value = SamplingParams> {
    let numbers = (
        prop::sample::select(vec![0.0, 1e-6, 0.5, 1.0, 2.0, 1e6]),
        0usize..30,
        prop::sample::select(vec![1e-6, 0.5, 1.0]),
        prop::sample::select(vec![0.0, 0.3, 1.0]),
        prop::sample::select(vec![1e-3, 1.0, 1.3, 1e3]),
        prop::sample::select(vec![0.5, 1.0, 2.0]),
        -5.0f32..5.0,
        prop::sample::select(vec![-1.0, 0.0, 0.5]),
    );
    let truncation = (
        prop::option::of(prop::sample::select(vec![1e-3, 0.5, 1.0])),
        prop::sample::select(vec![1e-3, 0.5, 1.0]),
        prop::sample::select(vec![0.0, 0.2, 0.99]),
        prop::sample::select(vec![0.0, 0.2, 0.99]),
        prop::sample::select(vec![0.0, 1.0, 100.0]),
        prop::option::of((0.0f32..1.0, 0.01f32..1.0)),
        prop::option::of((any::<bool>(), 0.0f32..10.0, 0.0f32..1.0)),
        prop::option::of((0.0f32..3.0, 0.0f32..3.0)),
    );
    let lists = (
        prop::collection::vec(
            (tokens(4), prop::sample::select(vec![f32::NEG_INFINITY, -2.0, 3.0, f32::MAX])),
            0..3,
        ),
        prop::collection::vec(tokens(4), 0..3),
        prop::collection::vec(0..VOCABULARY, 0..4),
        prop::option::of((0.0f32..5.0, 1.0f32..4.0, 0usize..4)),
        0usize..4,
        0usize..8,
        prop::option::of((0usize..6, prop::sample::select(vec![0.5, 1.5, 1e6]))),
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
    );
    (numbers, truncation, lists).prop_map(|(numbers, truncation, lists)| {
        let (temperature, top_k, top_p, min_p, repetition_penalty, encoder, presence, frequency) = numbers;
        let (top_h, typical_p, epsilon_cutoff, eta_cutoff, top_n_sigma, xtc, mirostat, dynamic) = truncation;
        let (sequence_bias, bad_words_ids, suppress_tokens, dry, ngram, shortest, decay, flags) = lists;
        SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            encoder_repetition_penalty: encoder,
            presence_penalty: presence,
            frequency_penalty: frequency,
            top_h,
            typical_p,
            epsilon_cutoff,
            eta_cutoff,
            top_n_sigma,
            xtc: xtc.map(|(probability, threshold)| Xtc { probability, threshold }),
            mirostat: mirostat.map(|(first, tau, eta)| Mirostat {
                version: if first { MirostatVersion::V1 } else { MirostatVersion::V2 },
                tau,
                eta,
            }),
            dynamic_temperature: dynamic.map(|(range, exponent)| DynamicTemperatureRange { range, exponent }),
            sequence_bias,
            bad_words_ids,
            begin_suppress_tokens: suppress_tokens.clone(),
            suppress_tokens,
            dry: dry.map(|(multiplier, base, allowed_length)| Dry {
                multiplier,
                base,
                allowed_length,
                sequence_breakers: vec![vec![3], vec![4, 5]],
                penalty_last_n: Some(9),
            }),
            no_repeat_ngram_size: ngram,
            encoder_no_repeat_ngram_size: ngram,
            min_length: shortest,
            min_new_tokens: shortest,
            exponential_decay_length_penalty: decay,
            remove_invalid_values: flags.0,
            renormalize_logits: flags.1,
            watermark: flags.2.then(WatermarkConfig::default),
            prefix_allowed_tokens: flags.3.then(|| PrefixAllowedTokens::new(|_| (0..20).collect())),
            forced_eos_token_id: if flags.1 { vec![1] } else { Vec::new() },
            ..SamplingParams::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_chain_panics_or_yields_nan(
        params in random_params(),
        rows in prop::collection::vec(prop::collection::vec(logit(), VOCABULARY as usize), 3),
        text in prop::collection::vec(0..VOCABULARY, 3..20),
        keep in 1usize..3,
    ) {
        params.validate().unwrap();
        params.validate_ids(VOCABULARY as usize).unwrap();
        let mut list = ProcessorList::new(&params, &[], 2, &[1, 2], keep);
        for (step, row) in rows.iter().enumerate() {
            let tokens = &text[..text.len() - 2 + step];
            let context = TokenContext { tokens, prompt_len: 2, end_tokens: &[1, 2], max_length: 12, seed: 5 };
            let mut logits = row.clone();
            match list.process(&context, &mut logits) {
                Ok(()) => prop_assert!(logits.iter().all(|x| !x.is_nan()), "{logits:?}"),
                Err(Error::RuledOut { processors, .. }) => prop_assert!(!processors.is_empty()),
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}

/// A copy serves another sequence in the state in which it was made.
#[test]
fn a_copy_keeps_its_own_state() {
    #[derive(Clone)]
    struct Count(u32);
    impl LogitsProcessor for Count {
        fn name(&self) -> &str {
            "count"
        }
        fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> gruff_engine::Result<()> {
            self.0 += 1;
            logits.fill(self.0 as f32);
            Ok(())
        }
    }
    let context = TokenContext { tokens: &[1], prompt_len: 1, end_tokens: &[], max_length: 9, seed: 0 };
    let mut first: Box<dyn LogitsProcessor> = Box::new(Count(0));
    let mut logits = [0.0];
    first.process(&context, &mut logits).unwrap();
    let mut second = first.clone();
    for _ in 0..3 {
        second.process(&context, &mut logits).unwrap();
    }
    assert_eq!(logits, [4.0]);
    first.process(&context, &mut logits).unwrap();
    assert_eq!(logits, [2.0]);
}
