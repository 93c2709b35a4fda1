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
    /// Of layers and head, what every device has whole where matrices are shared out among several.
    pub shared: u64,
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
            let (bytes, dense) = match &weight {
                Weight::Packed(weight) => (weight.tensor().packed_bytes() as u64, false),
                Weight::Dense(tensor) => ((tensor.len() * tensor.dtype().bytes()) as u64, true),
            };
            // Some vectors are shared out, too; they are small.
            let router = [".mlp.gate.weight", ".mlp.shared_expert_gate.weight"];
            let whole = dense || router.iter().any(|end| name.ends_with(end));
            if whole && !name.starts_with("model.embed_tokens.") {
                parts.shared += bytes;
            }
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
        if !placement.ranks().is_empty() {
            return self.on_each(placement.ranks().len());
        }
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

    /// What each of so many devices has that share matrices out: about so much, as blocks are not cut, and fewer key-value
    /// heads than devices are there more than once.
    fn on_each(&self, devices: usize) -> u64 {
        let parts = self.layers.iter().chain(&self.experts).sum::<u64>() + self.head;
        self.embedding + self.shared + (parts - self.shared).div_ceil(devices as u64)
    }
}
