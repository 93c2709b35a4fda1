//! Paged attention.

use gruff_blocks::{BlockType, synthetic};

use super::data::{gaps, spoil_form};
use super::{Case, Output, Tolerance, Values};
use crate::attention::{
    AttentionSpec, HeadNorms, Prepare, attention, attention_activation, gated_attention, prepare_qkv,
    write_kv,
};
use crate::matmul::linear;
use crate::rope::{RopeStyle, rope};
use crate::{
    Activation, DType, Device, KvDtype, KvLayer, PAGE_LEN, PackedTensor, Result, Step, StepSequence, Tensor,
    elementwise, norm,
};

/// Rows of the matrix behind attention.
const PRODUCTS: usize = 9;

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
            cases.push(Scenario::new(heads, dtype, ragged, plain).case());
        }
    }
    for (window, softcap) in [(Some(1), None), (Some(7), Some(2.0)), (Some(40), None), (None, Some(5.0))] {
        let spec = AttentionSpec { window, softcap, ..plain };
        cases.push(Scenario::new([6, 2, 64, 64], KvDtype::F16, ragged, spec).case());
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
            cases.push(Scenario::new([4, 1, 64, 64], dtype, &sequences, spec).case());
        }
    }
    // Behind a gate: one span and several, added up by the last block (few heads a group) and by a second kernel.
    for (heads, sequences) in [
        ([8, 2, 128, 128], ragged.to_vec()),
        ([4, 2, 64, 32], vec![(700, 1), (300, 3)]),
        ([12, 1, 32, 32], vec![(700, 2)]),
    ] {
        for dtype in [KvDtype::F16, KvDtype::Q8_0] {
            cases.push(Scenario { gated: true, ..Scenario::new(heads, dtype, &sequences, plain) }.case());
        }
    }
    // In front of a product, rows of whole groups of values and with a rest: one span and several, added up in both ways;
    // heads that tensor cores do not take.
    for (heads, sequences) in [
        ([9, 3, 64, 64], ragged.to_vec()),
        ([5, 1, 96, 96], ragged.to_vec()),
        ([4, 4, 80, 80], ragged.to_vec()),
        ([2, 1, 256, 256], vec![(0, 40), (90, 1)]),
        ([5, 1, 64, 64], vec![(700, 1), (300, 3), (510, 9)]),
        ([12, 1, 32, 32], vec![(700, 2), (1, 1)]),
        ([4, 2, 30, 40], ragged.to_vec()),
    ] {
        let whole = heads[2..].iter().all(|dim| dim % 32 == 0);
        for dtype in KvDtype::ALL.into_iter().filter(|dtype| whole || *dtype != KvDtype::Q8_0) {
            for gated in [false, true] {
                let scenario = Scenario::new(heads, dtype, &sequences, plain);
                cases.push(Scenario { gated, multiplied: true, ..scenario }.case());
            }
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
    /// Whether a product reads them.
    multiplied: bool,
}

/// How the sequences come to the device.
#[derive(Clone, Copy)]
enum Way {
    Together,
    Alone,
    TokenByToken,
    /// The gate, or the product's rounding, behind attention.
    Behind,
}

impl Scenario {
    fn new(heads: [usize; 4], dtype: KvDtype, sequences: &[(usize, usize)], spec: AttentionSpec) -> Self {
        Self { heads, dtype, sequences: sequences.to_vec(), spec, gated: false, multiplied: false }
    }

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
        if self.multiplied {
            label = format!("for products, {label}");
        }
        let op = if self.gated { "gated_attention" } else { "attention" };
        // The reference does not round activations.
        let tolerance = Tolerance::Nmse(if self.multiplied { 1e-4 } else { 1e-10 });
        let case = Case::new(op, label, tolerance, by(Way::Together))
            .equals("alone", by(Way::Alone))
            .equals("token by token", by(Way::TokenByToken));
        match (self.gated, self.multiplied) {
            (_, true) => case.equals("rounded behind it", by(Way::Behind)),
            (true, false) => case.equals("attention, sigmoid_mul", by(Way::Behind)),
            (false, false) => case,
        }
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
            let mut out = out.chunks(if self.multiplied { PRODUCTS } else { self.heads[0] * value_dim });
            for (index, _, len, _) in parts {
                rows[index].extend(out.by_ref().take(len).flatten());
            }
            Ok(())
        };
        let all = self.sequences.iter().enumerate().map(|(index, (past, len))| part(index, *past, *len));
        match way {
            Way::Together | Way::Behind => run(all.collect())?,
            Way::Alone => all.rev().try_for_each(|one| run(vec![one]))?,
            Way::TokenByToken => {
                for (index, past, len, _) in all {
                    (past..past + len).try_for_each(|token| run(vec![part(index, token, 1)]))?;
                }
            }
        }
        let width = if self.multiplied { PRODUCTS } else { value_dim };
        Ok(vec![Output { name: "out", width, values: rows.concat() }])
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
        let queries = operand(3, heads, key_dim, 1.5)?;
        let gate = if self.gated { Some(operand(4, heads, value_dim, 2.0)?) } else { None };
        let behind = matches!(way, Way::Behind);
        if self.multiplied {
            return self.product(&step, &queries, layer, gate.as_ref(), behind);
        }
        let out = gaps(device, &[tokens, heads, value_dim])?;
        match &gate {
            Some(gate) if !behind => gated_attention(&step, &queries, layer, &self.spec, gate, &out)?,
            _ => attention(&step, &queries, layer, &self.spec, &out)?,
        }
        if let Some(gate) = gate.filter(|_| behind) {
            elementwise::sigmoid_mul(&out, &gate)?;
        }
        out.to_vec_f32()
    }

    /// What a product makes of the result, which is rounded by attention or `behind` it.
    fn product(
        &self,
        step: &Step,
        queries: &Tensor,
        layer: &KvLayer,
        gate: Option<&Tensor>,
        behind: bool,
    ) -> Result<Vec<f32>> {
        let [heads, _, _, value_dim] = self.heads;
        let (device, width) = (queries.device(), heads * value_dim);
        let packed = synthetic::random_blocks(BlockType::Q8_0, PRODUCTS * width / 32, 7);
        let matrix = PackedTensor::from_bytes(device, &packed, BlockType::Q8_0, [1, PRODUCTS, width])?;
        // With gaps, rows do not lie on whole vectors.
        let shape = [step.len(), width];
        let rows = if gate.is_some() { gaps(device, &shape)? } else { device.zeros(DType::F32, &shape)? };
        spoil_form(device, step.len(), width)?;
        let activation = if behind {
            let by_head = rows.split_last(heads)?;
            match gate {
                Some(gate) => gated_attention(step, queries, layer, &self.spec, gate, &by_head)?,
                None => attention(step, queries, layer, &self.spec, &by_head)?,
            }
            Activation::new(&rows)?
        } else {
            attention_activation(step, queries, layer, &self.spec, gate, &rows)?
        };
        let out = device.zeros(DType::F32, &[step.len(), PRODUCTS])?;
        linear(&activation, &matrix, None, &out)?;
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
