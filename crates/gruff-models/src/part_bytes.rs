//! How large the parts of a model are that can be placed.

use std::collections::BTreeMap;
use std::ops::Range;

use gruff_blocks::BlockType;
use gruff_kernels::{Device, ROWS_TOGETHER};

use crate::layers::shared_rows;
use crate::placement::layer_and_rest;
use crate::shard::Shard;
use crate::{Model, Placement, Weight};

/// Bytes of weights of each part that a [`Placement`] places, as a file has them, and what devices take for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartBytes {
    /// The embedding table.
    pub embedding: u64,
    /// Every layer, without its routed experts.
    pub layers: Vec<u64>,
    /// The routed experts of every layer; 0 where it has none.
    pub experts: Vec<u64>,
    /// The final norm and the projection to logits.
    pub head: u64,
    /// Whether that projection is the embedding table: where the two are apart it takes as much again.
    pub tied: bool,
    weights: Vec<Part>,
}

/// One weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    place: Place,
    cut: Cut,
    size: Size,
}

/// Which part of a placement a weight belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Embedding,
    Layer(usize),
    Experts(usize),
    Head,
}

/// What several devices that share matrices out have of one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// All of it.
    Whole,
    /// Rows or columns, of as many heads.
    Rows,
    Columns,
    /// Rows or columns of a feed-forward's width.
    WidthRows,
    WidthColumns,
    /// Rows of the vocabulary.
    Vocabulary,
}

/// What it takes memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// A stack of matrices.
    Packed { block_type: BlockType, shape: [usize; 3] },
    /// So many bytes.
    Dense(usize),
}

impl PartBytes {
    /// Of a model, wherever its parts live.
    pub fn of(model: &dyn Model) -> Self {
        let layers = model.config().num_hidden_layers;
        let parameters = model.named_parameters();
        let mut parts =
            Self { layers: vec![0; layers], experts: vec![0; layers], tied: true, ..Self::default() };
        for name in parameters.names() {
            let Ok(weight) = parameters.get(name) else { continue };
            let part = Part::new(name, &weight);
            let bytes = match &weight {
                Weight::Packed(weight) => weight.tensor().packed_bytes(),
                Weight::Dense(tensor) => tensor.len() * tensor.dtype().bytes(),
            };
            let sum = match part.place {
                Place::Embedding => Some(&mut parts.embedding),
                Place::Layer(layer) => parts.layers.get_mut(layer),
                Place::Experts(layer) => parts.experts.get_mut(layer),
                Place::Head => {
                    parts.tied &= !name.starts_with("lm_head.");
                    Some(&mut parts.head)
                }
            };
            if let Some(sum) = sum {
                *sum += bytes as u64;
                parts.weights.push(part);
            }
        }
        parts
    }

    /// Whether layers have routed experts.
    pub fn is_sparse(&self) -> bool {
        self.experts.iter().any(|bytes| *bytes > 0)
    }

    /// What `device` takes for the weights that `placement` has there: as many bytes as in a file where they are borrowed from its
    /// map, on cards those of their own layout. Devices that share matrices out take about so much, as fewer key-value heads than
    /// devices are there more than once.
    pub fn on(&self, placement: &Placement, device: &Device) -> u64 {
        let weights = self.weights_on(placement, device);
        weights.iter().map(|part| part.bytes_on(device)).fold(0, u64::saturating_add)
    }

    /// What products of a step on `device` take beside its tensors, where they have up to `columns` columns: about so much, as
    /// matrices of one input are multiplied together.
    pub fn products_on(&self, placement: &Placement, device: &Device, columns: usize) -> u64 {
        let mut sums: BTreeMap<Place, u64> = BTreeMap::new();
        for Part { place, size, .. } in self.weights_on(placement, device) {
            let Size::Packed { block_type, shape: [1, rows, cols] } = size else { continue };
            let bytes = device.product_bytes(block_type, [rows, cols], columns) as u64;
            let sum = sums.entry(place).or_default();
            *sum = sum.saturating_add(bytes);
        }
        // Layer after layer takes the same memory.
        sums.into_values().max().unwrap_or(0)
    }

    /// The weights that `placement` has on a device, cut as they are there.
    fn weights_on(&self, placement: &Placement, device: &Device) -> Vec<Part> {
        let of = placement.ranks().len();
        let table = self.weights.iter().find(|part| part.place == Place::Embedding);
        let (mut own, again): (Vec<Part>, bool) = if of > 0 {
            let own = self.weights.iter().map(|part| part.shared_out(of)).collect();
            (own, table.is_some_and(|table| table.is_copied_by(of)))
        } else {
            let own = self.weights.iter().filter(|part| part.place.on(placement).same(device));
            let (head, embedding) = (placement.head(), placement.embedding());
            (own.copied().collect(), head.same(device) && !head.same(embedding))
        };
        if again && self.tied {
            let head = table.map(|table| Part { place: Place::Head, cut: Cut::Vocabulary, ..*table });
            own.extend(head.map(|head| if of > 0 { head.shared_out(of) } else { head }));
        }
        own
    }
}

impl Place {
    fn on(self, placement: &Placement) -> &Device {
        match self {
            Self::Embedding => placement.embedding(),
            Self::Layer(layer) => placement.layer(layer),
            Self::Experts(layer) => placement.experts(layer),
            Self::Head => placement.head(),
        }
    }
}

impl Part {
    fn new(name: &str, weight: &Weight) -> Self {
        let place = match layer_and_rest(name) {
            Some((layer, inner)) if inner.starts_with("mlp.experts.") => Place::Experts(layer),
            Some((layer, _)) => Place::Layer(layer),
            None if name.starts_with("model.embed_tokens.") => Place::Embedding,
            None => Place::Head,
        };
        let packed = match weight {
            Weight::Packed(weight) => weight,
            // Some vectors are shared out, too; they are small.
            Weight::Dense(tensor) => {
                return Self {
                    place,
                    cut: Cut::Whole,
                    size: Size::Dense(tensor.len() * tensor.dtype().bytes()),
                };
            }
        };
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let cut = match module.rsplit('.').next().unwrap_or(module) {
            "embed_tokens" | "gate" | "shared_expert_gate" => Cut::Whole,
            "gate_proj" | "up_proj" => Cut::WidthRows,
            "down_proj" => Cut::WidthColumns,
            "o_proj" | "out_proj" => Cut::Columns,
            "lm_head" => Cut::Vocabulary,
            _ => Cut::Rows,
        };
        let tensor = packed.tensor();
        let shape = [tensor.matrices(), tensor.rows(), tensor.cols()];
        let size = Size::Packed { block_type: tensor.block_type(), shape };
        Self { place, cut, size }
    }

    /// What the one of so many devices has of it that has most.
    fn shared_out(self, of: usize) -> Self {
        let Size::Packed { block_type, shape: [matrices, rows, cols] } = self.size else { return self };
        let most = |len: usize, part: &dyn Fn(Shard) -> Option<Range<usize>>| {
            let parts = (0..of).filter_map(|rank| part(Shard { rank, of }));
            parts.map(|part| part.len()).max().unwrap_or(len.div_ceil(of))
        };
        // A device that cannot have a part of it is told when the model is loaded.
        let width = |len: usize| most(len, &|shard| shard.columns("", len, block_type).ok());
        let (rows, cols) = match self.cut {
            Cut::Whole => (rows, cols),
            Cut::Rows => (rows.div_ceil(of), cols),
            Cut::Columns => (rows, cols.div_ceil(of).next_multiple_of(block_type.values())),
            Cut::WidthRows => (width(rows), cols),
            Cut::WidthColumns => (rows, width(cols)),
            Cut::Vocabulary => (most(rows, &|shard| shared_rows(shard, rows).ok()), cols),
        };
        let size = Size::Packed { block_type, shape: [matrices, rows, cols] };
        Self { size, ..self }
    }

    /// Whether one of so many devices has its rows of the vocabulary a second time, since no view of the table begins there.
    fn is_copied_by(&self, of: usize) -> bool {
        let Size::Packed { shape: [_, rows, _], .. } = self.size else { return false };
        let mut parts = (0..of).filter_map(|rank| shared_rows(Shard { rank, of }, rows).ok());
        parts.any(|part| !part.start.is_multiple_of(ROWS_TOGETHER))
    }

    fn bytes_on(&self, device: &Device) -> u64 {
        match self.size {
            Size::Packed { block_type, shape } => {
                device.packed_bytes(block_type, shape).map_or(u64::MAX, |bytes| bytes as u64)
            }
            Size::Dense(bytes) => device.dense_bytes(bytes) as u64,
        }
    }
}
