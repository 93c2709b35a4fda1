//! Which device each part of a model lives on.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use gruff_kernels::{Device, Rank};

use crate::shard::Shard;

/// Where the parts of a model live: the embedding table, every layer with what it remembers, the routed experts of every
/// layer, the head. A part is computed where it lives; the residual stream is carried to the device of the next layer, and
/// what experts read to theirs and back. Or every layer is on all of several devices, each of which has a part of its
/// matrices ([`tensor_parallel`](Self::tensor_parallel)).
///
/// Where devices round activations differently ([`Device::activations`]), results depend on the placement by more than the
/// order of sums.
#[derive(Clone)]
pub struct Placement {
    rest: Device,
    embedding: Option<Device>,
    head: Option<Device>,
    layers: BTreeMap<usize, Device>,
    experts: BTreeMap<usize, Device>,
    /// The devices that share matrices out; none where parts are whole.
    ranks: Vec<Device>,
    /// Which of such devices this is the placement on, where it is one's own.
    rank: Option<Rank>,
}

impl Placement {
    /// Everything on one device.
    pub fn on(device: &Device) -> Self {
        let (layers, experts) = (BTreeMap::new(), BTreeMap::new());
        let (ranks, rank) = (Vec::new(), None);
        Self { rest: device.clone(), embedding: None, head: None, layers, experts, ranks, rank }
    }

    /// Everything on all of these devices, each of which has a part of every matrix; the first leaves the logits.
    ///
    /// # Panics
    /// Without a device.
    pub fn tensor_parallel(devices: &[Device]) -> Self {
        Self { ranks: devices.to_vec(), ..Self::on(&devices[0]) }
    }

    /// What one of several devices has that compute together.
    pub(crate) fn of_rank(rank: Rank) -> Self {
        let device = rank.device().clone();
        Self { rank: Some(rank), ..Self::on(&device) }
    }

    /// The devices that share matrices out, in the order of their ranks; none where parts are whole.
    pub fn ranks(&self) -> &[Device] {
        &self.ranks
    }

    /// Which of several devices that compute together this is.
    pub(crate) fn rank(&self) -> Option<&Rank> {
        self.rank.as_ref()
    }

    /// The part of matrices that is here.
    pub(crate) fn shard(&self) -> Shard {
        self.rank.as_ref().map_or(Shard::WHOLE, |rank| Shard { rank: rank.rank(), of: rank.of() })
    }

    /// The same with these layers on `device`, and their experts unless those were placed.
    #[must_use]
    pub fn with_layers(mut self, layers: Range<usize>, device: &Device) -> Self {
        self.layers.extend(layers.map(|layer| (layer, device.clone())));
        self
    }

    /// The same with the routed experts of these layers on `device`.
    #[must_use]
    pub fn with_experts(mut self, layers: Range<usize>, device: &Device) -> Self {
        self.experts.extend(layers.map(|layer| (layer, device.clone())));
        self
    }

    /// The same with the embedding table on `device`.
    #[must_use]
    pub fn with_embedding(mut self, device: &Device) -> Self {
        self.embedding = Some(device.clone());
        self
    }

    /// The same with the final norm and the projection to logits on `device`. A head that is the embedding table is there
    /// a second time where the two are apart.
    #[must_use]
    pub fn with_head(mut self, device: &Device) -> Self {
        self.head = Some(device.clone());
        self
    }

    /// The device of the embedding table.
    pub fn embedding(&self) -> &Device {
        self.embedding.as_ref().unwrap_or(&self.rest)
    }

    /// The device of a layer and of what it remembers.
    pub fn layer(&self, layer: usize) -> &Device {
        self.layers.get(&layer).unwrap_or(&self.rest)
    }

    /// The device of the cache with this number, of so many in all: those of a layer, or of a layer's part.
    pub fn cache(&self, index: usize, caches: usize) -> &Device {
        match self.ranks.as_slice() {
            [] => self.layer(index),
            ranks => &ranks[(index * ranks.len() / caches.max(1)).min(ranks.len() - 1)],
        }
    }

    /// The device of a layer's routed experts, where it has any.
    pub fn experts(&self, layer: usize) -> &Device {
        self.experts.get(&layer).unwrap_or_else(|| self.layer(layer))
    }

    /// The device of the final norm and the head, which logits are left on.
    pub fn head(&self) -> &Device {
        self.head.as_ref().unwrap_or(&self.rest)
    }

    /// The device of a module, by its full name in transformers' naming.
    pub fn of_module(&self, name: &str) -> &Device {
        if let Some((layer, inner)) = layer_and_rest(name) {
            return match inner.strip_prefix("mlp.experts") {
                Some("") => self.experts(layer),
                Some(inner) if inner.starts_with('.') => self.experts(layer),
                _ => self.layer(layer),
            };
        }
        match name {
            "model.embed_tokens" => self.embedding(),
            _ => self.head(),
        }
    }

    /// The devices that parts of a model of so many layers live on, in the order in which a pass comes to them.
    pub fn devices(&self, layers: usize) -> Vec<&Device> {
        if !self.ranks.is_empty() {
            return self.ranks.iter().collect();
        }
        let mut devices = vec![self.embedding()];
        if !self.is_split() {
            return devices;
        }
        let parts = (0..layers).flat_map(|layer| [self.layer(layer), self.experts(layer)]);
        for device in parts.chain([self.head()]) {
            if !devices.iter().any(|known| known.same(device)) {
                devices.push(device);
            }
        }
        devices
    }

    /// Whether parts live on different devices.
    pub fn is_split(&self) -> bool {
        let named =
            self.layers.values().chain(self.experts.values()).chain(&self.embedding).chain(&self.head);
        let first = self.embedding();
        self.ranks.len() > 1 || !self.rest.same(first) || named.into_iter().any(|device| !device.same(first))
    }

    /// For people: each device and what of a model of so many layers lives there.
    pub fn describe(&self, layers: usize, sparse: bool) -> String {
        if !self.is_split() {
            return self.rest.name().to_owned();
        }
        if !self.ranks.is_empty() {
            let names: Vec<&str> = self.ranks.iter().map(Device::name).collect();
            return format!("tensor parallel: {}", names.join(", "));
        }
        let device = |own: &Device| {
            let mut parts = Vec::new();
            if own.same(self.embedding()) {
                parts.push("embeddings".to_owned());
            }
            let mine: Vec<usize> = (0..layers).filter(|layer| own.same(self.layer(*layer))).collect();
            let experts = |layer: &usize| own.same(self.experts(*layer));
            let without: Vec<usize> =
                mine.iter().copied().filter(|layer| sparse && !experts(layer)).collect();
            let whole: Vec<usize> = mine.into_iter().filter(|layer| !without.contains(layer)).collect();
            let only = |layer: &usize| sparse && experts(layer) && !own.same(self.layer(*layer));
            let only: Vec<usize> = (0..layers).filter(only).collect();
            parts.extend(ranges(&whole).map(|list| format!("layers {list}")));
            parts.extend(ranges(&without).map(|list| format!("layers {list} without their experts")));
            parts.extend(ranges(&only).map(|list| format!("experts of layers {list}")));
            if own.same(self.head()) {
                parts.push("head".to_owned());
            }
            format!("{}: {}", own.name(), parts.join(", "))
        };
        self.devices(layers).into_iter().map(device).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rest, embedding, head, layers, experts, ranks, rank } = self;
        f.debug_struct("Placement")
            .field("rest", rest)
            .field("embedding", embedding)
            .field("head", head)
            .field("layers", layers)
            .field("experts", experts)
            .field("ranks", ranks)
            .field("rank", &rank.as_ref().map(Rank::rank))
            .finish()
    }
}

/// `model.layers.3.mlp.experts` as 3 and `mlp.experts`.
pub(crate) fn layer_and_rest(name: &str) -> Option<(usize, &str)> {
    let inner = name.strip_prefix("model.layers.")?;
    let (layer, rest) = inner.split_once('.').unwrap_or((inner, ""));
    Some((layer.parse().ok()?, rest))
}

/// Rising numbers as `0-3, 7`; `None` where there are none.
fn ranges(numbers: &[usize]) -> Option<String> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == *number => run.end += 1,
            _ => runs.push(*number..number + 1),
        }
    }
    let shown = |run: &Range<usize>| match run.len() {
        1 => run.start.to_string(),
        _ => format!("{}-{}", run.start, run.end - 1),
    };
    (!runs.is_empty()).then(|| runs.iter().map(shown).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use gruff_kernels::Activations;

    use super::*;

    #[test]
    fn parts_are_found_by_the_names_of_modules() {
        let [a, b, c] = [0, 1, 2].map(|_| Device::reference(Activations::F32));
        let placement = Placement::on(&a).with_layers(2..4, &b).with_experts(1..3, &c).with_head(&b);
        for (name, device) in [
            ("model.embed_tokens", &a),
            ("model.layers.0", &a),
            ("model.layers.0.mlp.experts.up_proj", &a),
            ("model.layers.1.mlp.experts", &c),
            ("model.layers.1.mlp.experts.down_proj", &c),
            ("model.layers.1.mlp.expertsish", &a),
            ("model.layers.1.mlp.shared_expert.up_proj", &a),
            ("model.layers.2.self_attn.q_proj", &b),
            ("model.layers.2.mlp.experts.up_proj", &c),
            ("model.layers.3.mlp.experts.up_proj", &b),
            ("model.norm", &b),
            ("lm_head", &b),
        ] {
            assert!(placement.of_module(name).same(device), "{name}");
        }
        assert_eq!(placement.devices(4).len(), 3);
        assert!(placement.is_split() && !Placement::on(&a).is_split());
        assert!(!Placement::on(&a).with_layers(0..3, &a).is_split());
        let told = placement.describe(4, true);
        let name = a.name();
        assert_eq!(
            told,
            format!(
                "{name}: embeddings, layers 0, layers 1 without their experts; {name}: experts of layers 1-2; \
                 {name}: layers 3, layers 2 without their experts, head"
            )
        );
    }
}
