//! SentencePiece's precompiled character map: `tokenizer.ggml.precompiled_charsmap`.
//!
//! The blob is the size of a double-array trie in bytes (u32, little-endian), the trie's units (u32 each) and
//! then the replacements, each ended by a zero byte. The trie is Darts-clone's: bit 31 marks a unit that holds a
//! value (an offset into the replacements) in the other bits; otherwise bits 0-7 are the byte that leads to the
//! unit, bit 8 says that a value hangs below, and bits 10-30 are the offset to the children, shifted left by 8
//! when bit 9 is set.

use std::borrow::Cow;

use crate::Error;

pub(crate) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// Replaces stretches of text by their normal forms, as a trained model did.
#[derive(Debug, Default)]
pub(crate) struct CharsMap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

const IS_VALUE: u32 = 1 << 31;

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

impl CharsMap {
    pub(crate) fn new(blob: &[u8]) -> Result<Self, Error> {
        let fault = |what: String| Error::vocabulary(CHARSMAP, what);
        let Some((size, rest)) = blob.split_first_chunk::<4>() else {
            return Err(fault(format!("{} bytes are too few for the size of its trie", blob.len())));
        };
        let size = u32::from_le_bytes(*size) as usize;
        if size >= rest.len() || !size.is_multiple_of(4) {
            return Err(fault(format!(
                "a trie of {size} bytes does not fit in the {} that follow",
                rest.len()
            )));
        }
        let (trie, replacements) = rest.split_at(size);
        if replacements.last() != Some(&0) || std::str::from_utf8(replacements).is_err() {
            return Err(fault("its replacements are not zero-ended UTF-8".to_owned()));
        }
        let units = trie.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
        Ok(CharsMap { units: units.collect(), replacements: replacements.to_vec() })
    }

    /// The longest stretch at the front of `text` that has a replacement: its length, and the replacement.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut at = offset(*self.units.first()?);
        let mut best = None;
        for (nth, byte) in text.bytes().enumerate() {
            // A zero byte would lead to the value of the node.
            if byte == 0 {
                break;
            }
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else { break };
            if unit & (IS_VALUE | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit & (1 << 8) != 0 {
                best = self.units.get(at).map(|value| (nth + 1, value & !IS_VALUE));
            }
        }
        let (length, start) = best.filter(|&(length, _)| text.is_char_boundary(length))?;
        let replacement = self.replacements.get(start as usize..)?;
        let end = replacement.iter().position(|&byte| byte == 0)?;
        Some((length, std::str::from_utf8(&replacement[..end]).ok()?))
    }

    /// The text with every stretch replaced, from the left, the longest first.
    pub(crate) fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.units.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut normal = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let length = match self.longest(rest) {
                Some((length, replacement)) => {
                    normal.push_str(replacement);
                    length
                }
                None => {
                    normal.push(c);
                    c.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        Cow::Owned(normal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_maps_are_refused() {
        let blob = |size: u32, rest: &[u8]| [&size.to_le_bytes(), rest].concat();
        for bad in [
            vec![],
            vec![1, 0],
            blob(8, &[0; 8]),
            blob(3, &[0; 9]),
            blob(4, b"\0\0\0\0abc"),
            blob(4, b"\0\0\0\0\xff\0"),
        ] {
            let error = CharsMap::new(&bad).unwrap_err().to_string();
            assert!(error.contains(CHARSMAP), "{error}");
        }
    }

    #[test]
    fn wild_offsets_lead_nowhere() {
        // A root whose children would lie beyond the units.
        let root: u32 = 0x1F_FFFF << 10;
        let blob = [&4_u32.to_le_bytes(), root.to_le_bytes().as_slice(), b"\0"].concat();
        assert_eq!(CharsMap::new(&blob).unwrap().apply("aé"), "aé");
    }
}
