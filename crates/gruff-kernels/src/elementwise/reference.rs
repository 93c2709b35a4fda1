//! Element-wise operations in f64.

use super::ElementwiseOps;
use crate::matmul::Glu;
use crate::reference::{ReferenceDevice, load, store};
use crate::{Result, Tensor};

fn map(x: &Tensor, f: impl Fn(f64) -> f64) -> Result<()> {
    let values: Vec<f64> = load(x)?.into_iter().map(f).collect();
    store(x, &values)
}

impl ElementwiseOps for ReferenceDevice {
    fn add(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        let sum: Vec<f64> = load(x)?.iter().zip(load(y)?).map(|(a, b)| a + b).collect();
        store(x, &sum)
    }

    fn glu(&self, gate: &Tensor, up: &Tensor, glu: Glu, out: &Tensor) -> Result<()> {
        let values: Vec<f64> = load(gate)?.iter().zip(load(up)?).map(|(g, u)| glu.apply(*g) * u).collect();
        store(out, &values)
    }

    fn sigmoid_mul(&self, x: &Tensor, gate: &Tensor) -> Result<()> {
        let gates = load(gate)?;
        let shared = x.len().checked_div(gates.len()).unwrap_or(1);
        let values: Vec<f64> =
            load(x)?.iter().enumerate().map(|(i, v)| v / (1.0 + (-gates[i / shared]).exp())).collect();
        store(x, &values)
    }

    fn scale(&self, x: &Tensor, factor: f32) -> Result<()> {
        map(x, |v| v * f64::from(factor))
    }

    fn softcap(&self, x: &Tensor, cap: f32) -> Result<()> {
        map(x, |v| f64::from(cap) * (v / f64::from(cap)).tanh())
    }

    fn gather_rows(&self, x: &Tensor, rows: &[u32], out: &Tensor) -> Result<()> {
        for (r, row) in rows.iter().enumerate() {
            store(&out.narrow(0, r, 1)?, &load(&x.narrow(0, *row as usize, 1)?)?)?;
        }
        Ok(())
    }

    fn copy(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        store(out, &load(x)?)
    }
}
