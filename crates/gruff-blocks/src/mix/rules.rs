//! The rules of the mixes, role by role.

use super::{Described, Mix, Preset, Role, role};
use crate::{BlockType, BlockType::*, Error};

/// Where a tensor stands among those of its kind.
#[derive(Clone, Copy)]
struct Place {
    at: u32,
    of: u32,
}

impl Place {
    /// Within the first `1 / parts` of the layers.
    fn in_first(self, parts: u32) -> bool {
        self.at < self.of / parts
    }

    /// The first and the last eighth of the layers, and every third between.
    fn gets_more_bits(self) -> bool {
        let eighth = self.of / 8;
        self.at < eighth
            || u64::from(self.at) >= 7 * u64::from(self.of) / 8
            || self.at.checked_sub(eighth).is_some_and(|past| past % 3 == 2)
    }

    /// Neither in the first nor in the last eighth.
    fn is_in_the_middle(self) -> bool {
        !self.in_first(8) && u64::from(self.at) < 7 * u64::from(self.of) / 8
    }
}

impl Preset {
    /// The mixes of about two bits and below, which have rules of their own.
    fn is_smallest(self) -> bool {
        use Preset as P;
        matches!(self, P::IQ1_S | P::IQ1_M | P::IQ2_XXS | P::IQ2_XS | P::IQ2_S | P::IQ2_M)
    }
}

impl Mix<'_> {
    /// What the preset gives to a tensor, whatever the length of its rows.
    pub(super) fn by_rules(
        &mut self,
        base: BlockType,
        role: Role,
        tensor: Described<'_>,
    ) -> Result<BlockType, Error> {
        use Preset as P;
        let architecture = self.traits.architecture.as_str();
        if architecture == "glm5-next"
            && ["attn_q_a", "attn_q_b", "nextn.eh_proj"].iter().any(|part| tensor.name.contains(part))
        {
            return Ok(Q8_0);
        }
        if role == Role::Output || self.tied && role == Role::TokenEmbedding {
            let row = tensor.shape.first().copied().unwrap_or(1);
            return Ok(self.options.output.unwrap_or_else(|| self.output(base, row)));
        }
        if self.preset == P::MXFP4_MOE {
            // Latent attention has matrices of three dimensions too, which in this architecture are not experts.
            let expert = architecture != "bailingmoe3" || matches!(role, Role::Up | Role::Gate | Role::Down);
            let three = tensor.shape.get(2).is_some_and(|size| *size > 1);
            return Ok(if three && expert { MXFP4 } else { Q8_0 });
        }
        Ok(match role {
            Role::TokenEmbedding => self.token_embedding(base),
            _ if self.preset.is_smallest() => self.smallest(base, role),
            _ if role.is_value() => self.value(base),
            Role::AttentionK | Role::AttentionQ => self.key_or_query(base, role),
            Role::AttentionOutput => self.attention_output(base),
            Role::Down => {
                let place = self.place(self.seen.down, tensor.name)?;
                self.seen.down += 1;
                self.down(base, place)
            }
            Role::Gate => {
                let place = self.place(self.seen.gate, tensor.name)?;
                self.seen.gate += 1;
                self.gate_or_up(base, place)
            }
            Role::Up => {
                let place = self.place(self.seen.up, tensor.name)?;
                self.seen.up += 1;
                self.gate_or_up(base, place)
            }
            _ => base,
        })
    }

    /// The place of a feed-forward tensor: how many came before, or with experts, whose order is not that of the
    /// layers in some files, the layer in its name.
    fn place(&self, seen: u32, name: &str) -> Result<Place, Error> {
        let of = self.traits.layers;
        if self.traits.experts <= 1 {
            return Ok(Place { at: seen, of });
        }
        match role::layer(name) {
            Some(at) if at < of => Ok(Place { at, of }),
            _ => Err(Error::Layer { name: name.to_owned(), layers: of }),
        }
    }

    fn eight_experts(&self) -> bool {
        self.traits.experts == 8
    }

    fn shares_kv(&self) -> bool {
        self.traits.heads_per_kv() >= 4
    }

    fn is_falcon(&self) -> bool {
        self.traits.architecture == "falcon"
    }

    /// The matrix that gives the logits.
    fn output(&self, base: BlockType, row: u64) -> BlockType {
        use Preset as P;
        match self.preset {
            P::MXFP4_MOE => Q8_0,
            _ if self.is_falcon() || !row.is_multiple_of(base.values() as u64) => Q8_0,
            P::IQ3_XXS => Q5_K,
            preset if preset.is_smallest() => Q5_K,
            _ if base == Q8_0 => Q8_0,
            _ => Q6_K,
        }
    }

    fn token_embedding(&self, base: BlockType) -> BlockType {
        use Preset as P;
        match self.preset {
            P::IQ1_S | P::IQ1_M | P::IQ2_XXS | P::IQ2_XS => Q2_K,
            P::IQ2_S | P::IQ2_M | P::IQ3_XXS => IQ3_S,
            P::TQ1_0 | P::TQ2_0 | P::Q2_0 => Q4_K,
            _ => base,
        }
    }

    /// Everything inside layers, for the mixes of about two bits and below.
    fn smallest(&mut self, base: BlockType, role: Role) -> BlockType {
        use Preset as P;
        let larger = matches!(self.preset, P::IQ2_S | P::IQ2_M);
        match role {
            _ if role.is_value() => {
                self.seen.values += 1;
                match () {
                    _ if self.shares_kv() || self.traits.experts >= 4 => Q4_K,
                    _ if larger => IQ3_S,
                    _ => Q2_K,
                }
            }
            Role::AttentionK if self.eight_experts() => Q4_K,
            Role::Down => {
                let place = Place { at: self.seen.down, of: self.traits.layers };
                self.seen.down += 1;
                match place.in_first(8) {
                    true if larger => IQ3_S,
                    true => Q2_K,
                    false => base,
                }
            }
            Role::AttentionOutput if self.eight_experts() => Q5_K,
            Role::AttentionOutput => match self.preset {
                P::IQ1_S | P::IQ1_M => IQ2_XXS,
                P::IQ2_S | P::IQ2_M => IQ3_S,
                _ => base,
            },
            _ => base,
        }
    }

    fn value(&mut self, base: BlockType) -> BlockType {
        use Preset as P;
        let place = Place { at: self.seen.values, of: self.values };
        self.seen.values += 1;
        let shares_kv = self.shares_kv();
        let chosen = match self.preset {
            P::Q2_K if !shares_kv => Q3_K,
            P::Q2_K | P::Q2_K_S | P::IQ3_XXS | P::IQ3_XS | P::IQ3_S if shares_kv => Q4_K,
            P::IQ3_XXS if !self.options.importance => IQ3_S,
            P::IQ3_M => Q4_K,
            P::Q3_K_M if place.at < 2 => Q5_K,
            P::Q3_K_M => Q4_K,
            P::Q3_K_L => Q5_K,
            P::IQ4_NL | P::IQ4_XS if shares_kv => Q5_K,
            P::Q4_K_M | P::Q5_K_M if place.gets_more_bits() => Q6_K,
            P::Q4_K_S if place.at < 4 => Q5_K,
            _ => base,
        };
        match chosen {
            // Few values for many queries: precision costs next to nothing.
            _ if self.eight_experts() => Q8_0,
            Q3_K | Q4_K if self.traits.is_70b() => Q5_K,
            chosen => chosen,
        }
    }

    fn key_or_query(&self, base: BlockType, role: Role) -> BlockType {
        match self.preset {
            _ if role == Role::AttentionK && self.eight_experts() => Q8_0,
            Preset::IQ3_XS => IQ3_XXS,
            Preset::IQ3_XXS => IQ2_S,
            _ => base,
        }
    }

    fn attention_output(&self, base: BlockType) -> BlockType {
        use Preset as P;
        if self.is_falcon() {
            return if self.preset == P::Q3_K_L { Q4_K } else { base };
        }
        if self.eight_experts() {
            return match self.preset {
                P::Q2_K | P::Q3_K_S | P::Q3_K_M | P::Q4_K_S | P::Q4_K_M => Q5_K,
                P::IQ3_XXS | P::IQ3_XS | P::IQ3_S | P::IQ3_M | P::IQ4_NL | P::IQ4_XS => Q5_K,
                _ => base,
            };
        }
        match self.preset {
            P::Q2_K => Q3_K,
            P::IQ3_XXS => IQ3_S,
            P::Q3_K_M | P::IQ3_M => Q4_K,
            P::Q3_K_L => Q5_K,
            _ => base,
        }
    }

    fn down(&self, base: BlockType, place: Place) -> BlockType {
        use Preset as P;
        let importance = self.options.importance;
        let first = place.in_first(8);
        match self.preset {
            P::Q2_K => Q3_K,
            P::Q2_K_S if first => Q4_K,
            P::IQ3_XXS if !importance => {
                if first {
                    Q4_K
                } else {
                    Q3_K
                }
            }
            P::Q3_K_M if place.in_first(16) => Q5_K,
            P::Q3_K_M if self.is_falcon() && !place.gets_more_bits() => Q3_K,
            P::Q3_K_M => Q4_K,
            P::IQ3_M if first || self.eight_experts() && place.gets_more_bits() => Q4_K,
            P::Q3_K_L if self.is_falcon() => Q4_K,
            P::Q3_K_L => Q5_K,
            P::Q4_K_M if self.is_falcon() => match place {
                place if place.in_first(16) => Q6_K,
                place if place.gets_more_bits() => Q5_K,
                _ => Q4_K,
            },
            P::Q4_K_M | P::Q5_K_M if place.gets_more_bits() => Q6_K,
            P::IQ4_NL | P::IQ4_XS if first && !importance => Q5_K,
            P::Q4_K_S if first && !self.is_falcon() => Q5_K,
            // With importance the first layers of these two would otherwise come out worse than without.
            P::Q4_0 if first && importance => Q4_1,
            P::Q5_0 if first && importance => Q5_1,
            _ => base,
        }
    }

    fn gate_or_up(&self, base: BlockType, place: Place) -> BlockType {
        match self.preset {
            Preset::IQ3_XS if place.is_in_the_middle() => IQ3_XXS,
            _ => base,
        }
    }
}

impl Preset {
    /// Whether a tensor that gets `block_type` under this preset comes out useless without an importance matrix, so
    /// that it is refused.
    pub fn needs_importance(self, block_type: BlockType, role: Role) -> bool {
        match block_type {
            _ if matches!(role, Role::Output | Role::TokenEmbedding) => false,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS => true,
            Q2_K => self == Preset::Q2_K_S,
            _ => false,
        }
    }
}
