//! Batches as Python writes them: rows of equal length, padded on the left or on the right.

use crate::{Error, Prompts, Result};

impl Prompts {
    /// The prompts in padded rows: of each, the tokens whose mask is 1. Padding never reaches the model.
    ///
    /// # Errors
    /// [`Error::Option`] when the shapes differ, a mask has other numbers than 0 and 1 or a hole, or a row has no
    /// token.
    pub fn from_padded(input_ids: &[Vec<u32>], attention_mask: &[Vec<u8>]) -> Result<Self> {
        let refuse = |fault: String| Err(Error::Option(format!("attention_mask: {fault}")));
        if input_ids.len() != attention_mask.len() {
            return refuse(format!(
                "it has {} rows, and input_ids {}",
                attention_mask.len(),
                input_ids.len()
            ));
        }
        let mut prompts = Vec::with_capacity(input_ids.len());
        for (row, (ids, mask)) in input_ids.iter().zip(attention_mask).enumerate() {
            if ids.len() != mask.len() {
                return refuse(format!("row {row} has {} entries for {} ids", mask.len(), ids.len()));
            }
            if let Some(other) = mask.iter().find(|entry| **entry > 1) {
                return refuse(format!(
                    "row {row} has a {other}; entries are 0 for padding and 1 for tokens"
                ));
            }
            let Some(first) = mask.iter().position(|entry| *entry == 1) else {
                return refuse(format!("row {row} has no token"));
            };
            let last = mask.iter().rposition(|entry| *entry == 1).unwrap_or(first);
            if mask[first..=last].contains(&0) {
                return refuse(format!("row {row} has padding between its tokens; pad on one side"));
            }
            prompts.push(ids[first..=last].to_vec());
        }
        Ok(Self(prompts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_goes_on_either_side() {
        let ids = [vec![0, 0, 5, 6], vec![1, 2, 3, 4], vec![7, 0, 0, 0]];
        let masks = [vec![0, 0, 1, 1], vec![1; 4], vec![1, 0, 0, 0]];
        let prompts = Prompts::from_padded(&ids, &masks).unwrap();
        assert_eq!(prompts.0, [vec![5, 6], vec![1, 2, 3, 4], vec![7]]);
    }

    #[test]
    fn masks_that_are_none_are_refused() {
        let ids = [vec![1, 2, 3]];
        for (mask, fault) in [
            (vec![vec![1, 0, 1]], "between its tokens"),
            (vec![vec![0; 3]], "no token"),
            (vec![vec![1; 2]], "2 entries for 3 ids"),
            (vec![vec![2; 3]], "row 0 has a 2"),
            (vec![], "0 rows"),
        ] {
            let message = Prompts::from_padded(&ids, &mask).unwrap_err().to_string();
            assert!(message.contains(fault), "{message}");
        }
    }
}
