//! The alphabet of byte-level BPE: every byte as one printable character.
//!
//! GPT-2 wrote its vocabulary as text, so it gave the 68 bytes that are no visible Latin-1 character (controls,
//! the space, 0x7F to 0xA0 and 0xAD) the code points from U+0100 on, in order; the others stand for themselves.

/// First code point of the stand-ins.
const SHIFTED: u32 = 0x100;

const fn is_visible(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let (mut byte, mut shifted) = (0, SHIFTED);
    while byte < 256 {
        chars[byte] = if is_visible(byte as u8) {
            byte as u8 as char
        } else {
            shifted += 1;
            match char::from_u32(shifted - 1) {
                Some(c) => c,
                None => panic!("the stand-ins are Latin Extended-A"),
            }
        };
        byte += 1;
    }
    chars
};

/// Bytes by stand-in, counted from [`SHIFTED`].
const SHIFTED_BYTES: [u8; 68] = {
    let mut bytes = [0; 68];
    let (mut byte, mut shifted) = (0, 0);
    while byte < 256 {
        if !is_visible(byte as u8) {
            bytes[shifted] = byte as u8;
            shifted += 1;
        }
        byte += 1;
    }
    bytes
};

/// The character that stands for `byte`.
pub(crate) fn char_of(byte: u8) -> char {
    CHARS[byte as usize]
}

/// The byte that `c` stands for, if it is of the alphabet.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    match u8::try_from(c) {
        Ok(byte) => is_visible(byte).then_some(byte),
        Err(_) => SHIFTED_BYTES.get((c as u32).checked_sub(SHIFTED)? as usize).copied(),
    }
}

/// Appends `bytes` in the alphabet.
pub(crate) fn encode(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&byte| char_of(byte)));
}

/// Appends the bytes that `token` stands for; a token that is not all of the alphabet stands for itself.
pub(crate) fn decode(token: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let text = std::str::from_utf8(token).unwrap_or_default();
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                break;
            }
        }
    }
    if out.len() == start {
        out.extend_from_slice(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_one_to_one() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0xAD)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!((byte_of(' '), byte_of('ń'), byte_of('丶')), (None, None, None));
    }

    #[test]
    fn foreign_tokens_stand_for_themselves() {
        let mut out = Vec::new();
        decode("ĠcafÃ©".as_bytes(), &mut out);
        decode("<｜end｜>".as_bytes(), &mut out);
        decode(b"\xff", &mut out);
        assert_eq!(out, ["\u{20}café<｜end｜>".as_bytes(), b"\xff"].concat());
    }
}
