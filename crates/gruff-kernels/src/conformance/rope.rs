//! Rotary embeddings.

use super::{Case, Output, Tolerance, Values};
use crate::rope::{Mrope, RopeScaling, RopeSpec, RopeStyle, rope, rope_table};
use crate::{DType, Device, Result, Step, StepSequence, StepTokens, Tensor};

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        table("plain, 64 dims", RopeSpec::new(RopeStyle::NeoX, 64, 1e4)),
        table(
            "interleaved M-RoPE",
            RopeSpec::new(RopeStyle::NeoX, 64, 1e7)
                .with_mrope(Mrope { sections: [11, 11, 10], interleaved: true }),
        ),
        table(
            "yarn",
            RopeSpec::new(RopeStyle::NeoX, 128, 1e6).scaled(&RopeScaling::Yarn {
                factor: 4.0,
                original_context: 32768,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: None,
            }),
        ),
    ];
    for style in [RopeStyle::NeoX, RopeStyle::Interleaved] {
        // Heads of `width`, of which the first `2 * half` dimensions turn.
        for (tokens, heads, width, half) in
            [(3, 2, 64, 32), (2, 3, 256, 32), (4, 1, 80, 40), (2, 2, 30, 13), (1, 1, 2, 1), (150, 8, 64, 32)]
        {
            cases.push(rotation(style, [tokens, heads, width], half));
        }
    }
    cases
}

fn step(tokens: usize) -> Result<Step> {
    let line = |factor: u32| (0..tokens as u32).map(|t| t * t * factor + 17 * t).collect::<Vec<u32>>();
    let sequence = StepSequence { len: tokens, past: 0, slot: 0, pages: Vec::new() };
    let ids = StepTokens::Ids(vec![0; tokens]);
    Step::new(ids, [line(97), line(3), line(1)], vec![sequence], vec![0])
}

fn table(label: &str, spec: RopeSpec) -> Case {
    Case::new("rope_table", label, Tolerance::Absolute(1e-7), move |device| {
        let step = step(50)?;
        let table = device.zeros(DType::F32, &[50, 2, spec.half()])?;
        rope_table(&step, &spec, &table)?;
        Ok(vec![Output::of("table", &table)?])
    })
}

fn rotated(device: &Device, style: RopeStyle, shape: [usize; 3], half: usize) -> Result<Tensor> {
    let table = device.zeros(DType::F32, &[shape[0], 2, half])?;
    rope_table(&step(shape[0])?, &RopeSpec::new(style, 2 * half, 1e4), &table)?;
    let x = Values::new(shape[2] as u64).strided(device, &shape, 1.0)?;
    rope(&x, &table, style)?;
    Ok(x)
}

fn rotation(style: RopeStyle, shape: [usize; 3], half: usize) -> Case {
    let label = format!("{style:?} {shape:?}, {half} pairs, strided");
    Case::new("rope", label, Tolerance::OfLargest(1e-6), move |device| {
        Ok(vec![Output::of("x", &rotated(device, style, shape, half)?)?])
    })
}
