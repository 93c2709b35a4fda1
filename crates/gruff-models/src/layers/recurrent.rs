//! The recurrent state of a gated delta net as one matrix a head, for those who look at it or change it.

use gruff_kernels::{CHUNK, StateLayer, Tensor};

use crate::Result;

/// What a slot holds after `position` tokens, in one matrix a value head: `[value_heads, key_dim, value_dim]`.
///
/// S of the last chunk's end, decayed, and what each token since has added, decayed from there.
pub(crate) fn read(layer: &StateLayer, slot: usize, position: usize) -> Result<Vec<f32>> {
    let shape = *layer.shape();
    let (key_dim, value_dim, rows) = (shape.key_dim, shape.value_dim, shape.rows());
    let start = position / CHUNK * CHUNK;
    let mut state = match start {
        0 => vec![0.0; shape.value_heads * key_dim * value_dim],
        _ => matrix(layer, slot, start)?.to_vec_f32()?,
    };
    let keys = layer.keys().select(0, slot)?.to_vec_f32()?;
    let updates = layer.updates().select(0, slot)?.to_vec_f32()?;
    let decays = layer.decays().select(0, slot)?.to_vec_f32()?;
    for (head, state) in state.chunks_exact_mut(key_dim * value_dim).enumerate() {
        let decay = |position: usize| decays[head * rows + position % rows];
        let total = if position == start { 0.0 } else { decay(position - 1) };
        state.iter_mut().for_each(|value| *value *= total.exp());
        let keys = &keys[head % shape.key_heads * rows * key_dim..][..rows * key_dim];
        let updates = &updates[head * rows * value_dim..][..rows * value_dim];
        for position in start..position {
            let factor = (total - decay(position)).exp();
            let key = &keys[position % rows * key_dim..][..key_dim];
            let update = &updates[position % rows * value_dim..][..value_dim];
            for (row, key) in state.chunks_exact_mut(value_dim).zip(key) {
                row.iter_mut().zip(update).for_each(|(s, u)| *s += factor * key * u);
            }
        }
    }
    Ok(state)
}

/// Makes `state` what the slot holds after `position` tokens: it becomes S of the last chunk's end, and the tokens
/// since then have added nothing and decayed nothing. Says whether that is possible: a slot has no S before its first
/// chunk is full.
pub(crate) fn write(layer: &StateLayer, slot: usize, position: usize, state: &[f32]) -> Result<bool> {
    let start = position / CHUNK * CHUNK;
    if start == 0 {
        return Ok(false);
    }
    let rows = layer.shape().rows();
    matrix(layer, slot, start)?.write_f32(state)?;
    for position in start..position {
        let update = layer.updates().select(0, slot)?.narrow(1, position % rows, 1)?;
        update.write_f32(&vec![0.0; update.len()])?;
        let decay = layer.decays().select(0, slot)?.narrow(1, position % rows, 1)?;
        decay.write_f32(&vec![0.0; decay.len()])?;
    }
    Ok(true)
}

/// S at the end of the chunk before `start`.
fn matrix(layer: &StateLayer, slot: usize, start: usize) -> Result<Tensor> {
    let matrices = layer.shape().matrices();
    Ok(layer.matrix().select(0, slot * matrices + start / CHUNK % matrices)?)
}
