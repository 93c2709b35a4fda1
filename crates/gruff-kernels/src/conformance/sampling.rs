//! Argmax and draws.

use super::{Case, Output, Tolerance, Values};
use crate::sampling::{SampleSpec, argmax, sample};
use crate::{DType, Device, Result, Tensor};

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for width in [1, 7, 64, 1000, 50_001] {
        cases.push(Case::new("argmax", format!("[6, {width}]"), Tolerance::Exact, move |device| {
            let ids = device.zeros(DType::I32, &[6])?;
            argmax(&logits(device, 6, width)?, &ids)?;
            Ok(vec![Output::of("ids", &ids)?])
        }));
    }
    let plain = SampleSpec {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        penalized: Vec::new(),
        seed: 0,
        position: 0,
    };
    let penalized = SampleSpec { repetition_penalty: 1.3, penalized: vec![3, 0, 3, 6, 5], ..plain.clone() };
    let specs = [
        ("all", plain.clone()),
        ("greedy with a penalty", SampleSpec { temperature: 0.0, ..penalized.clone() }),
        ("hot", SampleSpec { temperature: 30.0, ..plain.clone() }),
        ("top 1", SampleSpec { top_k: 1, ..plain.clone() }),
        ("top 40", SampleSpec { top_k: 40, temperature: 0.7, ..plain.clone() }),
        ("top-p 0.9", SampleSpec { top_p: 0.9, ..plain.clone() }),
        ("top-p 0", SampleSpec { top_p: 0.0, ..plain.clone() }),
        ("hot top-p 0.95", SampleSpec { top_p: 0.95, temperature: 20.0, ..plain.clone() }),
        ("min-p 0.05", SampleSpec { min_p: 0.05, ..plain.clone() }),
        ("hot min-p 0.5", SampleSpec { min_p: 0.5, temperature: 20.0, ..plain.clone() }),
        (
            "top 20, top-p 0.8, min-p 0.01, penalty",
            SampleSpec { top_k: 20, top_p: 0.8, min_p: 0.01, ..penalized },
        ),
    ];
    for (label, spec) in specs {
        for width in [7, 300, 20_000] {
            cases.push(draws(label, spec.clone(), width));
        }
    }
    cases
}

/// Rows of logits; one with ties, one of NaN, one with some NaN and infinities.
fn logits(device: &Device, rows: usize, width: usize) -> Result<Tensor> {
    let mut values = Values::new(width as u64);
    let mut all = values.normal(rows * width, 3.0);
    for row in all.chunks_mut(width).skip(1).step_by(3) {
        row.iter_mut().for_each(|v| *v = v.round());
    }
    if let Some(row) = all.chunks_mut(width).nth(2) {
        row.fill(f32::NAN);
    }
    if let Some(row) = all.chunks_mut(width).nth(3) {
        row.iter_mut().step_by(3).for_each(|v| *v = f32::NAN);
        row.iter_mut().skip(1).step_by(3).for_each(|v| *v = f32::NEG_INFINITY);
    }
    device.tensor_f32(&all, &[rows, width])
}

fn draws(label: &str, spec: SampleSpec, width: usize) -> Case {
    let rows = 24;
    Case::new("sample", format!("{label}, [{rows}, {width}]"), Tolerance::Exact, move |device| {
        let specs: Vec<SampleSpec> =
            (0..rows as u64).map(|row| SampleSpec { seed: row, position: 3 * row, ..spec.clone() }).collect();
        let ids = device.zeros(DType::I32, &[rows])?;
        sample(&logits(device, rows, width)?, &specs, &ids)?;
        Ok(vec![Output::of("ids", &ids)?])
    })
}
