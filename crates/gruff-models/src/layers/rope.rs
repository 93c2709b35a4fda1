use gruff_kernels::Tensor;
use gruff_kernels::attention::{HeadNorms, Prepare};
use gruff_kernels::rope::{self, RopeScaling, RopeSpec, RopeStyle};

use super::Forward;
use crate::keys::{Keys, file_name};
use crate::weights::Weights;
use crate::{Error, Result};

/// Base of the frequencies where a file does not say: arXiv:2104.09864.
const DEFAULT_BASE: f64 = 10_000.0;

/// A step's cosines and sines, made once and used by every layer.
pub(crate) struct RopeTable {
    table: Tensor,
    style: RopeStyle,
}

impl RopeTable {
    pub(crate) fn new(cx: &Forward, spec: &RopeSpec) -> Result<Self> {
        let table = cx.scratch(&[cx.tokens(), 2, spec.half()])?;
        if !cx.is_idle() {
            rope::rope_table(cx.step, spec, &table)?;
        }
        Ok(Self { table, style: spec.style() })
    }

    /// What is done to queries and keys, with such norms.
    pub(crate) fn prepare<'a>(&'a self, norms: Option<HeadNorms<'a>>) -> Prepare<'a> {
        Prepare { norms, table: &self.table, style: self.style }
    }

    /// Rotates heads `[T, H, D]` in place.
    pub(crate) fn rotate(&self, heads: &Tensor) -> Result<()> {
        Ok(rope::rope(heads, &self.table, self.style)?)
    }
}

/// The angles that the metadata and `rope_freqs.weight` give heads of `head_dim`.
pub(crate) fn rope_spec(
    keys: &Keys,
    weights: &Weights,
    style: RopeStyle,
    head_dim: usize,
) -> Result<RopeSpec> {
    let dims_key = "rope.dimension_count";
    let dims = keys.size(dims_key)?.unwrap_or(head_dim);
    if dims > head_dim || dims % 2 != 0 {
        return Err(keys.refuse(
            dims_key,
            dims,
            format!("heads have {head_dim} dimensions to turn in pairs"),
        ));
    }
    let base = keys.positive("rope.freq_base")?.unwrap_or(DEFAULT_BASE);
    let mut spec = RopeSpec::new(style, dims, base);
    if let Some(scaling) = scaling(keys, dims / 2)? {
        spec = spec.scaled(&scaling);
    }
    if let Some(divisors) = divisors(keys, weights, dims / 2)? {
        let attention_factor = spec.attention_factor();
        spec = spec.scaled(&RopeScaling::PerPair { divisors, attention_factor });
    }
    Ok(spec)
}

/// `rope.scaling.*`, and the key that came before it.
fn scaling(keys: &Keys, pairs: usize) -> Result<Option<RopeScaling>> {
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.positive("rope.scale_linear")?,
    };
    let attention_factor = keys.positive("rope.scaling.attn_factor")?;
    let kind_key = "rope.scaling.type";
    match keys.text(kind_key)?.unwrap_or("linear") {
        "none" => Ok(None),
        "linear" => Ok(match (factor, attention_factor) {
            (None, None) => None,
            (Some(factor), None) => Some(RopeScaling::Linear { factor }),
            (factor, Some(attention_factor)) => Some(RopeScaling::PerPair {
                divisors: vec![factor.unwrap_or(1.0) as f32; pairs],
                attention_factor,
            }),
        }),
        "yarn" => {
            let factor = match factor {
                Some(factor) => factor,
                None => keys.require_positive("rope.scaling.factor")?,
            };
            yarn(keys, factor, attention_factor).map(Some)
        }
        other => Err(keys.refuse(kind_key, format!("{other:?}"), "none, linear and yarn are supported")),
    }
}

/// YaRN (arXiv:2309.00071); the factor on cosines and sines as transformers computes it.
fn yarn(keys: &Keys, factor: f64, extra: Option<f64>) -> Result<RopeScaling> {
    let original_context = match keys.size("rope.scaling.original_context_length")? {
        Some(tokens) => tokens,
        None => keys.context_length()?,
    };
    let growth = |by: f64| if factor > 1.0 { 0.1 * by * factor.ln() + 1.0 } else { 1.0 };
    let attention_factor = match keys.positive("rope.scaling.yarn_attn_factor")? {
        Some(given) => given,
        None => match keys.positive("rope.scaling.yarn_log_multiplier")? {
            Some(by) => growth(1.0) / growth(by),
            None => growth(1.0),
        },
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: keys.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        attention_factor: Some(attention_factor * extra.unwrap_or(1.0)),
    })
}

/// `rope_freqs.weight`: a divisor for each pair.
fn divisors(keys: &Keys, weights: &Weights, pairs: usize) -> Result<Option<Vec<f32>>> {
    let tensor = "rope_freqs.weight";
    let Some(divisors) = weights.values(tensor)? else { return Ok(None) };
    let fault = match divisors.iter().find(|divisor| !(divisor.is_finite() && **divisor > 0.0)) {
        Some(wild) => format!("{wild} cannot divide a frequency"),
        None if divisors.len() != pairs => {
            format!("{} values for {pairs} pairs of dimensions", divisors.len())
        }
        None => return Ok(Some(divisors)),
    };
    Err(Error::Tensor { file: file_name(keys.gguf(), 0), tensor: tensor.to_owned(), fault })
}
