//! Types that store values one by one.

/// Converts each `N`-byte value; the lengths have been checked.
pub(crate) fn each<const N: usize>(packed: &[u8], out: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    let (packed, _) = packed.as_chunks::<N>();
    for (bytes, value) in packed.iter().zip(out) {
        *value = convert(*bytes);
    }
}
