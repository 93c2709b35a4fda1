//! Reading protocol buffers without their schema: <https://protobuf.dev/programming-guides/encoding>.

/// The fields of a message, in its order; `None` where it is damaged, and nothing behind that.
pub(super) struct Message<'a>(pub(super) &'a [u8]);

/// One field.
pub(super) struct Field<'a> {
    pub(super) number: u64,
    /// A number, or the bits of one.
    pub(super) value: u64,
    /// Text, bytes or a message.
    pub(super) bytes: Option<&'a [u8]>,
}

impl<'a> Iterator for Message<'a> {
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Message<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        let tag = self.varint()?;
        let (number, wire) = (tag >> 3, tag & 7);
        let (value, bytes) = match wire {
            0 => (self.varint()?, None),
            1 => (u64::from_le_bytes(*self.take(8)?.first_chunk()?), None),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                (0, Some(self.take(length)?))
            }
            5 => (u32::from_le_bytes(*self.take(4)?.first_chunk()?).into(), None),
            // Groups are out of use.
            _ => return None,
        };
        Some(Field { number, value, bytes })
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read() {
        let bytes = [8, 0x96, 1, 18, 2, b'h', b'i', 29, 0, 0, 128, 63];
        let fields: Vec<_> = Message(&bytes).map(Option::unwrap).collect();
        assert_eq!((fields[0].number, fields[0].value), (1, 150));
        assert_eq!(fields[1].bytes, Some(&b"hi"[..]));
        assert_eq!(f32::from_bits(fields[2].value as u32), 1.0);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let end = Message(&bytes).position(|field| field.is_none());
            proptest::prop_assert!(end.is_none_or(|at| at + 1 == Message(&bytes).count()));
        }
    }
}
