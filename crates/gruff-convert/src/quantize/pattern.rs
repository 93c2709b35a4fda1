//! Types asked for by the names of tensors.

use std::fmt;
use std::str::FromStr;

use gruff_blocks::BlockType;
use regex_automata::meta::Regex;

use crate::Error;

/// `PATTERN=TYPE`: the type of every tensor whose name has the pattern, a regular expression, in it.
#[derive(Clone, Debug)]
pub struct TensorType {
    text: String,
    pattern: Regex,
    block_type: BlockType,
}

impl TensorType {
    /// The type, if `name` matches.
    pub fn of(&self, name: &str) -> Option<BlockType> {
        self.pattern.is_match(name).then_some(self.block_type)
    }
}

/// As it is read.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.text, self.block_type)
    }
}

impl FromStr for TensorType {
    type Err = Error;

    /// Reads `PATTERN=TYPE`, such as `ffn_down=q6_k` or `blk\.[0-3]\.=q8_0`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |fault: String| Error::Argument(format!("tensor type {text:?}: {fault}"));
        let Some((pattern, block_type)) = text.rsplit_once('=').filter(|(pattern, _)| !pattern.is_empty())
        else {
            return Err(refuse("write PATTERN=TYPE, such as ffn_down=q6_k".to_owned()));
        };
        let block_type: BlockType = block_type.parse().map_err(|error| refuse(format!("{error}")))?;
        if !block_type.can_quantize() {
            return Err(refuse(format!("{block_type} is no type for weights")));
        }
        // Names are lower case; so are patterns, however they were written.
        let text = pattern.to_lowercase();
        let pattern = Regex::new(&text)
            .map_err(|error| refuse(format!("the pattern is no regular expression: {error}")))?;
        Ok(TensorType { text, pattern, block_type })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_anywhere_in_the_name() {
        let down: TensorType = "ffn_down=Q6_K".parse().unwrap();
        assert_eq!(down.of("blk.3.ffn_down.weight"), Some(BlockType::Q6_K));
        assert_eq!(down.to_string(), "ffn_down=Q6_K");
        assert_eq!(down.of("blk.3.ffn_up.weight"), None);
        let first: TensorType = r"^blk\.[0-3]\.=f16".parse().unwrap();
        assert_eq!(first.of("blk.2.attn_q.weight"), Some(BlockType::F16));
        assert_eq!(first.of("blk.12.attn_q.weight"), None);
    }

    #[test]
    fn faults_are_named() {
        for (text, part) in [
            ("ffn_down", "PATTERN=TYPE"),
            ("=q8_0", "PATTERN=TYPE"),
            ("a=q9", "q9"),
            ("(=q8_0", "expression"),
            ("a=i8", "I8"),
        ] {
            let error = text.parse::<TensorType>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(text), "{error}");
        }
    }
}
