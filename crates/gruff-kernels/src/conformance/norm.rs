//! Norms.

use super::data::spoil_form;
use super::{Case, Output, Tolerance, Values};
use crate::matmul::{Glu, linear};
use crate::norm::{
    add_rms_norm, add_rms_norm_activation, gated_rms_norm, gated_rms_norm_activation, l2_norm, rms_norm,
    rms_norm_activation,
};
use crate::{Activation, DType, Device, PackedTensor, Result, Tensor, elementwise};
use gruff_blocks::{BlockType, synthetic};

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
        rms(vec![3, 2560]),
        add_rms(vec![3, 2560]),
    ]);
    // Few rows, and as many as cards take together, which is more where there are more multiprocessors: rows of whole groups of
    // 256 values and with a rest, wide ones, and heads of no whole vector.
    let many = [(70, 2560), (603, 1344), (37, 5120), (70, 800), (70, 1024), (45, 576)];
    for (tokens, width) in
        [(1, 512), (1, 576), (2, 1024), (3, 1280), (4, 2560), (6, 2560), (2, 5120)].into_iter().chain(many)
    {
        cases.push(for_products(tokens, width));
    }
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

/// Norms whose results go to products.
fn for_products(tokens: usize, width: usize) -> Case {
    const ROWS: usize = 9;
    #[derive(Clone, Copy)]
    enum Way {
        Fused,
        Apart,
        OneByOne,
    }
    let by = move |way| {
        move |device: &Device| {
            let mut values = Values::new((tokens + width) as u64);
            let packed = synthetic::random_blocks(BlockType::Q8_0, ROWS * width / 32, 7);
            let matrix = PackedTensor::from_bytes(device, &packed, BlockType::Q8_0, [1, ROWS, width])?;
            let weight = values.tensor(device, &[width], 1.0)?;
            let mut x = values.normal(tokens * width, 2.0);
            // Blocks that are rounded twice.
            x.iter_mut().step_by(307).for_each(|value| *value *= 60.0);
            let stream = device.tensor_f32(&x, &[tokens, width])?;
            let delta = values.tensor(device, &[tokens, width], 1.0)?;
            let h = device.zeros(DType::F32, &[tokens, width])?;
            let head = [128, 64, 100].into_iter().find(|head| width.is_multiple_of(*head)).unwrap_or(width);
            let heads = width / head;
            let head_weight = weight.narrow(0, 0, head)?;
            let outs = [(), (), ()].map(|()| device.zeros(DType::F32, &[tokens, ROWS]));
            let outs = outs.into_iter().collect::<Result<Vec<_>>>()?;
            let each = if matches!(way, Way::OneByOne) { 1 } else { tokens };
            for first in (0..tokens).step_by(each) {
                let part = |tensor: &Tensor| tensor.narrow(0, first, each);
                let (stream, delta, h) = (part(&stream)?, part(&delta)?, part(&h)?);
                for (added, out) in outs.iter().enumerate() {
                    spoil_form(device, each, width)?;
                    let activation = match (way, added) {
                        (Way::Apart, 0) => {
                            rms_norm(&stream, &weight, EPS, &h)?;
                            Activation::new(&h)?
                        }
                        (Way::Apart, 2) => {
                            let (x, gate) = (stream.split_last(heads)?, delta.split_last(heads)?);
                            gated_rms_norm(&x, &head_weight, &gate, EPS, &h.split_last(heads)?)?;
                            Activation::new(&h)?
                        }
                        (Way::Apart, _) => {
                            add_rms_norm(&stream, &delta, &weight, EPS, &h)?;
                            Activation::new(&h)?
                        }
                        (_, 0) => rms_norm_activation(&stream, &weight, EPS, &h)?,
                        (_, 2) => {
                            let (x, gate) = (stream.split_last(heads)?, delta.split_last(heads)?);
                            gated_rms_norm_activation(&x, &head_weight, &gate, EPS, &h)?
                        }
                        _ => add_rms_norm_activation(&stream, &delta, &weight, EPS, &h)?,
                    };
                    linear(&activation, &matrix, None, &part(out)?)?;
                }
            }
            let names = ["norm", "addition, norm", "gated norm"];
            names.into_iter().zip(&outs).map(|(name, out)| Output::of(name, out)).collect()
        }
    };
    // The reference does not round activations.
    Case::new("rms_norm for products", format!("[{tokens}, {width}]"), Tolerance::Nmse(1e-4), by(Way::Fused))
        .equals("apart", by(Way::Apart))
        .equals("one by one", by(Way::OneByOne))
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
