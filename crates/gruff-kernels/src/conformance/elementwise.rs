//! Element-wise operations.

use super::{Case, Output, Tolerance, Values};
use crate::matmul::Glu;
use crate::{Device, Result, Tensor, elementwise};

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 6] = [&[1, 1], &[3, 7], &[2, 3, 8], &[4, 100], &[1, 70_001], &[90, 1031]];
    let mut cases = Vec::new();
    for shape in shapes {
        cases.extend(over(shape));
    }
    cases.push(Case::new("gather_rows", "5 of [4, 33]", Tolerance::Exact, |device| {
        let [x, _] = operands(device, &[4, 33], 1.0)?;
        let [_, out] = operands(device, &[5, 33], 1.0)?;
        elementwise::gather_rows(&x, &[3, 0, 0, 2, 1], &out)?;
        Ok(vec![Output::of("out", &out)?])
    }));
    cases.push(Case::new("copy", "[2, 3, 33] strided", Tolerance::Exact, |device| {
        let [x, out] = operands(device, &[2, 3, 33], 1.0)?;
        elementwise::copy(&x, &out)?;
        Ok(vec![Output::of("out", &out)?])
    }));
    cases
}

fn operands(device: &Device, shape: &[usize], deviation: f32) -> Result<[Tensor; 2]> {
    let mut values = Values::new(shape.iter().product::<usize>() as u64);
    Ok([values.strided(device, shape, deviation)?, values.strided(device, shape, deviation)?])
}

/// A case that writes its first operand.
fn case(
    op: &'static str,
    shape: &[usize],
    tolerance: Tolerance,
    deviation: f32,
    apply: impl Fn(&Tensor, &Tensor) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let shape = shape.to_vec();
    Case::new(op, format!("{shape:?} strided"), tolerance, move |device| {
        let [x, y] = operands(device, &shape, deviation)?;
        apply(&x, &y)?;
        Ok(vec![Output::of("x", &x)?])
    })
}

fn over(shape: &[usize]) -> Vec<Case> {
    let function = Tolerance::Relative(1e-6);
    let mut cases = vec![
        case("add", shape, Tolerance::Exact, 1.0, elementwise::add),
        case("scale", shape, Tolerance::Exact, 1.0, |x, _| elementwise::scale(x, 0.3)),
        case("softcap", shape, function, 40.0, |x, _| elementwise::softcap(x, 30.0)),
        case("sigmoid_mul", shape, function, 5.0, elementwise::sigmoid_mul),
        case("sigmoid_mul one a row", shape, function, 5.0, |x, y| {
            let last = y.shape().len() - 1;
            elementwise::sigmoid_mul(x, &y.narrow(last, 0, 1)?)
        }),
    ];
    // GELU's argument grows with the cube of the gate, and so does the error where the result vanishes.
    let gates =
        [("glu silu", Glu::Silu, function), ("glu gelu_tanh", Glu::GeluTanh, Tolerance::OfLargest(1e-6))];
    for (op, glu, tolerance) in gates {
        let up_shape = shape.to_vec();
        let in_place = case(op, shape, tolerance, 3.0, move |gate, up| elementwise::glu(gate, up, glu, gate));
        cases.push(in_place.equals("into up", move |device| {
            let [gate, up] = operands(device, &up_shape, 3.0)?;
            elementwise::glu(&gate, &up, glu, &up)?;
            Ok(vec![Output::of("x", &up)?])
        }));
    }
    cases
}
