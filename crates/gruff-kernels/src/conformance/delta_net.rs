//! Causal convolution, gates and the delta rule.

use gruff_blocks::{BlockType, synthetic};

use super::data::gaps;
use super::{Case, Output, Tolerance, Values};
use crate::delta_net::{
    DeltaInputs, NetInputs, causal_conv, delta_gates, gated_delta, gated_delta_net, in_parts,
};
use crate::matmul::linear;
use crate::{
    Activation, DType, Device, PackedTensor, Result, StateLayer, StateShape, Step, StepSequence, Tensor,
};

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![gates(1, 1), gates(3, 16), gates(5, 30)];
    for (channels, taps, rollback) in [(37, 4, 0), (300, 4, 5), (520, 2, 0), (16, 1, 3), (9, 7, 0)] {
        let scenario = Scenario {
            shape: StateShape { conv_kernel: taps, conv_channels: channels, rollback, ..SMALL },
            sequences: vec![(0, 3), (2, 1), (70, 5), (3, 2)],
        };
        cases.push(scenario.case("causal_conv", Tolerance::OfLargest(1e-6), conv));
    }
    let ragged: &[(usize, usize)] = &[(0, 5), (64, 1), (63, 2), (0, 150), (70, 60), (130, 1)];
    for (heads, widths) in
        [([2, 4], [16, 16]), ([1, 1], [128, 128]), ([1, 2], [48, 80]), ([1, 3], [24, 20]), ([2, 2], [12, 40])]
    {
        for rollback in [0, 5, 64] {
            let [key_heads, value_heads] = heads;
            let [key_dim, value_dim] = widths;
            let shape = StateShape { key_heads, value_heads, key_dim, value_dim, rollback, ..SMALL };
            let scenario = Scenario { shape, sequences: ragged.to_vec() };
            cases.push(scenario.case("gated_delta", Tolerance::Nmse(1e-9), delta));
        }
    }
    for (heads, widths, taps, rollback) in [
        ([2, 4], [16, 48], 4, 0),
        ([1, 2], [128, 128], 4, 0),
        ([2, 2], [64, 32], 2, 3),
        ([1, 1], [16, 16], 1, 0),
        ([1, 3], [24, 20], 4, 0),
    ] {
        let ([key_heads, value_heads], [key_dim, value_dim]) = (heads, widths);
        let conv_channels = 2 * key_heads * key_dim + value_heads * value_dim;
        let conv_kernel = taps;
        let shape =
            StateShape { key_heads, value_heads, key_dim, value_dim, conv_kernel, conv_channels, rollback };
        cases.push(net(shape));
        if (value_heads * value_dim).is_multiple_of(32) {
            cases.push(net_for_products(shape));
        }
    }
    cases
}

const SMALL: StateShape = StateShape {
    key_heads: 1,
    value_heads: 1,
    key_dim: 8,
    value_dim: 8,
    conv_kernel: 4,
    conv_channels: 8,
    rollback: 0,
};

fn gates(tokens: usize, heads: usize) -> Case {
    let label = format!("[{tokens}, {heads}] strided");
    let operands = move |device: &Device| -> Result<[Tensor; 4]> {
        let mut values = Values::new(heads as u64);
        let a = values.strided(device, &[tokens, heads], 4.0)?;
        let b = values.strided(device, &[tokens, heads], 4.0)?;
        let dt_bias = values.tensor(device, &[heads], 2.0)?;
        let a_neg = device.tensor_f32(&values.between(heads, -16.0, -0.01), &[heads])?;
        Ok([a, b, dt_bias, a_neg])
    };
    Case::new("delta_gates", label, Tolerance::Relative(2e-6), move |device| {
        let [a, b, dt_bias, a_neg] = operands(device)?;
        let (decay, beta) = (gaps(device, &[tokens, heads])?, gaps(device, &[tokens, heads])?);
        delta_gates(&a, &b, &dt_bias, &a_neg, &decay, &beta)?;
        Ok(vec![Output::of("decay", &decay)?, Output::of("beta", &beta)?])
    })
    .equals("in place", move |device| {
        let [a, b, dt_bias, a_neg] = operands(device)?;
        delta_gates(&a, &b, &dt_bias, &a_neg, &a, &b)?;
        Ok(vec![Output::of("decay", &a)?, Output::of("beta", &b)?])
    })
}

#[derive(Clone)]
struct Scenario {
    shape: StateShape,
    /// Tokens before and in the step.
    sequences: Vec<(usize, usize)>,
}

/// How the sequences come to the device.
#[derive(Clone, Copy)]
enum Way {
    Together,
    Alone,
    TokenByToken,
    /// In steps of that many tokens.
    Split(usize),
    /// With as many other tokens as can be dropped again after the past, which are dropped.
    RolledBack,
}

/// Tokens `first..first + len` of one sequence in a step; `wrong` ones have values of their own.
#[derive(Clone, Copy)]
struct Part {
    index: usize,
    first: usize,
    len: usize,
    wrong: bool,
}

/// An operation over parts of sequences: its output rows.
type Operation = fn(&Device, &StateLayer, &[Part]) -> Result<Tensor>;

impl Scenario {
    fn case(self, op: &'static str, tolerance: Tolerance, operation: Operation) -> Case {
        let StateShape { key_heads, value_heads, key_dim, value_dim, conv_channels, conv_kernel, rollback } =
            self.shape;
        let sizes = if op == "causal_conv" {
            format!("{conv_channels} channels, {conv_kernel} taps")
        } else {
            format!("{key_heads}/{value_heads} heads of {key_dim}/{value_dim}")
        };
        let by = |way| {
            let scenario = self.clone();
            move |device: &Device| scenario.outputs(device, way, operation)
        };
        let case = Case::new(op, format!("{sizes}, rollback {rollback}"), tolerance, by(Way::Together))
            .equals("alone", by(Way::Alone))
            .equals("token by token", by(Way::TokenByToken))
            .equals("split by 13", by(Way::Split(13)));
        if rollback > 0 { case.equals("rolled back", by(Way::RolledBack)) } else { case }
    }

    fn outputs(&self, device: &Device, way: Way, operation: Operation) -> Result<Vec<Output>> {
        let layer = StateLayer::new(device, self.sequences.len() + 1, self.shape)?;
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); self.sequences.len()];
        let mut width = 1;
        let mut run = |parts: &[Part]| -> Result<()> {
            let out = operation(device, &layer, parts)?;
            width = out.shape()[out.shape().len() - 1];
            let out = out.to_vec_f32()?;
            let token = out.len() / parts.iter().map(|part| part.len).sum::<usize>();
            let mut tokens = out.chunks(token);
            for part in parts {
                let of_part = tokens.by_ref().take(part.len).enumerate();
                // Only what the step itself computes is compared.
                let past = self.sequences[part.index].0;
                let wanted = of_part.filter(|(i, _)| part.first + i >= past && !part.wrong);
                rows[part.index].extend(wanted.flat_map(|(_, token)| token));
            }
            Ok(())
        };
        let whole = |index: usize| {
            let (past, len) = self.sequences[index];
            Part { index, first: 0, len: past + len, wrong: false }
        };
        let all = 0..self.sequences.len();
        match way {
            Way::Together => {
                let both = all.map(|index| {
                    let (past, len) = self.sequences[index];
                    (Part { len: past, ..whole(index) }, Part { first: past, len, ..whole(index) })
                });
                let (before, now): (Vec<Part>, Vec<Part>) = both.unzip();
                let before: Vec<Part> = before.into_iter().filter(|part| part.len > 0).collect();
                run(&before)?;
                run(&now)?;
            }
            Way::Alone => all.rev().try_for_each(|index| run(&[whole(index)]))?,
            Way::TokenByToken | Way::Split(_) => {
                let size = if let Way::Split(size) = way { size } else { 1 };
                for part in all.map(whole) {
                    for first in (0..part.len).step_by(size) {
                        run(&[Part { first, len: size.min(part.len - first), ..part }])?;
                    }
                }
            }
            Way::RolledBack => {
                for index in all {
                    let (past, len) = self.sequences[index];
                    if past > 0 {
                        run(&[Part { len: past, ..whole(index) }])?;
                    }
                    // All at once, and one at a time.
                    let dropped = self.shape.rollback;
                    run(&[Part { first: past, len: dropped, wrong: true, ..whole(index) }])?;
                    for first in past..past + dropped {
                        run(&[Part { first, len: 1, wrong: true, ..whole(index) }])?;
                    }
                    run(&[Part { first: past, len, ..whole(index) }])?;
                }
            }
        }
        Ok(vec![Output { name: "out", width, values: rows.concat() }])
    }
}

fn step_of(parts: &[Part]) -> Result<Step> {
    let sequences: Vec<StepSequence> = parts
        .iter()
        .map(|part| StepSequence { len: part.len, past: part.first, slot: part.index + 1, pages: Vec::new() })
        .collect();
    Step::text(vec![0; parts.iter().map(|part| part.len).sum()], sequences)
}

/// A strided tensor of values that `of` makes from a stream of each token.
fn tokens(
    device: &Device,
    parts: &[Part],
    seed: u64,
    shape: &[usize],
    of: impl Fn(&mut Values) -> Vec<f32>,
) -> Result<Tensor> {
    let values: Vec<f32> = parts
        .iter()
        .flat_map(|part| (part.first..part.first + part.len).map(move |position| (part, position)))
        .flat_map(|(part, position)| {
            let token = (part.index * 10_000 + position) * 2 + usize::from(part.wrong);
            of(&mut Values::new(seed + 1000 * token as u64))
        })
        .collect();
    let count: usize = parts.iter().map(|part| part.len).sum();
    let tensor = gaps(device, &[&[count], shape].concat())?;
    tensor.write_f32(&values)?;
    Ok(tensor)
}

fn conv(device: &Device, layer: &StateLayer, parts: &[Part]) -> Result<Tensor> {
    let (channels, taps) = (layer.shape().conv_channels, layer.shape().conv_kernel);
    let weight = Values::new(channels as u64).tensor(device, &[channels, taps], 1.0)?;
    let x = tokens(device, parts, 1, &[channels], |values| values.normal(channels, 1.0))?;
    let out = gaps(device, x.shape())?;
    causal_conv(&step_of(parts)?, &x, &weight, layer, &out)?;
    Ok(out)
}

fn delta(device: &Device, layer: &StateLayer, parts: &[Part]) -> Result<Tensor> {
    let shape = *layer.shape();
    let (heads, width) = (shape.value_heads, shape.value_dim);
    let unit = |values: &mut Values, scale: f32| -> Vec<f32> {
        let of_head = |_| {
            let head = values.normal(shape.key_dim, 1.0);
            let norm = head.iter().map(|v| v * v).sum::<f32>().sqrt();
            head.into_iter().map(move |v| v / norm * scale).collect::<Vec<f32>>()
        };
        (0..shape.key_heads).flat_map(of_head).collect()
    };
    let key_shape = [shape.key_heads, shape.key_dim];
    let scale = 1.0 / (shape.key_dim as f32).sqrt();
    let queries = tokens(device, parts, 1, &key_shape, |values| unit(values, scale))?;
    let keys = tokens(device, parts, 2, &key_shape, |values| unit(values, 1.0))?;
    let values = tokens(device, parts, 3, &[heads, width], |values| values.normal(heads * width, 1.0))?;
    // Heads from hardly any decay to a strong one.
    let decay = tokens(device, parts, 4, &[heads], |values| {
        (0..heads).map(|head| -values.unit() as f32 * [0.01, 0.3, 8.0][head % 3]).collect()
    })?;
    let beta = tokens(device, parts, 5, &[heads], |values| values.between(heads, 0.05, 0.95))?;
    let out = gaps(device, &[decay.shape()[0], heads, width])?;
    let inputs = DeltaInputs { queries: &queries, keys: &keys, values: &values, decay: &decay, beta: &beta };
    gated_delta(&step_of(parts)?, &inputs, layer, &out)?;
    Ok(out)
}

/// Tokens of each sequence before the first step that is compared.
const NET_PASTS: [usize; 5] = [0, 1, 17, 46, 61];
/// Steps of one token that are compared: across a border of chunks for some sequences.
const NET_STEPS: usize = 5;

type Net = fn(&Step, &NetInputs, &StateLayer) -> Result<Activation>;

/// A net between its projections, single tokens of several sequences.
fn net(shape: StateShape) -> Case {
    let StateShape { key_heads, value_heads, key_dim, value_dim, conv_kernel, rollback, .. } = shape;
    let label = format!(
        "{key_heads}/{value_heads} heads of {key_dim}/{value_dim}, {conv_kernel} taps, rollback {rollback}"
    );
    let by = move |net: Net, alone: bool, dropped: usize| {
        move |device: &Device| net_outputs(device, shape, net, alone, dropped, false)
    };
    let case = Case::new("gated_delta_net", label, Tolerance::Nmse(1e-9), by(gated_delta_net, false, 0))
        .equals("in parts", by(in_parts, false, 0))
        .equals("alone", by(gated_delta_net, true, 0));
    if rollback > 0 { case.equals("rolled back", by(gated_delta_net, false, rollback)) } else { case }
}

/// The same with a product of its result, which may be left in the form that products read.
fn net_for_products(shape: StateShape) -> Case {
    let by = move |net: Net| move |device: &Device| net_outputs(device, shape, net, false, 0, true);
    let label = format!("for products, {} heads of {}", shape.value_heads, shape.value_dim);
    // The reference does not round activations.
    Case::new("gated_delta_net", label, Tolerance::Nmse(1e-4), by(gated_delta_net))
        .equals("in parts", by(in_parts))
}

fn net_outputs(
    device: &Device,
    shape: StateShape,
    net: Net,
    alone: bool,
    dropped: usize,
    multiplied: bool,
) -> Result<Vec<Output>> {
    let layer = StateLayer::new(device, NET_PASTS.len() + 1, shape)?;
    let mut rows: Vec<Vec<f32>> = vec![Vec::new(); NET_PASTS.len()];
    let part = |index: usize, first: usize, len: usize, wrong: bool| Part { index, first, len, wrong };
    let all = || NET_PASTS.into_iter().enumerate();
    let before: Vec<Part> =
        all().filter(|(_, past)| *past > 0).map(|(index, past)| part(index, 0, past, false)).collect();
    net_step(device, &layer, net, &before, false)?;
    for step in 0..NET_STEPS {
        for wrong in (0..dropped).map(|i| (i, true)).chain([(0, false)]) {
            let parts: Vec<Part> =
                all().map(|(index, past)| part(index, past + step + wrong.0, 1, wrong.1)).collect();
            let parts: Vec<&[Part]> =
                if alone { parts.chunks(1).rev().collect() } else { vec![parts.as_slice()] };
            for parts in parts {
                let out = net_step(device, &layer, net, parts, multiplied)?;
                if !wrong.1 {
                    let width = out.len() / parts.len();
                    parts.iter().zip(out.chunks(width)).for_each(|(part, row)| rows[part.index].extend(row));
                }
            }
        }
    }
    let width = if multiplied { PRODUCTS } else { shape.value_dim };
    Ok(vec![Output { name: "out", width, values: rows.concat() }])
}

/// Rows of the matrix that results are multiplied with.
const PRODUCTS: usize = 9;

fn net_step(
    device: &Device,
    layer: &StateLayer,
    net: Net,
    parts: &[Part],
    multiplied: bool,
) -> Result<Vec<f32>> {
    let shape = *layer.shape();
    let (heads, channels) = (shape.value_heads, shape.conv_channels);
    let mut weights = Values::new(channels as u64);
    let conv = weights.tensor(device, &[channels, shape.conv_kernel], 1.0)?;
    let dt_bias = weights.tensor(device, &[heads], 1.0)?;
    let a_neg = device.tensor_f32(&weights.between(heads, -2.0, -0.01), &[heads])?;
    let norm = weights.tensor(device, &[shape.value_dim], 1.0)?;
    let rows = |seed: u64, shape: &[usize]| {
        let count = shape.iter().product();
        tokens(device, parts, seed, shape, |values| values.normal(count, 1.5))
    };
    let inputs = NetInputs {
        qkv: &rows(1, &[channels])?,
        z: &rows(2, &[heads, shape.value_dim])?,
        a: &rows(3, &[heads])?,
        b: &rows(4, &[heads])?,
        conv: &conv,
        dt_bias: &dt_bias,
        a_neg: &a_neg,
        norm: &norm,
        l2_eps: 1e-6,
        norm_eps: 1e-6,
    };
    let result = net(&step_of(parts)?, &inputs, layer)?;
    if !multiplied {
        return result.tensor().to_vec_f32();
    }
    let width = result.cols();
    let packed = synthetic::random_blocks(BlockType::Q8_0, PRODUCTS * width / 32, 7);
    let matrix = PackedTensor::from_bytes(device, &packed, BlockType::Q8_0, [1, PRODUCTS, width])?;
    let out = device.zeros(DType::F32, &[result.rows(), PRODUCTS])?;
    linear(&result, &matrix, None, &out)?;
    out.to_vec_f32()
}
