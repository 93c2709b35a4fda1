//! Reading generation parameters: `generation_config.json`, JSON in requests, and GGUF metadata.

use std::fmt::Display;
use std::path::Path;

use gruff_engine::EarlyStopping;
use gruff_gguf::Metadata;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{Error, GenerationConfig, Result};

/// Fields that transformers writes and that say how it computes or what it wraps results in, not what they are.
const WITHOUT_EFFECT: &[&str] = &[
    "transformers_version",
    "_from_model_config",
    "_commit_hash",
    "return_dict_in_generate",
    "use_cache",
    "prefill_chunk_size",
    "compile_config",
    "disable_compile",
    "is_assistant",
    "low_memory",
];

/// Values of `cache_implementation` that differ in how memory is laid out only.
const SAME_CACHES: &[&str] =
    &["dynamic", "dynamic_full", "static", "sliding_window", "hybrid", "hybrid_chunked", "paged"];

/// Fields whose value must be the one that changes nothing, and why.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("penalty_alpha", "contrastive search left transformers' core"),
    ("dola_layers", "DoLa left transformers' core"),
    ("num_beam_groups", "group beam search left transformers' core"),
    ("diversity_penalty", "group beam search left transformers' core"),
    ("constraints", "it left transformers' core; use `constraint`"),
    ("force_words_ids", "it left transformers' core; use `constraint`"),
    ("token_healing", "prompts are taken as they are"),
    ("use_mtp", "blocks for multi-token prediction are not run"),
    ("assistant_early_exit", "early exit is not supported; use a draft model"),
    ("assistant_ensemble_weight", "drafts are verified exactly"),
    ("assistant_lookbehind", "the draft model must have the same vocabulary"),
    ("target_lookbehind", "the draft model must have the same vocabulary"),
    (
        "cache_implementation",
        "caches are in pages on the model's device; choose their kv_dtype when it is loaded",
    ),
    ("cache_config", "choose the kv_dtype of caches when the model is loaded"),
    ("max_cache_len", "choose the context when the model is loaded"),
    ("continuous_batching_config", "make a manager with batching_manager_with"),
    ("decoder_start_token_id", "models with an encoder are not run"),
    ("speculation_type", "only draft models and prompt lookup are supported"),
];

/// Whether a value is one that transformers writes for "off".
fn is_off(name: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => {
            if name == "decoder_start_token_id" || name == "max_cache_len" {
                return false;
            }
            let number = number.as_f64().unwrap_or(f64::NAN);
            // transformers' defaults of fields that only have a meaning together with others.
            number == 0.0
                || (name == "num_beam_groups" && number == 1.0)
                || (name.ends_with("lookbehind") && number == 10.0)
        }
        Value::String(text) => name == "cache_implementation" && SAME_CACHES.contains(&text.as_str()),
        _ => false,
    }
}

impl GenerationConfig {
    /// Reads a JSON object with transformers' fields. Nothing is left aside silently.
    ///
    /// # Errors
    /// [`Error::Option`] names a field that gruff does not know or does not support, or whose value has another type.
    pub fn from_json(value: &Value) -> Result<Self> {
        let (fields, complaints) = read(value).map_err(Error::Option)?;
        match complaints.into_iter().next() {
            Some(complaint) => Err(Error::Option(complaint)),
            None => Ok(fields.into_iter().fold(Self::default(), |config, one| one.or(&config))),
        }
    }

    /// Reads `generation_config.json`. Fields that gruff does not know or support are left aside with a warning that
    /// names them.
    ///
    /// # Errors
    /// [`Error::GenerationConfig`] when it cannot be read or a known field has another type. A number out of its
    /// range is advice that nobody can follow: it is left aside with a warning.
    pub fn from_file(path: &Path) -> Result<Self> {
        let fail = |fault: String| Error::GenerationConfig { path: path.to_owned(), fault };
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        let value = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
        let (fields, complaints) = read(&value).map_err(fail)?;
        for complaint in complaints {
            tracing::warn!("{}: {complaint}; it is left aside", path.display());
        }
        Ok(usable(fields, &path.display()))
    }

    /// The sampling defaults that a GGUF file recommends (`general.sampling.*`).
    ///
    /// # Errors
    /// [`Error::Gguf`] when a key has another type. A number out of its range is left aside with a warning.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let float = |name: &str| metadata.f32(&format!("general.sampling.{name}"));
        let top_k = metadata.i64("general.sampling.top_k")?.map(|k| usize::try_from(k).unwrap_or(0));
        let none = Self::default;
        let fields = vec![
            Self { temperature: float("temp")?, ..none() },
            Self { top_k, ..none() },
            Self { top_p: float("top_p")?, ..none() },
            Self { min_p: float("min_p")?, ..none() },
            Self { repetition_penalty: float("penalty_repeat")?, ..none() },
        ];
        Ok(usable(fields, &"general.sampling"))
    }

    /// Without the fields that name tokens which a vocabulary of this size does not have: advice of `place`.
    pub(crate) fn within(mut self, vocabulary: usize, place: &dyn Display) -> Self {
        let none = Self::default;
        type Clear = fn(&mut GenerationConfig);
        let clear: [(Self, Clear); 6] = [
            (Self { bad_words_ids: self.bad_words_ids.clone(), ..none() }, |own| own.bad_words_ids = None),
            (Self { sequence_bias: self.sequence_bias.clone(), ..none() }, |own| own.sequence_bias = None),
            (Self { logit_bias: self.logit_bias.clone(), ..none() }, |own| own.logit_bias = None),
            (Self { suppress_tokens: self.suppress_tokens.clone(), ..none() }, |own| {
                own.suppress_tokens = None
            }),
            (Self { begin_suppress_tokens: self.begin_suppress_tokens.clone(), ..none() }, |own| {
                own.begin_suppress_tokens = None;
            }),
            (
                Self {
                    forced_bos_token_id: self.forced_bos_token_id,
                    forced_eos_token_id: self.forced_eos_token_id.clone(),
                    ..none()
                },
                |own| (own.forced_bos_token_id, own.forced_eos_token_id) = (None, None),
            ),
        ];
        for (one, clear) in clear {
            if let Err(error) = one.sampling(0).validate_ids(vocabulary) {
                tracing::warn!("{place}: {error}; it is left aside");
                clear(&mut self);
            }
        }
        self
    }
}

/// Parameters of a file, given one by one: without those that would be refused, and without what only a caller can
/// want: to see the model's inside, adapters, a grammar. `place` is where they stand.
fn usable(fields: Vec<GenerationConfig>, place: &dyn Display) -> GenerationConfig {
    let mut config = GenerationConfig::default();
    for mut one in fields {
        let callers = [
            ("output_hidden_states", one.output_hidden_states.take().is_some_and(|asked| asked)),
            ("output_attentions", one.output_attentions.take().is_some_and(|asked| asked)),
            ("adapters", one.adapters.take().is_some()),
            ("constraint", one.constraint.take().is_some()),
        ];
        for (name, _) in callers.iter().filter(|(_, asked)| *asked) {
            tracing::warn!("{place}: {name}: only a caller can ask for it; it is left aside");
        }
        // Several answers need sampling or beams, which may stand beside it.
        let beside =
            GenerationConfig { num_beams: one.num_beams.or(one.num_return_sequences), ..one.clone() };
        let fault = beside.validate().err().map(|error| error.to_string());
        let fault = fault.or_else(|| one.sampling(0).validate().err().map(|error| error.to_string()));
        match fault {
            Some(fault) => tracing::warn!("{place}: {fault}; it is left aside"),
            None => config = one.or(&config),
        }
    }
    config
}

/// The parameters of an object, each by itself, and what is to be said about fields that are none.
fn read(value: &Value) -> Result<(Vec<GenerationConfig>, Vec<String>), String> {
    let Value::Object(fields) = value else {
        return Err("generation parameters are a JSON object with transformers' fields".to_owned());
    };
    let mut known = Map::new();
    let mut complaints = Vec::new();
    for (name, value) in fields {
        if GenerationConfig::FIELDS.contains(&name.as_str()) {
            known.insert(name.clone(), value.clone());
        } else if let Some((_, why)) = UNSUPPORTED.iter().find(|(field, _)| field == name) {
            if !is_off(name, value) {
                complaints.push(format!("{name} is not supported: {why}"));
            }
        } else if !WITHOUT_EFFECT.contains(&name.as_str()) {
            complaints.push(format!("{name} is no field of the generation parameters"));
        }
    }
    // One by one, so that a message can name the field.
    let one = |(name, value): (String, Value)| {
        let alone = Value::Object(Map::from_iter([(name.clone(), value)]));
        serde_json::from_value(alone).map_err(|error| format!("{name}: {error}"))
    };
    let fields = known.into_iter().map(one).collect::<Result<_, String>>()?;
    Ok((fields, complaints))
}

/// vLLM's way to keep all tokens is -1.
pub(crate) fn negative_keeps_all<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<usize>, D::Error> {
    let k = Option::<i64>::deserialize(deserializer)?;
    Ok(k.map(|k| usize::try_from(k).unwrap_or(0)))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> From<OneOrMany<T>> for Vec<T> {
    fn from(values: OneOrMany<T>) -> Self {
        match values {
            OneOrMany::One(value) => vec![value],
            OneOrMany::Many(values) => values,
        }
    }
}

/// transformers writes `eos_token_id` as a number or as a list.
pub(crate) fn one_or_many<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<u32>>, D::Error> {
    Ok(Option::<OneOrMany<u32>>::deserialize(deserializer)?.map(Vec::from))
}

/// `stop_strings` is a text or a list.
pub(crate) fn one_or_many_texts<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    Ok(Option::<OneOrMany<String>>::deserialize(deserializer)?.map(Vec::from))
}

/// `early_stopping` is a boolean or `"never"`.
pub(crate) fn early_stopping<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<EarlyStopping>, D::Error> {
    match Option::<Value>::deserialize(deserializer)? {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(EarlyStopping::Yes)),
        Some(Value::Bool(false)) => Ok(Some(EarlyStopping::No)),
        Some(Value::String(text)) if text == "never" => Ok(Some(EarlyStopping::Never)),
        Some(other) => Err(serde::de::Error::custom(format!("{other} has to be true, false or \"never\""))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_what_transformers_writes() {
        let text = r#"{"bos_token_id": 1, "do_sample": true, "eos_token_id": [2, 3], "temperature": 0.6,
                       "top_k": 20, "top_p": 0.95, "transformers_version": "5.24.0", "early_stopping": "never",
                       "sequence_bias": [[[1, 2], -1.5]], "exponential_decay_length_penalty": [5, 1.5],
                       "stop_strings": "END", "watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"}}"#;
        let config = GenerationConfig::from_json(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(config.eos_token_id, Some(vec![2, 3]));
        assert_eq!((config.temperature, config.top_k, config.do_sample), (Some(0.6), Some(20), Some(true)));
        assert_eq!(config.early_stopping, Some(EarlyStopping::Never));
        assert_eq!(config.sequence_bias, Some(vec![(vec![1, 2], -1.5)]));
        assert_eq!(config.exponential_decay_length_penalty, Some((5, 1.5)));
        assert_eq!(config.stop_strings, Some(vec!["END".to_owned()]));
        assert_eq!(config.watermarking_config.unwrap().bias, 2.5);
        let one =
            GenerationConfig::from_json(&json!({"eos_token_id": 7, "stop_strings": ["a", "b"]})).unwrap();
        assert_eq!(one.eos_token_id, Some(vec![7]));
        assert_eq!(one.stop_strings.unwrap().len(), 2);
    }

    /// The fields of transformers' GenerationConfig with their defaults (tools/peers/generation_fields.py).
    fn recorded() -> Map<String, Value> {
        let recorded = include_str!("../../../tests/peers/generation_fields.json");
        let recorded: Value = serde_json::from_str(recorded).unwrap();
        recorded["defaults"].as_object().unwrap().clone()
    }

    #[test]
    fn transformers_defaults_are_taken() {
        GenerationConfig::from_json(&Value::Object(recorded())).unwrap();
    }

    /// A value that asks for something, for fields that are not in the request's sampling by their own name.
    fn asks(name: &str) -> Value {
        match name {
            "early_stopping" => json!("never"),
            "do_sample" | "renormalize_logits" | "remove_invalid_values" => json!(true),
            "bad_words_ids" => json!([[3, 4]]),
            "sequence_bias" => json!([[[3, 4], 1.5]]),
            "exponential_decay_length_penalty" => json!([3, 1.5]),
            "watermarking_config" => json!({"bias": 1.0}),
            "suppress_tokens" | "begin_suppress_tokens" | "eos_token_id" | "forced_eos_token_id" => {
                json!([7])
            }
            "num_assistant_tokens_schedule" => json!("heuristic"),
            "stop_strings" => json!(["END"]),
            name if name.starts_with("output_") => json!(true),
            "top_p" | "min_p" | "top_h" | "typical_p" | "epsilon_cutoff" | "eta_cutoff" => json!(0.25),
            "temperature" | "length_penalty" | "repetition_penalty" | "encoder_repetition_penalty" => {
                json!(1.25)
            }
            "max_time" | "guidance_scale" | "assistant_confidence_threshold" => json!(2.5),
            _ => json!(7),
        }
    }

    /// Fields that [`AutoModelForCausalLM::requests`](crate::AutoModelForCausalLM::requests) follows, since they need a
    /// vocabulary or another model, with who shows it in `crates/gruff/tests`; and the tokens that have no use without
    /// padding and with prompts that a tokenizer made.
    const ELSEWHERE: &[(&str, &str)] = &[
        ("stop_strings", "generate.rs: stop_strings_end_an_answer_across_token_borders"),
        ("guidance_scale", "generate.rs: searches_and_greedy_answers_are_those_of_transformers"),
        ("num_assistant_tokens", "generate.rs: drafts_change_nothing_but_the_number_of_steps"),
        ("num_assistant_tokens_schedule", "generate.rs: drafts_change_nothing_but_the_number_of_steps"),
        ("assistant_confidence_threshold", "generate.rs: drafts_change_nothing_but_the_number_of_steps"),
        ("prompt_lookup_num_tokens", "generate.rs: drafts_change_nothing_but_the_number_of_steps"),
        ("max_matching_ngram_size", "combinations.rs: longer_matches_draft_otherwise"),
        ("pad_token_id", ""),
        ("bos_token_id", ""),
    ];

    #[test]
    fn every_field_of_transformers_is_followed_or_refused_by_name() {
        // What some fields need beside them to mean anything.
        let base = json!({"num_beams": 2, "do_sample": true});
        let request = |fields: &Value| {
            let mut all = base.clone();
            all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let config = GenerationConfig::from_json(&all).unwrap();
            format!("{:?}", config.request(vec![1, 2, 3], 0, &[2]))
        };
        let plain = request(&json!({}));
        for name in recorded().keys() {
            let one = json!({name.clone(): asks(name)});
            let refused = GenerationConfig::from_json(&one).err().map(|error| error.to_string());
            if GenerationConfig::FIELDS.contains(&name.as_str()) {
                assert_eq!(refused, None, "{name}");
                let same = match name.as_str() {
                    "do_sample" => request(&json!({"do_sample": false})) == plain,
                    _ => request(&one) == plain,
                };
                let elsewhere = ELSEWHERE.iter().any(|(field, _)| field == name);
                assert_eq!(same, elsewhere, "{name} is {}followed", if same { "not " } else { "" });
            } else if WITHOUT_EFFECT.contains(&name.as_str()) {
                assert_eq!(refused, None, "{name}");
            } else {
                let refused = refused.unwrap_or_else(|| panic!("{name} is passed over in silence"));
                assert!(refused.starts_with(&format!("{name} is not supported: ")), "{refused}");
            }
        }
    }

    #[test]
    fn the_migration_table_has_every_field() {
        let table = include_str!("../../../docs/transformers.md");
        for name in recorded().keys().map(String::as_str).chain(GenerationConfig::FIELDS.iter().copied()) {
            assert!(table.contains(&format!("`{name}`")), "docs/transformers.md has no row for {name}");
        }
        for (name, _) in UNSUPPORTED {
            assert!(recorded().contains_key(*name), "{name} is no field of transformers");
        }
    }

    #[test]
    fn caches_of_the_same_values_are_taken_and_others_named() {
        for (value, fits) in [("dynamic", true), ("hybrid", true), ("quantized", false), ("offloaded", false)]
        {
            let read = GenerationConfig::from_json(&json!({"cache_implementation": value}));
            assert_eq!(read.is_ok(), fits, "{value}");
        }
        for refused in [json!({"decoder_start_token_id": 0}), json!({"max_cache_len": 0})] {
            assert!(GenerationConfig::from_json(&refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        for (value, name) in [
            (json!({"penalty_alpha": 0.6}), "penalty_alpha is not supported"),
            (json!({"use_mtp": true}), "use_mtp is not supported"),
            (json!({"temprature": 0.6}), "temprature is no field"),
            (json!({"top_p": "high"}), "top_p: "),
            (json!({"early_stopping": "soon"}), "early_stopping: "),
            (json!([1]), "JSON object"),
        ] {
            let message = GenerationConfig::from_json(&value).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn advice_that_nobody_can_follow_is_left_aside() {
        let read = |text| {
            let (fields, complaints) = read(&serde_json::from_str(text).unwrap()).unwrap();
            assert!(complaints.is_empty(), "{complaints:?}");
            usable(fields, &"a file")
        };
        let config = read(
            r#"{"temperature": -5, "top_k": -1, "top_p": 0, "min_p": 2, "repetition_penalty": 1e60, "seed": 3}"#,
        );
        assert_eq!(
            read(r#"{"output_attentions": true}"#),
            GenerationConfig::default(),
            "only a caller can ask"
        );
        let expected = GenerationConfig { top_k: Some(0), seed: Some(3), ..Default::default() };
        assert_eq!(config, expected);
        let config = read(r#"{"temperature": 0.6, "top_p": 1, "min_p": 0, "repetition_penalty": 1.1}"#);
        assert_eq!((config.temperature, config.top_p), (Some(0.6), Some(1.0)));
        assert_eq!((config.min_p, config.repetition_penalty), (Some(0.0), Some(1.1)));
    }
}
