//! Norms in f64.

use super::NormOps;
use crate::reference::{ReferenceDevice, load, store};
use crate::{Result, Tensor};

fn rms(x: &[f64], weight: &[f64], eps: f32) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len().max(1)) {
        let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        out.extend(row.iter().zip(weight).map(|(v, w)| v * factor * w));
    }
    out
}

impl NormOps for ReferenceDevice {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        store(out, &rms(&load(x)?, &load(weight)?, eps))
    }

    fn add_rms_norm(
        &self,
        residual: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        let sum: Vec<f64> = load(residual)?.iter().zip(load(delta)?).map(|(a, b)| a + b).collect();
        store(residual, &sum)?;
        self.rms_norm(residual, weight, eps, out)
    }

    fn gated_rms_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        let normed = rms(&load(x)?, &load(weight)?, eps);
        let gated: Vec<f64> =
            normed.iter().zip(load(gate)?).map(|(v, z)| v * z / (1.0 + (-z).exp())).collect();
        store(out, &gated)
    }

    fn l2_norm(&self, x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()> {
        let width = x.shape()[x.shape().len() - 1];
        let mut result = Vec::with_capacity(x.len());
        for row in load(x)?.chunks_exact(width.max(1)) {
            let sum: f64 = row.iter().map(|v| v * v).sum();
            let factor = f64::from(scale) / (sum + f64::from(eps)).sqrt();
            result.extend(row.iter().map(|v| v * factor));
        }
        store(out, &result)
    }
}
