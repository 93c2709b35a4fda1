//! Where messages begin in a prompt.

use super::Tokenizer;
use super::vocab::TokenType;

impl Tokenizer {
    /// The positions in a prompt before which a message begins, ascending: what a later prompt of the same conversation
    /// is likely to share with this one ends at one of them.
    ///
    /// Told by the tokens that chat templates put there: control tokens (`<|im_start|>`, `<start_of_turn>`, `[INST]`)
    /// that neither begin a sequence nor end an answer; in vocabularies where those are plain text, such as DeepSeek's
    /// `<｜User｜>`, tokens that are always one. Of several in a row the first counts. It is a guess, good enough to say
    /// where to keep a state.
    pub fn message_borders(&self, ids: &[u32]) -> Vec<usize> {
        let of = |kind: TokenType| {
            let opens = |id: u32| {
                self.token_type(id) == kind && !self.is_end_of_generation(id) && Some(id) != self.bos()
            };
            let begins = |at: &usize| opens(ids[*at]) && !(*at > 0 && opens(ids[at - 1]));
            (0..ids.len()).filter(begins).collect::<Vec<_>>()
        };
        let borders = of(TokenType::Control);
        if borders.is_empty() { of(TokenType::UserDefined) } else { borders }
    }
}
