/// Told how downloads go. All calls come from the thread that downloads, one file after another.
pub trait Progress: Send + Sync {
    /// A file begins, or begins again from another place: `done` of `total` bytes are there. `total` is `None` when
    /// the server does not tell.
    fn start(&self, name: &str, total: Option<u64>, done: u64);

    /// So many more bytes have arrived.
    fn advance(&self, bytes: u64);

    /// The file is whole and checked.
    fn finish(&self);

    /// Something that a person may want to know while waiting: a retry, another process at the same file, an answer
    /// from the cache because the Hub cannot be reached.
    fn notice(&self, message: &str) {
        let _ = message;
    }
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _name: &str, _total: Option<u64>, _done: u64) {}

    fn advance(&self, _bytes: u64) {}

    fn finish(&self) {}
}
