//! Values that depend on a seed alone, and tensors of them.

use crate::{DType, Device, Result, Tensor};

/// A stream of pseudo-random values.
#[derive(Clone, Debug)]
pub struct Values {
    state: u64,
}

impl Values {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 random bits (SplitMix64).
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// `n` values of about normal distribution with this deviation.
    pub fn normal(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        (0..n)
            .map(|_| {
                let sum: f64 = (0..6).map(|_| self.unit()).sum();
                ((sum - 3.0) * std::f64::consts::SQRT_2) as f32 * deviation
            })
            .collect()
    }

    /// `n` values between two bounds.
    pub fn between(&mut self, n: usize, low: f32, high: f32) -> Vec<f32> {
        (0..n).map(|_| low + (high - low) * self.unit() as f32).collect()
    }

    /// A tensor without gaps, of normal values.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn tensor(&mut self, device: &Device, shape: &[usize], deviation: f32) -> Result<Tensor> {
        device.tensor_f32(&self.normal(shape.iter().product(), deviation), shape)
    }

    /// A tensor of normal values that is a column range of a wider one: its outer dimensions are strided.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn strided(&mut self, device: &Device, shape: &[usize], deviation: f32) -> Result<Tensor> {
        let view = gaps(device, shape)?;
        view.write_f32(&self.normal(shape.iter().product(), deviation))?;
        Ok(view)
    }
}

/// Leaves NaN in the scratch memory that a form of `[rows, width]` for products in bfloat16 takes, so that whatever is not
/// written there shows.
pub(super) fn spoil_form(device: &Device, rows: usize, width: usize) -> Result<()> {
    // Rows are kept by eights, values by groups of 256.
    let floats = rows.next_multiple_of(8) * width.next_multiple_of(256) / 2;
    device.scratch(DType::F32, &[floats])?.write_f32(&vec![f32::NAN; floats])
}

/// A zeroed view into a wider tensor.
///
/// # Errors
/// [`crate::Error::OutOfMemory`].
pub(super) fn gaps(device: &Device, shape: &[usize]) -> Result<Tensor> {
    const BEFORE: usize = 3;
    const BEHIND: usize = 5;
    let mut wide = shape.to_vec();
    let last = wide.len() - 1;
    wide[last] += BEFORE + BEHIND;
    if last > 0 {
        wide[last - 1] += 1;
    }
    let mut view = device.zeros(DType::F32, &wide)?.narrow(last, BEFORE, shape[last])?;
    if last > 0 {
        view = view.narrow(last - 1, 1, shape[last - 1])?;
    }
    Ok(view)
}
