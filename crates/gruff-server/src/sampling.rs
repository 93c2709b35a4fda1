//! Fields about sampling that several endpoints share.

use gruff::GenerationConfig;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::api_error::ApiError;
use crate::ids;
use crate::limits::{MAX_STOP_BYTES, MAX_STOPS};

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
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
}

impl Sampling {
    /// The configuration: the request's fields, then what the checkpoint recommends, then a temperature of 1, which
    /// is OpenAI's default. Without a seed, numbers differ from request to request.
    pub(crate) fn config(&self, recommended: &GenerationConfig) -> Result<GenerationConfig, ApiError> {
        for (name, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            if value.is_some_and(|value| value != 0.0) {
                return Err(ApiError::unsupported(
                    name,
                    format!("this build of gruff has no `{name}`; leave it out, or use `repetition_penalty`"),
                ));
            }
        }
        if self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty()) {
            return Err(ApiError::unsupported(
                "logit_bias",
                "this build of gruff has no `logit_bias`; leave it out",
            ));
        }
        let config = GenerationConfig {
            max_new_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            // -1 is how vLLM keeps all tokens.
            top_k: self.top_k.map(|k| usize::try_from(k).unwrap_or(0)),
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: Some(self.seed.map_or_else(ids::random, |seed| seed as u64)),
            ..GenerationConfig::default()
        };
        let config = config.or(recommended);
        let temperature = match config.do_sample {
            Some(false) if self.temperature.is_none() => Some(0.0),
            _ => config.temperature.or(Some(1.0)),
        };
        Ok(GenerationConfig { temperature, do_sample: None, ..config })
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
