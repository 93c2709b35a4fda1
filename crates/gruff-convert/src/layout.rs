//! How the values of a tensor in safetensors and in GGUF differ: order, and simple functions of each value.

/// Swaps two axes of a range of positions: seen as `[outer, a, b, inner]` behind `skip` positions, it becomes
/// `[outer, b, a, inner]`. Positions outside stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transpose {
    pub(crate) skip: u64,
    pub(crate) outer: u64,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) inner: u64,
}

impl Transpose {
    /// Where the value comes from that stands at `position` afterwards.
    pub(crate) fn source(&self, position: u64) -> u64 {
        let Some(at) = position.checked_sub(self.skip) else { return position };
        let (a, b, inner) = (self.a, self.b, self.inner);
        let (block, c) = (at / inner, at % inner);
        let (outer, block) = (block / (a * b), block % (a * b));
        if outer >= self.outer {
            return position;
        }
        let (j, i) = (block / a, block % a);
        self.skip + ((outer * a + i) * b + j) * inner + c
    }

    /// The way back.
    pub(crate) fn inverse(self) -> Self {
        Transpose { a: self.b, b: self.a, ..self }
    }
}

/// What happens to each value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Values {
    /// Nothing.
    #[default]
    Same,
    /// GGUF holds 1 + w where transformers holds w: zero-centred norms.
    PlusOne,
    /// GGUF holds -exp(w): decay rates of linear attention.
    NegExp,
}

/// How a parameter in GGUF is made of the one in transformers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Order of rows: positions along the first dimension.
    pub(crate) rows: Option<Transpose>,
    /// Order within rows: positions along the last dimension.
    pub(crate) columns: Option<Transpose>,
    pub(crate) values: Values,
}

impl Layout {
    /// The order of GGUF's rows and columns in transformers' positions, and back with `to_gguf` false.
    pub(crate) fn order(&self, to_gguf: bool) -> (Option<Transpose>, Option<Transpose>) {
        let turn = |order: Option<Transpose>| if to_gguf { order } else { order.map(Transpose::inverse) };
        (turn(self.rows), turn(self.columns))
    }

    /// Applies the function of each value, or its inverse.
    pub(crate) fn apply(&self, to_gguf: bool, values: &mut [f32]) {
        let each = |values: &mut [f32], f: fn(f32) -> f32| values.iter_mut().for_each(|v| *v = f(*v));
        match (self.values, to_gguf) {
            (Values::Same, _) => {}
            (Values::PlusOne, true) => each(values, |w| w + 1.0),
            (Values::PlusOne, false) => each(values, |w| w - 1.0),
            // In f64, so that rounding is the only error.
            (Values::NegExp, true) => each(values, |w| -f64::from(w).exp() as f32),
            (Values::NegExp, false) => each(values, |w| (-f64::from(w)).ln() as f32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_swapped() {
        // Two key heads with three value heads each, of two rows, behind one other row.
        let order = Transpose { skip: 1, outer: 1, a: 2, b: 3, inner: 2 };
        let moved: Vec<u64> = (0..14).map(|position| order.source(position)).collect();
        assert_eq!(moved, [0, 1, 2, 7, 8, 3, 4, 9, 10, 5, 6, 11, 12, 13]);
    }

    #[test]
    fn values_lead_back() {
        for values in [Values::Same, Values::PlusOne, Values::NegExp] {
            let layout = Layout { values, ..Layout::default() };
            let before = [0.5_f32, -0.25, 1.5, 0.0];
            let mut after = before;
            layout.apply(true, &mut after);
            layout.apply(false, &mut after);
            assert!(before.iter().zip(after).all(|(b, a)| (b - a).abs() < 1e-6), "{values:?}: {after:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_inverse_leads_back(skip in 0_u64..5, outer in 1_u64..4, a in 1_u64..5, b in 1_u64..5, inner in 1_u64..4) {
            let order = Transpose { skip, outer, a, b, inner };
            for position in 0..skip + outer * a * b * inner + 3 {
                let there = order.source(position);
                proptest::prop_assert_eq!(order.inverse().source(there), position);
            }
        }
    }
}
