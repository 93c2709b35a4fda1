//! Classifier-free guidance for language models (arXiv:2306.17806).

use super::spread::log_softmax;

/// Guides `logits` away from `negative`, the logits after the negative prompt:
/// `scale * (p - n) + n` of the logarithms of both distributions.
pub fn guide(logits: &mut [f32], negative: &[f32], scale: f32) {
    let (own, other) = (log_softmax(logits), log_softmax(negative));
    for ((logit, own), other) in logits.iter_mut().zip(own).zip(other) {
        let guided = f64::from(scale) * (own - other) + other;
        // Ruled out in both, or in the negative alone: what the prompt itself says stands.
        *logit = if guided.is_finite() { guided as f32 } else { own as f32 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ruled_out_gives_no_nan() {
        let mut logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 2.0];
        guide(&mut logits, &[f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 1.0], 1.5);
        assert!(logits.iter().all(|x| !x.is_nan()));
        assert_eq!((logits[0], logits[2]), (f32::NEG_INFINITY, f32::NEG_INFINITY));
        assert!(logits[3].is_finite());
    }
}
