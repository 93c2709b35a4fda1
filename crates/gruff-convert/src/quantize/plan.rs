//! What becomes of each tensor.

use gruff_blocks::mix::{self, Described, Mix, MixOptions, Preset, Role, Traits};
use gruff_blocks::{BlockType, Error as BlockError};
use gruff_gguf::{Gguf, Metadata, ValueType};

use super::{QuantizeOptions, file_of};
use crate::{Error, Result};

/// A tensor, and what it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// Its name.
    pub name: String,
    /// Its dimensions, row length first.
    pub shape: Vec<u64>,
    /// The type it has.
    pub from: BlockType,
    /// The type it gets; the same if nothing is to be done.
    pub to: BlockType,
    /// The type it would get if its rows were whole blocks of that.
    pub instead_of: Option<BlockType>,
    /// Whether its new type is useless without importance, so that it is refused without.
    pub needs_importance: bool,
    /// Bytes it has.
    pub bytes_before: u64,
    /// Bytes it gets.
    pub bytes: u64,
}

impl TensorPlan {
    /// Values in all.
    pub fn values(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// What becomes of each tensor, in the order of the file.
#[derive(Clone, Debug)]
pub struct Plan {
    preset: Preset,
    tensors: Vec<TensorPlan>,
}

impl Plan {
    /// Chooses the types. Reads the header only.
    ///
    /// # Errors
    /// [`Error::Gguf`] when metadata that the choice depends on are missing or a tensor's type is unknown,
    /// [`Error::Tensor`] when a type does not go with a tensor's rows.
    pub fn new(model: &Gguf, options: &QuantizeOptions) -> Result<Self> {
        let traits = traits(model.metadata())?;
        let mix_options = MixOptions { importance: options.importance.is_some(), ..options.mix.clone() };
        let infos: Vec<_> = model.tensors().collect();
        let mut order: Vec<usize> = (0..infos.len()).collect();
        order.sort_by(|a, b| mix::order(infos[*a].name(), infos[*b].name()));
        let names = infos.iter().map(|info| info.name());
        let mut mix = Mix::new(options.preset, &traits, &mix_options, names);
        let mut tensors: Vec<Option<TensorPlan>> = vec![None; infos.len()];
        for at in order {
            let info = infos[at];
            let (name, shape, from) = (info.name(), info.shape(), info.block_type()?);
            let refuse = |error: BlockError| {
                Error::tensor(&file_of(model), name, format!("cannot be quantized: {error}"))
            };
            let asked = options.tensor_types.iter().find_map(|tensor_type| tensor_type.of(name));
            let choice = mix.choose(Described { name, shape, block_type: from }, asked).map_err(refuse)?;
            let needs_importance = choice.block_type != from
                && options.preset.needs_importance(choice.block_type, Role::of(name));
            tensors[at] = Some(TensorPlan {
                name: name.to_owned(),
                shape: shape.to_vec(),
                from,
                to: choice.block_type,
                instead_of: choice.instead_of,
                needs_importance,
                bytes_before: packed(from, info.values()),
                bytes: packed(choice.block_type, info.values()),
            });
        }
        Ok(Plan { preset: options.preset, tensors: tensors.into_iter().flatten().collect() })
    }

    /// The preset.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// Every tensor, in the order of the file.
    pub fn tensors(&self) -> &[TensorPlan] {
        &self.tensors
    }

    /// Bytes of all tensors as they are.
    pub fn bytes_before(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes_before).sum()
    }

    /// Bytes of all tensors as they will be.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Bits a value, over all tensors, as they will be.
    pub fn bits_per_value(&self) -> f64 {
        let values: u64 = self.tensors.iter().map(TensorPlan::values).sum();
        self.bytes() as f64 * 8.0 / (values as f64).max(1.0)
    }

    /// Refuses what only a dry run may plan.
    pub(super) fn check_ready(&self, model: &Gguf, options: &QuantizeOptions) -> Result<()> {
        let refuse =
            |tensor: &TensorPlan, fault: String| Err(Error::tensor(&file_of(model), &tensor.name, fault));
        if let Some(importance) = &options.importance {
            importance.check_fit(self, model)?;
        }
        for tensor in self.tensors.iter().filter(|tensor| tensor.from != tensor.to) {
            let weighed = options.importance.as_ref().is_some_and(|matrix| matrix.has(&tensor.name));
            if tensor.needs_importance && !weighed {
                let preset = self.preset;
                let fault = match options.importance {
                    None => format!(
                        "becomes {} under {preset}, which needs an importance matrix; give one with --imatrix",
                        tensor.to
                    ),
                    Some(_) => format!(
                        "becomes {} under {preset}, for which the importance matrix has no entry; make one that covers it, or give the tensor another type with --tensor-type",
                        tensor.to
                    ),
                };
                return refuse(tensor, fault);
            }
            if !tensor.from.is_scalar() && !options.allow_requantize {
                let fault = format!(
                    "is {} already, and packing it again as {} loses more than going from the original; \
                     use an F16, BF16 or F32 file, or allow it with --allow-requantize",
                    tensor.from, tensor.to
                );
                return refuse(tensor, fault);
            }
        }
        Ok(())
    }
}

/// Bytes of whole rows that the container or the mix has checked.
fn packed(block_type: BlockType, values: u64) -> u64 {
    (values / block_type.values() as u64).saturating_mul(block_type.bytes() as u64)
}

/// What the mixes want to know about a model.
fn traits(metadata: &Metadata) -> Result<Traits> {
    let architecture = metadata.require_str("general.architecture")?.to_owned();
    let key = |name: &str| format!("{architecture}.{name}");
    let layers = metadata.u32_or(&key("block_count"), 0)?;
    // One number for all layers or one for each: the first counts. As many as the file says are not to be made of one.
    let first = |name: &str| -> Result<Option<u32>> {
        let is_list = metadata.is(&key(name), ValueType::Array);
        let per_layer = metadata.u32_per_layer(&key(name), if is_list { layers as usize } else { 1 })?;
        Ok(per_layer.and_then(|numbers| numbers.first().copied()))
    };
    let heads = first("attention.head_count")?.unwrap_or(0);
    let kv_heads = first("attention.head_count_kv")?.unwrap_or(heads);
    let experts = metadata.u32_or(&key("expert_count"), 0)?;
    Ok(Traits { architecture, layers, experts, heads, kv_heads })
}
