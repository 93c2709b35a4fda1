//! Paged attention.

use super::data::gaps;
use super::{Case, Output, Tolerance, Values};
use crate::attention::{AttentionSpec, attention, write_kv};
use crate::{Device, KvDtype, KvLayer, PAGE_LEN, Result, Step, StepSequence, Tensor};

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
            cases.push(Scenario { heads, dtype, sequences: ragged.to_vec(), spec: plain }.case());
        }
    }
    for (window, softcap) in [(Some(1), None), (Some(7), Some(2.0)), (Some(40), None), (None, Some(5.0))] {
        let spec = AttentionSpec { window, softcap, ..plain };
        let sequences = ragged.to_vec();
        cases.push(Scenario { heads: [6, 2, 64, 64], dtype: KvDtype::F16, sequences, spec }.case());
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
            cases.push(Scenario { heads: [4, 1, 64, 64], dtype, sequences: sequences.clone(), spec }.case());
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
}

/// How the sequences come to the device.
#[derive(Clone, Copy)]
enum Way {
    Together,
    Alone,
    TokenByToken,
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
        Case::new("attention", label, Tolerance::Nmse(1e-10), by(Way::Together))
            .equals("alone", by(Way::Alone))
            .equals("token by token", by(Way::TokenByToken))
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
            self.step(device, &layer, &[part(index, 0, *past)], false)?;
        }
        let mut run = |parts: Vec<(usize, usize, usize, Vec<u32>)>| -> Result<()> {
            let out = self.step(device, &layer, &parts, true)?;
            let mut out = out.chunks(self.heads[0] * value_dim);
            for (index, _, len, _) in parts {
                rows[index].extend(out.by_ref().take(len).flatten());
            }
            Ok(())
        };
        let all = self.sequences.iter().enumerate().map(|(index, (past, len))| part(index, *past, *len));
        match way {
            Way::Together => run(all.collect())?,
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
        attend: bool,
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
        if !attend {
            return Ok(Vec::new());
        }
        let out = gaps(device, &[tokens, heads, value_dim])?;
        attention(&step, &operand(3, heads, key_dim, 1.5)?, layer, &self.spec, &out)?;
        out.to_vec_f32()
    }
}
