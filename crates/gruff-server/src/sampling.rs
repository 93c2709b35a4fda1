//! Fields about sampling that several endpoints share.

use gruff::GenerationConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api_error::ApiError;
use crate::ids;
use crate::limits::{MAX_STOP_BYTES, MAX_STOPS};

/// One text or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// What a request says of sampling.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sampling {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) logit_bias: Option<Map<String, Value>>,
    pub(crate) seed: Option<i64>,
    /// How many of the most likely tokens are told in each token's place; `None` for no logprobs.
    pub(crate) logprobs: Option<usize>,
}

impl Sampling {
    /// The configuration: the request's fields, then what the checkpoint recommends, then a temperature of 1, which
    /// is OpenAI's default. Without a seed, numbers differ from request to request, unless `recommended` has one.
    pub(crate) fn config(&self, recommended: &GenerationConfig) -> Result<GenerationConfig, ApiError> {
        let config = GenerationConfig {
            max_new_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            // -1 is how vLLM keeps all tokens.
            top_k: self.top_k.map(|k| usize::try_from(k).unwrap_or(0)),
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.as_ref().map(logit_bias).transpose()?,
            logprobs: self.logprobs,
            seed: self.seed.map(|seed| seed as u64),
            ..GenerationConfig::default()
        };
        let config = config.or(recommended);
        let seed = Some(config.seed.unwrap_or_else(ids::random));
        let temperature = match config.do_sample {
            Some(false) if self.temperature.is_none() => Some(0.0),
            _ => config.temperature.or(Some(1.0)),
        };
        // OpenAI's API keeps all tokens where nothing is said.
        let top_k = config.top_k.or(Some(0));
        Ok(GenerationConfig { temperature, top_k, seed, do_sample: None, ..config })
    }
}

/// Token ids, as texts, with what is added to their logits.
fn logit_bias(bias: &Map<String, Value>) -> Result<Vec<(u32, f32)>, ApiError> {
    let entry = |(id, value): (&String, &Value)| Some((id.parse().ok()?, value.as_f64()? as f32));
    bias.iter().map(entry).collect::<Option<_>>().ok_or_else(|| {
        ApiError::field("logit_bias", "`logit_bias` has token ids as names and numbers as values")
    })
}

/// `response_format` of chat requests, or `text.format` of responses, in field `param`: the schema of the document that
/// the answer must be.
pub(crate) fn schema(param: &str, format: Option<&Value>) -> Result<Option<Value>, ApiError> {
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(json!({"type": "object"}))),
        Some("json_schema") => {
            let schema = format.get("json_schema").unwrap_or(format).get("schema");
            let schema = schema.filter(|schema| schema.is_object());
            let schema = schema.ok_or_else(|| ApiError::field(param, "a `json_schema` has a `schema`"))?;
            Ok(Some(schema.clone()))
        }
        _ => Err(ApiError::unsupported(
            param,
            "an answer is \"text\", a \"json_object\" or of a \"json_schema\"",
        )),
    }
}

/// Checks stop strings.
pub(crate) fn stops(stop: Option<OneOrMany>) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        None => Vec::new(),
        Some(OneOrMany::One(stop)) => vec![stop],
        Some(OneOrMany::Many(stops)) => stops,
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::field(
            "stop",
            format!("{} stop strings are more than {MAX_STOPS}", stops.len()),
        ));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        return Err(ApiError::field("stop", format!("a stop string has 1 to {MAX_STOP_BYTES} bytes")));
    }
    Ok(stops)
}
