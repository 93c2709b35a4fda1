//! Which tensors of a folder make which tensors of a GGUF file.

use std::collections::{BTreeMap, BTreeSet};

use gruff_blocks::BlockType;
use gruff_models::Names;

use super::{OutType, names};
use crate::architecture::{Config, Parameter, Sizes, parameters};
use crate::safetensors::Shards;
use crate::stream::{Job, Origin};
use crate::{Error, Result};

/// One tensor of the new file.
pub(super) struct Planned {
    pub(super) name: String,
    /// Row length first.
    pub(super) shape: Vec<u64>,
    pub(super) block_type: BlockType,
    pub(super) job: Job,
}

/// Finds everything that the model needs, and refuses what it does not know.
pub(super) fn plan(
    shards: &Shards,
    config: &Config,
    sizes: &Sizes,
    table: Names,
    out: OutType,
) -> Result<Vec<Planned>> {
    let mut found = Found { shards, by_plain_name: BTreeMap::new(), used: BTreeSet::new() };
    for name in shards.names() {
        // Blocks for multi-token prediction that are not wanted are no part of the sizes.
        if names::mtp_layer(name).is_some_and(|layer| layer >= sizes.mtp_layers) {
            continue;
        }
        if let Some(plain) = names::plain(name, sizes)
            && let Some(other) = found.by_plain_name.insert(plain, name.to_owned())
        {
            return Err(Error::tensor(shards.folder(), name, format!("is the same parameter as {other:?}")));
        }
    }
    let mut planned = Vec::new();
    for parameter in parameters(config.architecture(), table, sizes) {
        let Some(origin) = found.origin(&parameter)? else { continue };
        // The dimension of 1 in the middle is torch's for the channels of a depthwise convolution.
        let shape: Vec<u64> = match parameter.shape.as_slice() {
            [channels, 1, kernel] if !parameter.stacked => vec![*kernel, *channels],
            shape => shape.iter().rev().copied().collect(),
        };
        let columns = if parameter.shape.len() == 1 { 1 } else { shape[0] };
        let values: u64 = parameter.shape.iter().product();
        let block_type = out.of_tensor(&parameter.tensor, &shape);
        let job = Job { origin, rows: values / columns, columns, layout: parameter.layout, to_gguf: true };
        planned.push(Planned { name: parameter.tensor, shape, block_type, job });
    }
    match found.by_plain_name.iter().find(|(_, name)| !found.used.contains(*name)) {
        Some((_, name)) => {
            let fault = format!("has no place in a model of architecture {:?}", config.architecture());
            Err(Error::tensor(shards.folder(), name, fault))
        }
        None => Ok(planned),
    }
}

struct Found<'a> {
    shards: &'a Shards,
    by_plain_name: BTreeMap<String, String>,
    /// Names in the files.
    used: BTreeSet<String>,
}

impl Found<'_> {
    /// Where a parameter's values are; `None` for an optional one that is absent.
    fn origin(&mut self, parameter: &Parameter) -> Result<Option<Origin>> {
        let origin = if parameter.stacked {
            self.stack(parameter)?
        } else {
            self.take(&parameter.name, &parameter.shape)?.map(Origin::Whole)
        };
        if origin.is_none() && !parameter.optional {
            let fault = "is missing; the folder is incomplete, or config.json is of another model";
            return Err(Error::tensor(self.shards.folder(), &parameter.name, fault));
        }
        Ok(origin)
    }

    /// The file's name of a parameter that has to have this shape, if it is there.
    fn take(&mut self, plain: &str, shape: &[u64]) -> Result<Option<String>> {
        let Some(name) = self.by_plain_name.get(plain) else { return Ok(None) };
        let refuse = |fault: String| Error::tensor(self.shards.folder(), name, fault);
        let Some(tensor) = self.shards.tensor(name) else { return Ok(None) };
        if tensor.shape != shape {
            let found = &tensor.shape;
            return Err(refuse(format!("has the shape {found:?}, where config.json makes it {shape:?}")));
        }
        if tensor.known_dtype().is_none() {
            let dtype = &tensor.dtype;
            return Err(refuse(format!(
                "is of type {dtype}; only F32, F16, BF16 and F64 can be converted: save the model in one of these"
            )));
        }
        self.used.insert(name.clone());
        Ok(Some(name.clone()))
    }

    /// The experts of a layer: one tensor each, all in one, or gates and ups of all in one.
    fn stack(&mut self, parameter: &Parameter) -> Result<Option<Origin>> {
        let [experts, rows, columns] = parameter.shape[..] else { return Ok(None) };
        let stem = parameter.name.trim_end_matches(".weight");
        for whole in [stem, parameter.name.as_str()] {
            if let Some(name) = self.take(whole, &parameter.shape)? {
                return Ok(Some(Origin::Whole(name)));
            }
        }
        let Some((module, own)) = stem.rsplit_once('.') else { return Ok(None) };
        if let Some(half) = ["gate_proj", "up_proj"].iter().position(|name| *name == own) {
            for suffix in ["", ".weight"] {
                let both = [experts, 2 * rows, columns];
                if let Some(name) = self.take(&format!("{module}.gate_up_proj{suffix}"), &both)? {
                    return Ok(Some(Origin::Halves { name, rows, half: half as u64 }));
                }
            }
        }
        let mut names = Vec::new();
        for expert in 0..experts {
            let name = format!("{module}.{expert}.{own}.weight");
            match self.take(&name, &[rows, columns])? {
                Some(name) => names.push(name),
                None => {
                    let fault = "is missing; the folder is incomplete, or config.json is of another model";
                    return Err(Error::tensor(self.shards.folder(), name, fault));
                }
            }
        }
        Ok(Some(Origin::Stack { names, rows }))
    }
}
