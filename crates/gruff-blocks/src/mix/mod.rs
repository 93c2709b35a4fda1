//! Preset mixes: which block type each tensor of a model gets under a name such as `Q4_K_M`.
//!
//! The presets, their numbers and their choices are those of llama.cpp's `llama-quantize`, so that a file means the
//! same whoever made it. [`Preset`] is the table of names, [`Role`] tells what a tensor is for by its name, and
//! [`Mix`] makes the choices, tensor after tensor in the order of [`order`].

mod preset;
mod role;
mod rules;

use std::cmp::Ordering;

pub use preset::Preset;
pub use role::{Role, is_weight};

use crate::{BlockType, Error};

/// What the choices depend on besides the tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// `general.architecture`.
    pub architecture: String,
    /// `{architecture}.block_count`, all layers included.
    pub layers: u32,
    /// `{architecture}.expert_count`, 0 for a dense model.
    pub experts: u32,
    /// Attention heads of the first layer.
    pub heads: u32,
    /// Key-value heads of the first layer.
    pub kv_heads: u32,
}

impl Traits {
    /// Query heads that share a key-value head; 0 for a layer without attention.
    pub fn heads_per_kv(&self) -> u32 {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Whether the model is of the size class whose value projections are small enough to get more bits.
    fn is_70b(&self) -> bool {
        match (self.architecture.as_str(), self.layers) {
            ("llama", 80) => self.heads != self.kv_heads,
            ("qwen2" | "deci" | "olmo", 80) | ("jais2", 68) => true,
            _ => false,
        }
    }
}

/// What a person asked for beyond the preset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MixOptions {
    /// Every matrix gets the preset's base type.
    pub pure: bool,
    /// `output.weight` stays as it is.
    pub leave_output: bool,
    /// The type of `output.weight`, or of the embeddings where they are used twice.
    pub output: Option<BlockType>,
    /// The type of the token embeddings.
    pub token_embedding: Option<BlockType>,
    /// Whether there is an importance matrix: a few choices are bolder with one.
    pub importance: bool,
}

/// A tensor as the choice sees it.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its dimensions, row length first.
    pub shape: &'a [u64],
    /// The type it has.
    pub block_type: BlockType,
}

/// A tensor's type to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The type.
    pub block_type: BlockType,
    /// The type that the rules gave, where rows are not whole blocks of it.
    pub instead_of: Option<BlockType>,
}

/// Chooses types. Choices depend on how many tensors of a kind came before: give them in the order of [`order`].
#[derive(Clone, Debug)]
pub struct Mix<'a> {
    preset: Preset,
    traits: &'a Traits,
    options: &'a MixOptions,
    /// Whether the embeddings are the output matrix too.
    tied: bool,
    /// Value-like tensors in all.
    values: u32,
    seen: Seen,
}

/// Tensors of each kind that have been given a type by the rules.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    values: u32,
    down: u32,
    gate: u32,
    up: u32,
}

/// The order in which types are chosen: tensors outside layers first, then layer by layer, by name within each.
pub fn order(a: &str, b: &str) -> Ordering {
    role::layer(a).cmp(&role::layer(b)).then_with(|| a.cmp(b))
}

impl<'a> Mix<'a> {
    /// A chooser for a model with tensors of these names.
    pub fn new<'n>(
        preset: Preset,
        traits: &'a Traits,
        options: &'a MixOptions,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Self {
        let (mut tied, mut values) = (true, 0);
        for role in names.into_iter().map(Role::of) {
            tied &= role != Role::Output;
            values += u32::from(role.is_value());
        }
        Mix { preset, traits, options, tied, values, seen: Seen::default() }
    }

    /// The type of the next tensor. `asked` is the type that a person named for it.
    ///
    /// # Errors
    /// [`Error::RowLength`] when the rows are not whole blocks and the format has no smaller relative of the type.
    pub fn choose(&mut self, tensor: Described<'_>, asked: Option<BlockType>) -> Result<Choice, Error> {
        let kept = Choice { block_type: tensor.block_type, instead_of: None };
        let role = Role::of(tensor.name);
        let matrix = tensor.shape.iter().skip(1).any(|size| *size > 1);
        let left = self.options.leave_output && role == Role::Output;
        let Some(base) = self.preset.base().filter(|_| matrix && !left) else { return Ok(kept) };
        if !is_weight(tensor.name, &self.traits.architecture) {
            return Ok(kept);
        }
        // The per-layer embeddings follow the option for embeddings unless they are named themselves.
        let named = asked.is_some() && tensor.name == "per_layer_token_embd.weight";
        let chosen = match role {
            Role::TokenEmbedding if self.options.token_embedding.is_some() && !named => {
                self.options.token_embedding
            }
            Role::Output if self.options.output.is_some() => self.options.output,
            _ => asked,
        };
        let chosen = match chosen {
            Some(chosen) => chosen,
            None if base.is_scalar() || self.options.pure => base,
            None => self.by_rules(base, role, tensor)?,
        };
        fit(chosen, tensor.shape.first().copied().unwrap_or(1))
    }
}

/// The type itself where rows of `row` values are whole blocks of it, else its relative with smaller blocks, else F16.
fn fit(block_type: BlockType, row: u64) -> Result<Choice, Error> {
    use BlockType::*;
    let fits = |block_type: BlockType| row.is_multiple_of(block_type.values() as u64);
    if fits(block_type) {
        return Ok(Choice { block_type, instead_of: None });
    }
    let relative = match block_type {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        Q2_0 | Q2_K | Q3_K | TQ1_0 | TQ2_0 => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K | Q8_K => Q8_0,
        other if other.values() <= 32 => F16,
        _ => return Err(Error::RowLength { block_type, values: usize::try_from(row).unwrap_or(usize::MAX) }),
    };
    Ok(Choice { block_type: if fits(relative) { relative } else { F16 }, instead_of: Some(block_type) })
}

#[cfg(test)]
mod tests;
