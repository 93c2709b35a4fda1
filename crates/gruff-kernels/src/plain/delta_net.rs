//! The delta rule as its recurrence, token by token, with S rewritten by every one.

use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output, Shared};
use crate::delta_net::DeltaInputs;
use crate::{Error, Result, StateLayer, Step, Tensor};

/// As [`crate::delta_net::causal_conv`].
pub(super) fn causal_conv(
    cpu: &CpuDevice,
    step: &Step,
    x: &Tensor,
    weight: &Tensor,
    layer: &StateLayer,
    out: &Tensor,
) -> Result<()> {
    let (channels, taps) = (layer.shape().conv_channels, layer.shape().conv_kernel);
    let ring = layer.shape().conv_rows();
    // SAFETY: x and the weight were checked to be disjoint from the output; the state's memory is its own, and is
    // written when all outputs are done.
    let (x, weight) = unsafe { (Input::<f32>::of(x), Input::<f32>::of(weight)) };
    let (kept, out) = (Output::<f32>::of(layer.conv()), Output::<f32>::of(out));
    for (sequence, start) in step.sequences().iter().zip(step.starts()) {
        let kept_row = |position: usize| sequence.slot * ring + position % ring;
        cpu.share(sequence.len, channels * taps, |tokens| {
            for i in tokens {
                // SAFETY: within the operation, only this piece touches this token's row.
                let out = unsafe { out.row(start + i) };
                out.fill(0.0);
                for tap in 0..taps {
                    let Some(position) = (sequence.past + i + tap + 1).checked_sub(taps) else { continue };
                    let input = match position.checked_sub(sequence.past) {
                        Some(new) => x.row(start + new),
                        // SAFETY: nothing writes the ring before all outputs are done.
                        None => unsafe { &*kept.row(kept_row(position)) },
                    };
                    for (c, out) in out.iter_mut().enumerate() {
                        *out += weight.row(c)[tap] * input[c];
                    }
                }
                out.iter_mut().for_each(|out| *out /= 1.0 + (-*out).exp());
            }
        });
        for i in sequence.len.saturating_sub(ring)..sequence.len {
            // SAFETY: all pieces are done.
            unsafe { kept.row(kept_row(sequence.past + i)) }.copy_from_slice(x.row(start + i));
        }
    }
    Ok(())
}

/// As [`crate::delta_net::delta_gates`].
pub(super) fn delta_gates(
    _: &CpuDevice,
    a: &Tensor,
    b: &Tensor,
    dt_bias: &Tensor,
    a_neg: &Tensor,
    decay: &Tensor,
    beta: &Tensor,
) -> Result<()> {
    let [a, b, dt_bias, a_neg] = [a, b, dt_bias, a_neg].map(Shared::<f32>::of);
    let (decay, beta) = (Output::<f32>::of(decay), Output::<f32>::of(beta));
    for row in 0..decay.rows() {
        // SAFETY: within the operation, only this thread touches these rows, through cells.
        let (a, b, dt_bias, a_neg, decay, beta) = unsafe {
            (a.cells(row), b.cells(row), dt_bias.cells(0), a_neg.cells(0), decay.cells(row), beta.cells(row))
        };
        for head in 0..decay.len() {
            let x = a[head].get() + dt_bias[head].get();
            decay[head].set(a_neg[head].get() * (x.max(0.0) + (-x.abs()).exp().ln_1p()));
            beta[head].set(1.0 / (1.0 + (-b[head].get()).exp()));
        }
    }
    Ok(())
}

/// As [`crate::delta_net::gated_delta`]. The slot's matrix is S after the last token, and the rings stay as they are.
pub(super) fn gated_delta(
    cpu: &CpuDevice,
    step: &Step,
    inputs: &DeltaInputs,
    layer: &StateLayer,
    out: &Tensor,
) -> Result<()> {
    let shape = *layer.shape();
    if shape.rollback > 0 {
        return Err(Error::Option {
            what: "the plain delta rule cannot drop tokens again; leave out --without delta-net".into(),
        });
    }
    let heads = shape.value_heads;
    let matrix =
        layer.matrix().reshape(&[layer.matrix().shape()[0], heads, shape.key_dim * shape.value_dim])?;
    // SAFETY: all inputs were checked to be disjoint from the output.
    let [queries, keys, values, decay, beta] = unsafe {
        [inputs.queries, inputs.keys, inputs.values, inputs.decay, inputs.beta]
            .map(|input| Input::<f32>::of(input))
    };
    let (matrix, out) = (Output::<f32>::of(&matrix), Output::<f32>::of(out));
    for (sequence, start) in step.sequences().iter().zip(step.starts()) {
        cpu.share(heads, 3 * sequence.len * shape.key_dim * shape.value_dim, |range| {
            let mut update = vec![0.0; shape.value_dim];
            for head in range {
                let key_head = head % shape.key_heads;
                // SAFETY: within the operation, only this piece touches this head's state and outputs.
                let state = unsafe { matrix.row(sequence.slot * heads + head) };
                if sequence.past == 0 {
                    state.fill(0.0);
                }
                for token in *start..start + sequence.len {
                    let (key, query) = (
                        keys.row(token * shape.key_heads + key_head),
                        queries.row(token * shape.key_heads + key_head),
                    );
                    let (decay, beta) = (decay.row(token)[head].exp(), beta.row(token)[head]);
                    update.fill(0.0);
                    for (row, key) in state.chunks_exact_mut(shape.value_dim).zip(key) {
                        for (s, sum) in row.iter_mut().zip(&mut update) {
                            *s *= decay;
                            *sum += *s * key;
                        }
                    }
                    for (update, value) in update.iter_mut().zip(values.row(token * heads + head)) {
                        *update = beta * (value - *update);
                    }
                    // SAFETY: as above.
                    let out = unsafe { out.row(token * heads + head) };
                    out.fill(0.0);
                    for ((row, key), query) in state.chunks_exact_mut(shape.value_dim).zip(key).zip(query) {
                        for ((s, update), out) in row.iter_mut().zip(&update).zip(out.iter_mut()) {
                            *s += key * update;
                            *out += *s * query;
                        }
                    }
                }
            }
        });
    }
    Ok(())
}
