//! Norms.

use super::{Case, Output, Tolerance, Values};
use crate::matmul::Glu;
use crate::norm::{add_rms_norm, gated_rms_norm, l2_norm, rms_norm};
use crate::{DType, Device, Result, Tensor, elementwise};

const EPS: f32 = 1e-6;

/// Rows of one and many vectors, with and without a rest.
const WIDTHS: [usize; 9] = [1, 7, 8, 33, 64, 100, 128, 576, 1031];

fn out_like(device: &Device, x: &Tensor) -> Result<Tensor> {
    device.zeros(DType::F32, x.shape())
}

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for width in WIDTHS {
        cases.push(rms(vec![3, width]));
        cases.push(rms(vec![2, 3, width]));
        cases.push(add_rms(vec![3, width]));
        cases.push(gated(vec![2, 3, width]));
        cases.push(l2(vec![2, 3, width]));
    }
    // Enough work to wake a second thread.
    cases.extend([
        rms(vec![70, 1031]),
        add_rms(vec![70, 1031]),
        gated(vec![40, 4, 128]),
        l2(vec![130, 5, 128]),
    ]);
    cases
}

fn operands(device: &Device, shape: &[usize]) -> Result<[Tensor; 3]> {
    let mut values = Values::new(shape.iter().product::<usize>() as u64);
    let x = values.strided(device, shape, 3.0)?;
    let weight = values.tensor(device, &shape[shape.len() - 1..], 1.0)?;
    Ok([x, weight, values.strided(device, shape, 2.0)?])
}

fn rms(shape: Vec<usize>) -> Case {
    let label = format!("{shape:?} strided");
    let in_place = shape.clone();
    Case::new("rms_norm", label, Tolerance::OfLargest(1e-6), move |device| {
        let [x, weight, out] = operands(device, &shape)?;
        rms_norm(&x, &weight, EPS, &out)?;
        Ok(vec![Output::of("out", &out)?])
    })
    .equals("in place", move |device| {
        let [x, weight, _] = operands(device, &in_place)?;
        rms_norm(&x, &weight, EPS, &x)?;
        Ok(vec![Output::of("out", &x)?])
    })
}

fn add_rms(shape: Vec<usize>) -> Case {
    let label = format!("{shape:?} strided");
    let composed = shape.clone();
    Case::new("add_rms_norm", label, Tolerance::OfLargest(1e-6), move |device| {
        let [residual, weight, delta] = operands(device, &shape)?;
        let out = out_like(device, &residual)?;
        add_rms_norm(&residual, &delta, &weight, EPS, &out)?;
        Ok(vec![Output::of("residual", &residual)?, Output::of("out", &out)?])
    })
    .equals("add, rms_norm", move |device| {
        let [residual, weight, delta] = operands(device, &composed)?;
        let out = out_like(device, &residual)?;
        elementwise::add(&residual, &delta)?;
        rms_norm(&residual, &weight, EPS, &out)?;
        Ok(vec![Output::of("residual", &residual)?, Output::of("out", &out)?])
    })
}

fn gated(shape: Vec<usize>) -> Case {
    let label = format!("{shape:?} strided");
    let composed = shape.clone();
    Case::new("gated_rms_norm", label, Tolerance::OfLargest(1e-6), move |device| {
        let [x, weight, gate] = operands(device, &shape)?;
        let out = out_like(device, &x)?;
        gated_rms_norm(&x, &weight, &gate, EPS, &out)?;
        Ok(vec![Output::of("out", &out)?])
    })
    .equals("rms_norm, glu", move |device| {
        let [x, weight, gate] = operands(device, &composed)?;
        let out = out_like(device, &x)?;
        rms_norm(&x, &weight, EPS, &out)?;
        elementwise::glu(&gate, &out, Glu::Silu, &out)?;
        Ok(vec![Output::of("out", &out)?])
    })
}

fn l2(shape: Vec<usize>) -> Case {
    let label = format!("{shape:?} strided");
    let in_place = shape.clone();
    Case::new("l2_norm", label, Tolerance::OfLargest(1e-6), move |device| {
        let [x, _, out] = operands(device, &shape)?;
        l2_norm(&x, EPS, 0.125, &out)?;
        Ok(vec![Output::of("out", &out)?])
    })
    .equals("in place", move |device| {
        let [x, ..] = operands(device, &in_place)?;
        l2_norm(&x, EPS, 0.125, &x)?;
        Ok(vec![Output::of("out", &x)?])
    })
}
