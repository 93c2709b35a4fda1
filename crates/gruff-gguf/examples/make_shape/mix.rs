//! Which block type each tensor gets.

use std::str::FromStr;

use gruff_blocks::BlockType;

use crate::shape::{FeedForward, Role, Shape, Tensor};

/// A way to choose block types.
#[derive(Clone, Debug)]
pub(crate) enum Mix {
    /// llama-quantize's `Q4_K_M`: `Q4_K`, with `Q6_K` for the output matrix and, on "more bits" layers, for value
    /// projections and the last feed-forward matrix.
    Q4KM,
    /// One type for every matrix.
    Uniform(BlockType),
}

impl FromStr for Mix {
    type Err = gruff_blocks::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("Q4_K_M") { Ok(Mix::Q4KM) } else { text.parse().map(Mix::Uniform) }
    }
}

impl Mix {
    /// The name that files carry.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Mix::Q4KM => "Q4_K_M",
            Mix::Uniform(block_type) => block_type.name(),
        }
    }

    /// `general.file_type`, where llama.cpp has a number for the mix.
    pub(crate) fn file_type(&self) -> Option<u32> {
        let known = [
            ("F32", 0),
            ("F16", 1),
            ("Q4_0", 2),
            ("Q4_1", 3),
            ("Q8_0", 7),
            ("Q5_0", 8),
            ("Q5_1", 9),
            ("Q4_K_M", 15),
            ("Q6_K", 18),
            ("IQ4_NL", 25),
            ("IQ4_XS", 30),
            ("BF16", 32),
        ];
        known.iter().find(|(name, _)| *name == self.name()).map(|(_, number)| *number)
    }

    /// The type of `tensor`.
    pub(crate) fn block_type(&self, tensor: &Tensor, shape: &Shape) -> Result<BlockType, String> {
        let eight_experts = matches!(shape.feed_forward, FeedForward::Experts { count: 8, .. });
        if eight_experts && matches!(self, Mix::Q4KM) {
            return Err("the Q4_K_M rule for exactly eight experts is not known here".into());
        }
        Ok(match (self, tensor.role) {
            (_, Role::Exact) => BlockType::F32,
            (Mix::Uniform(block_type), _) => *block_type,
            (Mix::Q4KM, Role::Output) => BlockType::Q6_K,
            (Mix::Q4KM, Role::Value(i) | Role::Down(i)) if more_bits(i, shape.layers) => BlockType::Q6_K,
            (Mix::Q4KM, _) => BlockType::Q4_K,
        })
    }
}

/// The first and last eighth of the layers, and every third between.
fn more_bits(i: u32, layers: u32) -> bool {
    let eighth = layers / 8;
    i < eighth || i >= 7 * layers / 8 || (i - eighth) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_k_m_is_the_mix_of_llama_quantize() {
        // llama.cpp's snapshot for Qwen3.6-27B.
        let more: Vec<u32> = (0..8).chain((10..56).step_by(3)).chain(56..64).collect();
        let shape = Shape::named("27B").unwrap();
        let mut six_bits = Vec::new();
        for tensor in shape.tensors() {
            let block_type = Mix::Q4KM.block_type(&tensor, &shape).unwrap();
            assert_eq!(block_type == BlockType::F32, tensor.role == Role::Exact, "{}", tensor.name);
            if block_type == BlockType::Q6_K {
                six_bits.push(tensor.name);
            }
        }
        let mut expected = Vec::new();
        for layer in more {
            let value = if shape.is_linear(layer) { "attn_qkv" } else { "attn_v" };
            expected.push(format!("blk.{layer}.{value}.weight"));
            expected.push(format!("blk.{layer}.ffn_down.weight"));
        }
        expected.push("output.weight".into());
        assert_eq!(six_bits, expected);
    }

    #[test]
    fn every_block_type_is_a_mix() {
        assert!(matches!("iq4_xs".parse(), Ok(Mix::Uniform(BlockType::IQ4_XS))));
        assert!(matches!("q4_k_m".parse(), Ok(Mix::Q4KM)));
        assert!("Q4_K_X".parse::<Mix>().is_err());
    }
}
