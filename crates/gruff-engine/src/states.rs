//! Hidden states and attention weights on their way from steps to the tokens that they led to.

use std::ops::Range;

use gruff_models::ModelOutput;

use crate::{OutputOptions, Result, TokenDetails};

/// The attention weights of one layer for the tokens that led to a new one.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionWeights {
    /// The layer's number; layers with recurrent state have none.
    pub layer: usize,
    /// Query heads.
    pub heads: usize,
    /// Tokens that look: all of the prompt's for the first new token, then one.
    pub len: usize,
    /// Tokens that are looked at: all so far.
    pub keys: usize,
    /// `[heads, len, keys]`, row by row; every row sums to 1.
    pub values: Vec<f32>,
}

impl AttentionWeights {
    /// The same with the rows of later tokens of the same prompt behind them; what was not there yet has no weight.
    fn join(self, later: Self) -> Self {
        let (len, keys) = (self.len + later.len, later.keys);
        let mut values = Vec::with_capacity(later.heads * len * keys);
        for head in 0..later.heads {
            for row in self.values[head * self.len * self.keys..].chunks_exact(self.keys).take(self.len) {
                values.extend_from_slice(row);
                values.resize(values.len() + keys - self.keys, 0.0);
            }
            values.extend_from_slice(&later.values[head * later.len * keys..][..later.len * keys]);
        }
        Self { len, keys, values, ..later }
    }
}

/// What a step computed inside the model, on the host.
pub(crate) struct StepStates {
    /// For each layer `[T, hidden_size]`.
    hidden: Vec<Vec<f32>>,
    /// Tokens of the step.
    tokens: usize,
    attentions: Vec<gruff_models::LayerAttentions>,
}

impl StepStates {
    /// Copies what a step of so many tokens was asked for; `None` where it was asked for nothing.
    pub(crate) fn of(output: &ModelOutput, tokens: usize) -> Result<Option<Self>> {
        if output.hidden_states.is_none() && output.attentions.is_none() {
            return Ok(None);
        }
        let hidden = output.hidden_states.iter().flatten();
        let hidden = hidden.map(|layer| layer.to_vec_f32()).collect::<Result<_, _>>()?;
        Ok(Some(Self { hidden, tokens, attentions: output.attentions.clone().unwrap_or_default() }))
    }
}

/// What one sequence has collected for its next token.
#[derive(Clone, Default)]
pub(crate) struct TokenStates {
    hidden: Vec<Vec<f32>>,
    attentions: Vec<AttentionWeights>,
}

impl TokenStates {
    /// Takes rows of share number `share` of a step in: those of `rows`, of which the last `wanted` count.
    pub(crate) fn collect(
        &mut self,
        step: &StepStates,
        share: usize,
        rows: Range<usize>,
        wanted: usize,
    ) -> Result<()> {
        self.hidden.resize(step.hidden.len(), Vec::new());
        for (own, layer) in self.hidden.iter_mut().zip(&step.hidden) {
            let width = layer.len() / step.tokens;
            own.extend_from_slice(&layer[(rows.end - wanted) * width..rows.end * width]);
        }
        let before = std::mem::take(&mut self.attentions);
        let mut before = before.into_iter();
        for layer in &step.attentions {
            let weights = &layer.weights[share];
            let [heads, len, keys] = *weights.shape() else { continue };
            let all = weights.to_vec_f32()?;
            let last = |head: &[f32]| head[(len - wanted) * keys..].to_vec();
            let values = all.chunks_exact(len * keys).flat_map(last).collect();
            let own = AttentionWeights { layer: layer.layer, heads, len: wanted, keys, values };
            self.attentions.push(match before.next() {
                Some(before) => before.join(own),
                None => own,
            });
        }
        Ok(())
    }

    /// Hands over what led to a token, where it was asked for.
    pub(crate) fn hand_over(&mut self, outputs: OutputOptions, details: &mut Option<Box<TokenDetails>>) {
        let Self { hidden, attentions } = std::mem::take(self);
        let details = details.get_or_insert_default();
        details.hidden_states = outputs.hidden_states.then_some(hidden);
        details.attentions = outputs.attentions.then_some(attentions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_prompt_join_to_its_triangle() {
        let weights = |len, keys, values: &[f32]| AttentionWeights {
            layer: 3,
            heads: 2,
            len,
            keys,
            values: values.to_vec(),
        };
        let first = weights(2, 2, &[1.0, 0.0, 0.5, 0.5, 1.0, 0.0, 0.2, 0.8]);
        let second = weights(1, 3, &[0.1, 0.2, 0.7, 0.3, 0.3, 0.4]);
        let whole =
            [[1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.1, 0.2, 0.7], [1.0, 0.0, 0.0, 0.2, 0.8, 0.0, 0.3, 0.3, 0.4]];
        assert_eq!(first.join(second), weights(3, 3, &whole.concat()));
    }
}
