//! RWKV's "world" tokenizer: `tokenizer.ggml.model` = `rwkv`. At each position the longest token is taken.
//!
//! Tokens are any bytes, which GGUF writes with escapes: `\t`, `\n`, `\r`, `\xE4`, and a backslash before
//! anything else that stands for itself.

use super::Model;
use super::trie::Trie;
use super::vocab::{TOKENS, TokenType, Vocab};
use super::words::Seen;
use crate::Error;

/// The longest token first.
#[derive(Debug)]
pub(crate) struct Rwkv {
    tokens: Trie,
    unknown: Option<u32>,
}

impl Rwkv {
    pub(crate) fn new(vocab: &Vocab, unknown: Option<u32>) -> Result<Self, Error> {
        let mut tokens = Vec::with_capacity(vocab.len());
        for id in vocab.of_types(&[TokenType::Normal, TokenType::UserDefined, TokenType::Byte]) {
            let token = vocab.token(id).unwrap_or_default();
            let bytes = unescape(token).ok_or_else(|| {
                let token = String::from_utf8_lossy(token);
                Error::vocabulary(
                    TOKENS,
                    format!("token {id}, {token:?}, ends within an escape or has a bad one"),
                )
            })?;
            tokens.push((bytes, id));
        }
        let tokens = Trie::new(tokens.iter().map(|(bytes, id)| (bytes.as_slice(), *id)));
        Ok(Rwkv { tokens, unknown })
    }
}

fn unescape(token: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match *rest.next()? {
                b't' => b'\t',
                b'n' => b'\n',
                b'r' => b'\r',
                b'x' => 16 * hex(*rest.next()?)? + hex(*rest.next()?)?,
                other => other,
            },
            other => other,
        });
    }
    Some(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    Some(char::from(digit).to_digit(16)? as u8)
}

impl Model for Rwkv {
    fn encode(&self, _vocab: &Vocab, text: &str, _seen: &mut Seen, out: &mut Vec<u32>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let length = match self.tokens.prefixes(rest).last() {
                Some((length, id)) => {
                    out.push(id);
                    length
                }
                None => {
                    out.extend(self.unknown);
                    1
                }
            };
            rest = &rest[length..];
        }
    }

    fn decode(&self, token: &[u8], out: &mut Vec<u8>) {
        match unescape(token) {
            Some(bytes) => out.extend(bytes),
            None => out.extend_from_slice(token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_bytes() {
        assert_eq!(unescape(br"a\t\x0a\\\'\xE4").unwrap(), b"a\t\n\\'\xe4");
        for bad in [br"a\".as_slice(), br"\x1", br"\xg0"] {
            assert_eq!(unescape(bad), None);
        }
    }
}
