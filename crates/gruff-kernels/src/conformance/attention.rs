//! Paged attention.

use super::data::gaps;
use super::{Case, Output, Tolerance, Values};
use crate::attention::{
    AttentionSpec, HeadNorms, Prepare, attention, gated_attention, prepare_qkv, write_kv,
};
use crate::rope::{RopeStyle, rope};
use crate::{Device, KvDtype, KvLayer, PAGE_LEN, Result, Step, StepSequence, Tensor, elementwise, norm};

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let plain = AttentionSpec { scale: 0.125, window: None, softcap: None };
    let ragged: &[(usize, usize)] = &[(0, 5), (40, 1), (31, 34), (63, 2)];
    let mut cases = Vec::new();
    for heads in [
        [1, 1, 64, 64],
        [9, 3, 64, 64],
        [4, 4, 80, 80],
        [5, 1, 96, 96],
        [8, 2, 128, 128],
        [4, 2, 256, 256],
        [6, 2, 30, 44],
        [40, 1, 8, 16],
        [40, 1, 16, 32],
        [4, 2, 192, 128],
    ] {
        let whole = heads[2..].iter().all(|dim| dim % 32 == 0);
        for dtype in KvDtype::ALL.into_iter().filter(|dtype| whole || *dtype != KvDtype::Q8_0) {
            cases.push(
                Scenario { heads, dtype, sequences: ragged.to_vec(), spec: plain, gated: false }.case(),
            );
        }
    }
    for (window, softcap) in [(Some(1), None), (Some(7), Some(2.0)), (Some(40), None), (None, Some(5.0))] {
        let spec = AttentionSpec { window, softcap, ..plain };
        let sequences = ragged.to_vec();
        cases.push(
            Scenario { heads: [6, 2, 64, 64], dtype: KvDtype::F16, sequences, spec, gated: false }.case(),
        );
    }
    // Several spans, for one query, for a few, and with a window over their border.
    for (sequences, window) in [
        (vec![(1500, 1)], None),
        (vec![(1023, 3), (5, 1)], None),
        (vec![(510, 9)], None),
        (vec![(1030, 20)], Some(515)),
        (vec![(8188, 9), (16_383, 2)], None),
    ] {
        let spec = AttentionSpec { window, ..plain };
        for dtype in [KvDtype::F16, KvDtype::Q8_0] {
            cases.push(
                Scenario { heads: [4, 1, 64, 64], dtype, sequences: sequences.clone(), spec, gated: false }
                    .case(),
            );
        }
    }
    // Behind a gate: one span and several, added up by the last block (few heads a group) and by a second kernel.
    for (heads, sequences) in [
        ([8, 2, 128, 128], ragged.to_vec()),
        ([4, 2, 64, 32], vec![(700, 1), (300, 3)]),
        ([12, 1, 32, 32], vec![(700, 2)]),
    ] {
        for dtype in [KvDtype::F16, KvDtype::Q8_0] {
            let sequences = sequences.clone();
            cases.push(Scenario { heads, dtype, sequences, spec: plain, gated: true }.case());
        }
    }
    for (heads, half, style, normed) in [
        ([4, 2, 64, 64], 16, RopeStyle::NeoX, true),
        ([3, 1, 256, 256], 128, RopeStyle::NeoX, true),
        ([4, 4, 96, 64], 48, RopeStyle::Interleaved, false),
        ([6, 2, 30, 44], 10, RopeStyle::NeoX, true),
    ] {
        let whole = heads[2..].iter().all(|dim| dim % 32 == 0);
        for dtype in KvDtype::ALL.into_iter().filter(|dtype| whole || *dtype != KvDtype::Q8_0) {
            cases.push(prepare(heads, half, style, normed, dtype));
        }
    }
    cases
}

#[derive(Clone)]
struct Scenario {
    /// Query heads, key-value heads, key width, value width.
    heads: [usize; 4],
    dtype: KvDtype,
    /// Tokens before and in the step.
    sequences: Vec<(usize, usize)>,
    spec: AttentionSpec,
    /// Whether results pass a gate.
    gated: bool,
}

/// How the sequences come to the device.
#[derive(Clone, Copy)]
enum Way {
    Together,
    Alone,
    TokenByToken,
    /// The gate behind attention.
    GateBehind,
}

impl Scenario {
    fn case(self) -> Case {
        let [heads, kv, key_dim, value_dim] = self.heads;
        let sequences: Vec<String> =
            self.sequences.iter().map(|(past, len)| format!("{past}+{len}")).collect();
        let mut label =
            format!("{} {heads}/{kv} heads of {key_dim}/{value_dim}, {}", self.dtype, sequences.join(" "));
        if let Some(window) = self.spec.window {
            label += &format!(", window {window}");
        }
        if let Some(cap) = self.spec.softcap {
            label += &format!(", cap {cap}");
        }
        let by = |way| {
            let scenario = self.clone();
            move |device: &Device| scenario.outputs(device, way)
        };
        let op = if self.gated { "gated_attention" } else { "attention" };
        let case = Case::new(op, label, Tolerance::Nmse(1e-10), by(Way::Together))
            .equals("alone", by(Way::Alone))
            .equals("token by token", by(Way::TokenByToken));
        if self.gated { case.equals("attention, sigmoid_mul", by(Way::GateBehind)) } else { case }
    }

    fn outputs(&self, device: &Device, way: Way) -> Result<Vec<Output>> {
        let [_, kv, key_dim, value_dim] = self.heads;
        let needed: usize = self.sequences.iter().map(|(past, len)| (past + len).div_ceil(PAGE_LEN)).sum();
        let layer = KvLayer::new(device, self.dtype, needed + 1, kv, key_dim, value_dim)?;
        // Pages in an order of their own, so that neighbours in a sequence are not neighbours in memory.
        let mut free: Vec<u32> = (0..=needed as u32).collect();
        let mut order = Values::new(needed as u64);
        let mut take = || free.swap_remove(order.below(free.len()));
        let owners: Vec<Vec<u32>> = self
            .sequences
            .iter()
            .map(|(past, len)| (0..(past + len).div_ceil(PAGE_LEN)).map(|_| take()).collect())
            .collect();
        let part = |index: usize, past: usize, len: usize| (index, past, len, owners[index].clone());
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); self.sequences.len()];
        for (index, (past, _)) in self.sequences.iter().enumerate().filter(|(_, (past, _))| *past > 0) {
            self.step(device, &layer, &[part(index, 0, *past)], None)?;
        }
        let mut run = |parts: Vec<(usize, usize, usize, Vec<u32>)>| -> Result<()> {
            let out = self.step(device, &layer, &parts, Some(way))?;
            let mut out = out.chunks(self.heads[0] * value_dim);
            for (index, _, len, _) in parts {
                rows[index].extend(out.by_ref().take(len).flatten());
            }
            Ok(())
        };
        let all = self.sequences.iter().enumerate().map(|(index, (past, len))| part(index, *past, *len));
        match way {
            Way::Together | Way::GateBehind => run(all.collect())?,
            Way::Alone => all.rev().try_for_each(|one| run(vec![one]))?,
            Way::TokenByToken => {
                for (index, past, len, _) in all {
                    (past..past + len).try_for_each(|token| run(vec![part(index, token, 1)]))?;
                }
            }
        }
        Ok(vec![Output { name: "out", width: value_dim, values: rows.concat() }])
    }

    /// Writes the keys and values of parts of sequences, and returns what attention makes of their queries.
    fn step(
        &self,
        device: &Device,
        layer: &KvLayer,
        parts: &[(usize, usize, usize, Vec<u32>)],
        attend: Option<Way>,
    ) -> Result<Vec<f32>> {
        let [heads, kv, key_dim, value_dim] = self.heads;
        let tokens = parts.iter().map(|(_, _, len, _)| len).sum();
        let sequences = parts
            .iter()
            .map(|(slot, past, len, pages)| StepSequence {
                len: *len,
                past: *past,
                slot: *slot,
                pages: pages.clone(),
            })
            .collect();
        let step = Step::text(vec![0; tokens], sequences)?;
        let operand = |seed: u64, heads: usize, dim: usize, deviation: f32| -> Result<Tensor> {
            let token = |index: usize, position: usize| {
                Values::new(seed + ((index * 100_000 + position) * 10) as u64).normal(heads * dim, deviation)
            };
            let values: Vec<f32> = parts
                .iter()
                .flat_map(|(index, past, len, _)| (*past..past + len).flat_map(move |p| token(*index, p)))
                .collect();
            let tensor = gaps(device, &[tokens, heads, dim])?;
            tensor.write_f32(&values)?;
            Ok(tensor)
        };
        write_kv(&step, &operand(1, kv, key_dim, 1.5)?, &operand(2, kv, value_dim, 1.0)?, layer)?;
        let Some(way) = attend else { return Ok(Vec::new()) };
        let out = gaps(device, &[tokens, heads, value_dim])?;
        let queries = operand(3, heads, key_dim, 1.5)?;
        if !self.gated {
            attention(&step, &queries, layer, &self.spec, &out)?;
            return out.to_vec_f32();
        }
        let gate = operand(4, heads, value_dim, 2.0)?;
        if let Way::GateBehind = way {
            attention(&step, &queries, layer, &self.spec, &out)?;
            elementwise::sigmoid_mul(&out, &gate)?;
        } else {
            gated_attention(&step, &queries, layer, &self.spec, &gate, &out)?;
        }
        out.to_vec_f32()
    }
}

/// What is done to queries, keys and values before attention.
fn prepare(heads: [usize; 4], half: usize, style: RopeStyle, normed: bool, dtype: KvDtype) -> Case {
    let [query_heads, kv, key_dim, value_dim] = heads;
    let norms = if normed { "normed, " } else { "" };
    let label = format!(
        "{dtype} {query_heads}/{kv} heads of {key_dim}/{value_dim}, {norms}{} dimensions turn, {style:?}",
        2 * half
    );
    // A value that lies between two of the cache's may become either.
    let tolerance = match dtype {
        KvDtype::F32 => Tolerance::OfLargest(2e-6),
        KvDtype::F16 => Tolerance::OfLargest(1e-3),
        KvDtype::Q8_0 => Tolerance::OfLargest(1e-2),
    };
    let by =
        move |in_parts| move |device: &Device| prepared(device, heads, half, style, normed, dtype, in_parts);
    Case::new("prepare_qkv", label, tolerance, by(false)).equals("rms_norm, rope, write_kv", by(true))
}

fn prepared(
    device: &Device,
    heads: [usize; 4],
    half: usize,
    style: RopeStyle,
    normed: bool,
    dtype: KvDtype,
    in_parts: bool,
) -> Result<Vec<Output>> {
    const EPS: f32 = 1e-6;
    let [query_heads, kv, key_dim, value_dim] = heads;
    let sequences = [(0, 3, vec![2]), (31, 2, vec![4, 0]), (40, 1, vec![1, 3])];
    let tokens = sequences.iter().map(|(_, len, _)| len).sum();
    let sequences = sequences.into_iter().enumerate();
    let sequences =
        sequences.map(|(slot, (past, len, pages))| StepSequence { len, past, slot, pages }).collect();
    let step = Step::text(vec![0; tokens], sequences)?;
    let layer = KvLayer::new(device, dtype, 5, kv, key_dim, value_dim)?;
    let mut values = Values::new((key_dim + half) as u64);
    let queries = values.strided(device, &[tokens, query_heads, key_dim], 1.5)?;
    let keys = values.strided(device, &[tokens, kv, key_dim], 1.5)?;
    let kept = values.strided(device, &[tokens, kv, value_dim], 1.0)?;
    let weights = [values.tensor(device, &[key_dim], 1.0)?, values.tensor(device, &[key_dim], 1.0)?];
    let table = values.tensor(device, &[tokens, 2, half], 0.7)?;
    let norms = HeadNorms { queries: &weights[0], keys: &weights[1], eps: EPS };
    if in_parts {
        if normed {
            norm::rms_norm(&queries, norms.queries, EPS, &queries)?;
            norm::rms_norm(&keys, norms.keys, EPS, &keys)?;
        }
        rope(&queries, &table, style)?;
        rope(&keys, &table, style)?;
        write_kv(&step, &keys, &kept, &layer)?;
    } else {
        let prepare = Prepare { norms: normed.then_some(norms), table: &table, style };
        prepare_qkv(&step, &queries, &keys, &kept, &prepare, &layer)?;
    }
    Ok(vec![
        Output::of("queries", &queries)?,
        Output { name: "kept keys", width: key_dim, values: layer.widened(layer.keys())? },
        Output { name: "kept values", width: value_dim, values: layer.widened(layer.values())? },
    ])
}
