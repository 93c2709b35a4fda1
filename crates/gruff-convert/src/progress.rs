/// Told how far a conversion is, in values.
pub trait Progress {
    /// The work begins: so many values in all.
    fn start(&self, total: u64);

    /// So many more values are done.
    fn advance(&self, values: u64);

    /// Everything is done.
    fn finish(&self);
}

/// Nobody listens.
impl Progress for () {
    fn start(&self, _: u64) {}

    fn advance(&self, _: u64) {}

    fn finish(&self) {}
}
