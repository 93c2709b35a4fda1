//! Words apart: `tokenizer.ggml.model` = `whitespace`.

use super::Model;
use super::bpe::Bpe;
use super::vocab::Vocab;
use super::words::Seen;

/// BPE over words, which lose the white space around them.
#[derive(Debug)]
pub(crate) struct Whitespace {
    pub(crate) bpe: Bpe,
    pub(crate) lowercase: bool,
}

impl Model for Whitespace {
    fn encode(&self, vocab: &Vocab, text: &str, seen: &mut Seen, out: &mut Vec<u32>) {
        for word in text.split_whitespace() {
            if self.lowercase {
                self.bpe.encode(vocab, &word.to_lowercase(), seen, out);
            } else {
                self.bpe.encode(vocab, word, seen, out);
            }
        }
    }

    fn decode(&self, token: &[u8], out: &mut Vec<u8>) {
        self.bpe.decode(token, out);
    }
}
