//! The delta rule in f64: the recurrence itself, token by token.
//!
//! The slot holds S at the chunk border and the rows since, like everywhere; the recurrence is replayed from
//! there, which is slow, plain and independent of the chunked algebra that fast kernels use.

use super::{DeltaInputs, DeltaNetOps};
use crate::reference::{ReferenceDevice, load, store};
use crate::{CHUNK, Result, StateLayer, Step, Tensor};

impl DeltaNetOps for ReferenceDevice {
    fn causal_conv(
        &self,
        step: &Step,
        x: &Tensor,
        weight: &Tensor,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()> {
        let (channels, taps) = (layer.shape().conv_channels, layer.shape().conv_kernel);
        let ring = layer.shape().conv_rows();
        let (x, weight) = (load(x)?, load(weight)?);
        let mut result = vec![0.0; out.len()];
        for (sequence, start) in step.sequences().iter().zip(step.starts()) {
            let slot = layer.conv().select(0, sequence.slot)?;
            let kept = load(&slot)?;
            let input = |position: usize, c: usize| {
                if position < sequence.past {
                    kept[position % ring * channels + c]
                } else {
                    x[(start + position - sequence.past) * channels + c]
                }
            };
            for i in 0..sequence.len {
                let position = sequence.past + i;
                for c in 0..channels {
                    let sum: f64 = (0..taps)
                        .filter(|j| position + j + 1 >= taps)
                        .map(|j| weight[c * taps + j] * input(position + j + 1 - taps, c))
                        .sum();
                    result[(start + i) * channels + c] = sum / (1.0 + (-sum).exp());
                }
            }
            for i in sequence.len.saturating_sub(ring)..sequence.len {
                let row = slot.narrow(0, (sequence.past + i) % ring, 1)?;
                store(&row, &x[(start + i) * channels..(start + i + 1) * channels])?;
            }
        }
        store(out, &result)
    }

    fn delta_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        dt_bias: &Tensor,
        a_neg: &Tensor,
        decay: &Tensor,
        beta: &Tensor,
    ) -> Result<()> {
        let (dt_bias, a_neg) = (load(dt_bias)?, load(a_neg)?);
        let heads = a_neg.len();
        let gates: Vec<f64> = load(a)?
            .iter()
            .enumerate()
            .map(|(i, a)| {
                let x = a + dt_bias[i % heads];
                a_neg[i % heads] * (x.max(0.0) + (-x.abs()).exp().ln_1p())
            })
            .collect();
        let steps: Vec<f64> = load(b)?.iter().map(|b| 1.0 / (1.0 + (-b).exp())).collect();
        store(decay, &gates)?;
        store(beta, &steps)
    }

    fn gated_delta(&self, step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()> {
        let operands = Operands {
            queries: load(inputs.queries)?,
            keys: load(inputs.keys)?,
            values: load(inputs.values)?,
            decay: load(inputs.decay)?,
            beta: load(inputs.beta)?,
        };
        let mut result = vec![0.0; out.len()];
        for (sequence, start) in step.sequences().iter().zip(step.starts()) {
            // All heads resume before one advances: the keys it keeps are those of other heads too, and in a
            // long step they take the place of older ones.
            let replays = (0..layer.shape().value_heads)
                .map(|head| Replay::resume(layer, sequence.slot, sequence.past, head))
                .collect::<Result<Vec<_>>>()?;
            for mut replay in replays {
                for i in 0..sequence.len {
                    replay.advance(&operands, layer, start + i, &mut result)?;
                }
            }
        }
        store(out, &result)
    }
}

struct Operands {
    queries: Vec<f64>,
    keys: Vec<f64>,
    values: Vec<f64>,
    decay: Vec<f64>,
    beta: Vec<f64>,
}

/// One value head of one sequence, as it is after `position` tokens.
struct Replay {
    slot: usize,
    head: usize,
    position: usize,
    /// S `[Dk, Dv]`.
    state: Vec<f64>,
    /// G: log decay since the chunk's first token.
    decay_sum: f64,
}

impl Replay {
    fn resume(layer: &StateLayer, slot: usize, position: usize, head: usize) -> Result<Self> {
        let shape = layer.shape();
        let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
        let chunk = position / CHUNK;
        let mut state = vec![0.0; key_dim * value_dim];
        if chunk > 0 {
            state = load(&Self::matrix(layer, slot, chunk, head)?)?;
        }
        let mut decay_sum = 0.0;
        for row in chunk * CHUNK..position {
            let ring = row % shape.rows();
            let cell = |tensor: &Tensor, head: usize| -> Result<Vec<f64>> {
                load(&tensor.select(0, slot)?.select(0, head)?.narrow(0, ring, 1)?)
            };
            let key = cell(layer.keys(), head % shape.key_heads)?;
            let update = cell(layer.updates(), head)?;
            let sum = load(&layer.decays().select(0, slot)?.narrow(0, head, 1)?.narrow(1, ring, 1)?)?[0];
            decay_and_add(&mut state, (sum - decay_sum).exp(), &key, &update);
            decay_sum = sum;
        }
        Ok(Self { slot, head, position, state, decay_sum })
    }

    fn matrix(layer: &StateLayer, slot: usize, chunk: usize, head: usize) -> Result<Tensor> {
        let matrices = layer.shape().matrices();
        layer.matrix().select(0, slot * matrices + chunk % matrices)?.select(0, head)
    }

    fn advance(
        &mut self,
        operands: &Operands,
        layer: &StateLayer,
        token: usize,
        result: &mut [f64],
    ) -> Result<()> {
        let shape = *layer.shape();
        let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
        let key_row = (token * shape.key_heads + self.head % shape.key_heads) * key_dim;
        let value_row = (token * shape.value_heads + self.head) * value_dim;
        let scalar = token * shape.value_heads + self.head;
        let key = &operands.keys[key_row..key_row + key_dim];
        let query = &operands.queries[key_row..key_row + key_dim];
        let factor = operands.decay[scalar].exp();
        let update: Vec<f64> = (0..value_dim)
            .map(|d| {
                let predicted: f64 =
                    (0..key_dim).map(|r| self.state[r * value_dim + d] * factor * key[r]).sum();
                operands.beta[scalar] * (operands.values[value_row + d] - predicted)
            })
            .collect();
        decay_and_add(&mut self.state, factor, key, &update);
        for d in 0..value_dim {
            result[value_row + d] = (0..key_dim).map(|r| self.state[r * value_dim + d] * query[r]).sum();
        }
        self.decay_sum += operands.decay[scalar];
        self.keep_row(layer, key, &update)?;
        self.position += 1;
        if self.position.is_multiple_of(CHUNK) {
            let chunk = self.position / CHUNK;
            store(&Self::matrix(layer, self.slot, chunk, self.head)?, &self.state)?;
            self.decay_sum = 0.0;
        }
        Ok(())
    }

    fn keep_row(&self, layer: &StateLayer, key: &[f64], update: &[f64]) -> Result<()> {
        let ring = self.position % layer.shape().rows();
        let cell = |tensor: &Tensor, head: usize, values: &[f64]| -> Result<()> {
            store(&tensor.select(0, self.slot)?.select(0, head)?.narrow(0, ring, 1)?, values)
        };
        cell(layer.keys(), self.head % layer.shape().key_heads, key)?;
        cell(layer.updates(), self.head, update)?;
        let decays = layer.decays().select(0, self.slot)?.narrow(0, self.head, 1)?.narrow(1, ring, 1)?;
        store(&decays, &[self.decay_sum])
    }
}

/// `S <- factor S + k u^T`.
fn decay_and_add(state: &mut [f64], factor: f64, key: &[f64], update: &[f64]) {
    for (row, key) in state.chunks_exact_mut(update.len()).zip(key) {
        row.iter_mut().zip(update).for_each(|(s, u)| *s = factor * *s + key * u);
    }
}
