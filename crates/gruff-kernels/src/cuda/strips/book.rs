//! What codes are looked up in, as `blocks.cuh` reads it.

/// A type's book.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Book {
    /// Codes are what they are.
    None,
    /// Codes of four bits are numbers of these.
    Levels(&'static [i8; 16]),
    /// Codes are entries of four values, or of eight.
    Fours(&'static [[u8; 4]]),
    Eights(&'static [[u8; 8]]),
    /// The same of -1, 0 and 1, which an eighth is added to or taken from.
    Eighths(&'static [[i8; 8]]),
}

impl Book {
    /// 32-bit words.
    pub(crate) const fn words(self) -> usize {
        match self {
            Book::None => 0,
            Book::Levels(_) => 4,
            Book::Fours(entries) => entries.len(),
            Book::Eights(entries) => 2 * entries.len(),
            Book::Eighths(entries) => 2 * entries.len(),
        }
    }

    /// An entry's values one after the other, but of each four the second and the third have changed places; levels in order, 128 more.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes: Vec<u8> = match self {
            Book::None => return Vec::new(),
            Book::Levels(levels) => return levels.map(|level| (level as u8).wrapping_add(128)).to_vec(),
            Book::Fours(entries) => entries.as_flattened().to_vec(),
            Book::Eights(entries) => entries.as_flattened().to_vec(),
            // Room for the eighth, and no negative bytes; see IQ1_S in `blocks.cuh`.
            Book::Eighths(entries) => entries.as_flattened().iter().map(|g| (8 * g + 16) as u8).collect(),
        };
        bytes.chunks_exact_mut(4).for_each(|four| four.swap(1, 2));
        bytes
    }
}
