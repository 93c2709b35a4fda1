//! Types whose sixteen codes stand for unevenly spaced levels: IQ4 and the 4-bit floats.

use super::mean_square;
use super::search::{self, Scale, Steps, hold, nearest, round, scale_of_levels, sums};
use crate::block::{F16, U16};
use crate::iq::{IQ4_NL, IQ4_NL_VALUES, IQ4_XS};
use crate::microscaling::{E2M1_DOUBLED, MXFP4, NVFP4, e8m0_half, ue4m3_half};

type Values = [f32; 256];

/// The code of the nearest level for every half of an integer in -128..128. Levels are integers, so that the borders
/// between them are borders between halves.
struct Levels {
    codes: [u8; 512],
    values: [f32; 16],
}

impl Levels {
    const fn new(levels: &[i8; 16]) -> Self {
        let mut table = Levels { codes: [0; 512], values: [0.0; 16] };
        let mut code = 0;
        while code < 16 {
            table.values[code] = levels[code] as f32;
            code += 1;
        }
        let mut at = 0;
        while at < 512 {
            let (mut best, mut least) = (0, i32::MAX);
            let mut code = 0;
            while code < 16 {
                // In quarters, from the middle of the half.
                let distance = (2 * (at as i32 - 256) + 1 - 4 * levels[code] as i32).abs();
                if distance < least {
                    (best, least) = (code, distance);
                }
                code += 1;
            }
            table.codes[at] = best as u8;
            at += 1;
        }
        table
    }

    #[inline(always)]
    fn code(&self, value: f32) -> u8 {
        let at = round(hold(2.0 * value - 0.5, -256.0, 255.0)) + 256.0;
        // The minimum tells the compiler what is so anyway.
        self.codes[(at as usize).min(511)]
    }

    #[inline(always)]
    fn snap(&self, value: f32) -> f32 {
        self.values[usize::from(self.code(value) & 15)]
    }

    /// The weighted squared error of values under a scale.
    fn error<const N: usize>(&self, x: &[f32; N], w: &[f32; N], scale: f32) -> f32 {
        let inverse = inverse(scale);
        let [error] = sums::<N, 1>(|i| {
            let difference = x[i] - scale * self.snap(x[i] * inverse);
            [w[i] * difference * difference]
        });
        error
    }

    /// Codes of values under a scale, the first half of them in the low half bytes.
    fn pack<const BYTES: usize>(&self, x: &[f32], scale: f32) -> [u8; BYTES] {
        let inverse = inverse(scale);
        std::array::from_fn(|k| self.code(x[k] * inverse) | self.code(x[k + BYTES] * inverse) << 4)
    }
}

static IQ4: Levels = Levels::new(&IQ4_NL_VALUES);
static E2M1: Levels = Levels::new(&E2M1_DOUBLED);

/// `1 / scale`, or 0 for scales so small that it would overflow: values under them are taken for zero.
fn inverse(scale: f32) -> f32 {
    if scale.abs() < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale }
}

/// Where the extreme value is put: at either end of the levels, and a little beyond or within.
fn ends() -> impl Iterator<Item = f32> {
    let around = |end: f32| (-4..=4).map(move |step| end * (1.0 + 0.04 * step as f32));
    around(-127.0).chain(around(113.0))
}

fn iq4_weights<const N: usize>(x: &[f32; N], importance: Option<&[f32; N]>, mean: f32) -> [f32; N] {
    match importance {
        Some(importance) => std::array::from_fn(|i| importance[i] * (2.0 * mean + x[i] * x[i]).sqrt()),
        None => x.map(f32::abs),
    }
}

pub(super) fn iq4_nl(x: &[f32; 32], importance: Option<&[f32; 32]>) -> IQ4_NL {
    let w = iq4_weights(x, importance, mean_square(x));
    let d = F16::from(scale_of_levels(x, &w, |value| IQ4.snap(value), ends()).value);
    IQ4_NL { d, qs: IQ4.pack(x, d.get()) }
}

pub(super) fn iq4_xs(x: &Values, importance: Option<&Values>) -> IQ4_XS {
    let w = iq4_weights(x, importance, mean_square(x));
    let (x, w) = (x.as_chunks::<32>().0, w.as_chunks::<32>().0);
    let found: [Scale; 8] =
        std::array::from_fn(|j| scale_of_levels(&x[j], &w[j], |value| IQ4.snap(value), ends()));
    let range = (-32.0, 31.0);
    let common =
        search::scale(&found.map(|f| f.value), &found.map(|f| f.weight), range, range.0, Steps::FINE);
    let d = F16::from(common.value);
    let scales: [f32; 8] = std::array::from_fn(|j| {
        let wanted = nearest(found[j].value * inverse(d.get()), range.0, range.1);
        let error = |scale: f32| IQ4.error(&x[j], &w[j], d.get() * scale);
        let others = [wanted - 1.0, wanted + 1.0];
        let possible = others.into_iter().filter(|scale| (range.0..=range.1).contains(scale));
        possible.fold(wanted, |best, other| if error(other) < error(best) { other } else { best })
    });
    let codes = scales.map(|scale| (scale + 32.0) as u16);
    let high = (0..8).fold(0, |word, j| word | (codes[j] >> 4) << (2 * j));
    let mut qs = [0; 128];
    for (j, packed) in qs.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        *packed = IQ4.pack(&x[j], d.get() * scales[j]);
    }
    IQ4_XS {
        d,
        scales_h: U16(high.to_le_bytes()),
        scales_l: std::array::from_fn(|k| (codes[2 * k] & 15 | (codes[2 * k + 1] & 15) << 4) as u8),
        qs,
    }
}

/// Importance, or all values alike.
fn even<const N: usize>(importance: Option<&[f32; N]>) -> [f32; N] {
    importance.copied().unwrap_or([1.0; N])
}

pub(super) fn mxfp4(x: &[f32; 32], importance: Option<&[f32; 32]>) -> MXFP4 {
    let w = even(importance);
    let largest = search::extreme(x).abs();
    // The largest level is 12 halves, 1.5 * 2^3: an exponent that puts the largest value between 8 and 16 halves, or
    // the next one.
    let exponent = (largest.to_bits() >> 23) as u8;
    let low = exponent.saturating_sub(2);
    let error = |e: u8| E2M1.error(x, &w, e8m0_half(e));
    let e = if low < 254 && error(low + 1) < error(low) { low + 1 } else { low };
    MXFP4 { e, qs: E2M1.pack(x, e8m0_half(e)) }
}

pub(super) fn nvfp4(x: &[f32; 64], importance: Option<&[f32; 64]>) -> NVFP4 {
    let w = even(importance);
    let (x, w) = (x.as_chunks::<16>().0, w.as_chunks::<16>().0);
    let mut block = NVFP4 { d: [0; 4], qs: [0; 32] };
    for (j, packed) in block.qs.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // The scale that puts the largest value at the largest level, and its neighbours; scales grow with their codes.
        let wanted = search::extreme(&x[j]).abs() / 12.0;
        let at = (0..0x7e_u8).take_while(|code| ue4m3_half(*code) < wanted).count() as u8;
        let error = |code: u8| E2M1.error(&x[j], &w[j], ue4m3_half(code));
        let possible = at.saturating_sub(2)..=at.saturating_add(1).min(0x7e);
        let code = possible.fold(at, |best, other| if error(other) < error(best) { other } else { best });
        block.d[j] = code;
        *packed = E2M1.pack(&x[j], ue4m3_half(code));
    }
    block
}
