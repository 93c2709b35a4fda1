//! Which angles a model rotates by.

use std::f64::consts::PI;

/// How the dimensions of a head are paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// (j, j + half): NeoX, Qwen, Gemma.
    NeoX,
    /// (2j, 2j + 1): Llama weights in GGUF order.
    Interleaved,
}

/// Multi-axis positions: which of (time, height, width) turns a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mrope {
    /// Pairs for time, height and width.
    pub sections: [usize; 3],
    /// Interleaved (pair j by axis j mod 3 while the axis has pairs left, else time) instead of consecutive.
    pub interleaved: bool,
}

impl Mrope {
    /// The axis (0 time, 1 height, 2 width) whose position turns pair `j`.
    pub fn axis(&self, j: usize) -> usize {
        let [time, height, _] = self.sections;
        if self.interleaved {
            let axis = j % 3;
            if axis != 0 && j < 3 * self.sections[axis] { axis } else { 0 }
        } else if j < time {
            0
        } else if j < time + height {
            1
        } else {
            2
        }
    }
}

/// How angles are stretched beyond the trained context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions divided by a factor (arXiv:2306.15595).
    Linear {
        /// The factor, 1 for none.
        factor: f64,
    },
    /// YaRN (arXiv:2309.00071).
    Yarn {
        /// Context extension factor.
        factor: f64,
        /// Context length the model was first trained for.
        original_context: usize,
        /// Rotations above which a pair is left alone (32).
        beta_fast: f64,
        /// Rotations below which a pair is interpolated (1).
        beta_slow: f64,
        /// Factor on cosines and sines; `None` for YaRN's 0.1 ln(factor) + 1.
        attention_factor: Option<f64>,
    },
    /// A divisor for each pair, as in `rope_freqs.weight` (Llama 3's smoothing and LongRoPE arrive this way).
    PerPair {
        /// One divisor a pair.
        divisors: Vec<f32>,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// Llama 3's smoothing between interpolated and untouched wavelengths.
    Llama3 {
        /// Context extension factor.
        factor: f64,
        /// Wavelengths above `original_context / low` are divided by `factor`.
        low_frequency_factor: f64,
        /// Wavelengths below `original_context / high` are left alone.
        high_frequency_factor: f64,
        /// Context length the model was first trained for.
        original_context: usize,
    },
}

/// The angles of one kind of layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    inv_freq: Vec<f64>,
    attention_factor: f64,
    style: RopeStyle,
    mrope: Option<Mrope>,
}

impl RopeSpec {
    /// Plain angles: pair j of `dims / 2` turns by `position * base^(-2j / dims)`.
    pub fn new(style: RopeStyle, dims: usize, base: f64) -> Self {
        let half = dims / 2;
        let inv_freq = (0..half).map(|j| base.powf(-2.0 * j as f64 / dims as f64)).collect();
        Self { inv_freq, attention_factor: 1.0, style, mrope: None }
    }

    /// The same angles, stretched.
    pub fn scaled(mut self, scaling: &RopeScaling) -> Self {
        match scaling {
            RopeScaling::Linear { factor } => self.inv_freq.iter_mut().for_each(|f| *f /= factor),
            RopeScaling::PerPair { divisors, attention_factor } => {
                for (frequency, divisor) in self.inv_freq.iter_mut().zip(divisors) {
                    *frequency /= f64::from(*divisor);
                }
                self.attention_factor = *attention_factor;
            }
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_context,
            } => {
                for frequency in &mut self.inv_freq {
                    let rotations = *original_context as f64 * *frequency / (2.0 * PI);
                    let smooth = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                    *frequency = (1.0 - smooth) * *frequency / factor + smooth * *frequency;
                }
            }
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
                self.stretch_yarn(*factor, *original_context as f64, *beta_fast, *beta_slow);
                self.attention_factor = attention_factor.unwrap_or(0.1 * factor.ln() + 1.0);
            }
        }
        self
    }

    /// The same angles, turned by three axes of position.
    pub fn with_mrope(mut self, mrope: Mrope) -> Self {
        self.mrope = Some(mrope);
        self
    }

    fn stretch_yarn(&mut self, factor: f64, context: f64, beta_fast: f64, beta_slow: f64) {
        let half = self.inv_freq.len();
        if half < 2 {
            return;
        }
        // The pair that makes `rotations` turns within the trained context, from inv_freq = base^(-j/half).
        let log_base = -self.inv_freq[half - 1].ln() * half as f64 / (half - 1) as f64;
        let pair_of = |rotations: f64| half as f64 * (context / (rotations * 2.0 * PI)).ln() / log_base;
        let low = pair_of(beta_fast).floor().max(0.0);
        let high = pair_of(beta_slow).ceil().min(2.0 * half as f64 - 1.0);
        let width = if high > low { high - low } else { 0.001 };
        for (j, frequency) in self.inv_freq.iter_mut().enumerate() {
            let interpolated = ((j as f64 - low) / width).clamp(0.0, 1.0);
            *frequency = *frequency / factor * interpolated + *frequency * (1.0 - interpolated);
        }
    }

    /// Pairs that turn.
    pub fn half(&self) -> usize {
        self.inv_freq.len()
    }

    /// Radians a position, for each pair.
    pub fn inv_freq(&self) -> &[f64] {
        &self.inv_freq
    }

    /// Factor on cosines and sines.
    pub fn attention_factor(&self) -> f64 {
        self.attention_factor
    }

    /// How dimensions are paired.
    pub fn style(&self) -> RopeStyle {
        self.style
    }

    /// Which axis of the step's positions turns pair `j`.
    pub fn axis(&self, j: usize) -> usize {
        self.mrope.map_or(0, |mrope| mrope.axis(j))
    }
}
