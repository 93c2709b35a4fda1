//! How large the parts of a model are that can be placed.

use gruff_kernels::Device;

use crate::placement::layer_and_rest;
use crate::{Model, Placement, Weight};

/// Bytes of weights of each part that a [`Placement`] places.
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
            let bytes = match &weight {
                Weight::Packed(weight) => weight.tensor().packed_bytes() as u64,
                Weight::Dense(tensor) => (tensor.len() * tensor.dtype().bytes()) as u64,
            };
            let place = match layer_and_rest(name) {
                Some((layer, inner)) if inner.starts_with("mlp.experts.") => parts.experts.get_mut(layer),
                Some((layer, _)) => parts.layers.get_mut(layer),
                None if name.starts_with("model.embed_tokens.") => Some(&mut parts.embedding),
                None => {
                    parts.tied &= !name.starts_with("lm_head.");
                    Some(&mut parts.head)
                }
            };
            if let Some(place) = place {
                *place += bytes;
            }
        }
        parts
    }

    /// Whether layers have routed experts.
    pub fn is_sparse(&self) -> bool {
        self.experts.iter().any(|bytes| *bytes > 0)
    }

    /// Those that `placement` has on `device`.
    pub fn on(&self, placement: &Placement, device: &Device) -> u64 {
        let own = |place: &Device, bytes: u64| if place.same(device) { bytes } else { 0 };
        let (embedding, head) = (placement.embedding(), placement.head());
        let copied = self.tied && !head.same(embedding);
        let ends = own(embedding, self.embedding) + own(head, self.head);
        let copy = if copied { own(head, self.embedding) } else { 0 };
        let layers = self.layers.iter().enumerate().map(|(index, bytes)| own(placement.layer(index), *bytes));
        let experts =
            self.experts.iter().enumerate().map(|(index, bytes)| own(placement.experts(index), *bytes));
        ends + copy + layers.sum::<u64>() + experts.sum::<u64>()
    }
}
