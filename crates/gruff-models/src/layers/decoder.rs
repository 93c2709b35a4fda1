use gruff_kernels::rope::RopeSpec;
use gruff_kernels::{Step, Tensor};

use super::{Embedding, Forward, Head, Residual, RopeTable};
use crate::config::DecoderConfig;
use crate::keys::Keys;
use crate::weights::{Module, Weights};
use crate::{Caches, ForwardOptions, LayerCache, Model, ModelBase, ModelOutput, ModuleKind, Names, Result};

/// One of the layers that a [`Decoder`] stacks.
pub(crate) trait Layer: Send + Sync + 'static {
    /// Its full name.
    fn name(&self) -> &str;

    /// What it remembers.
    fn cache(&self) -> LayerCache;

    /// Adds its branches to the residual stream.
    fn forward(&self, cx: &Forward, x: &mut Residual, rope: &RopeTable, caches: &Caches) -> Result<()>;
}

/// Layers between an embedding and a head, all with the same rotary positions: what most architectures are.
pub(crate) struct Decoder<L> {
    base: ModelBase,
    embed_tokens: Embedding,
    layers: Vec<L>,
    head: Head,
    rope: RopeSpec,
}

impl<L: Layer> Decoder<L> {
    /// Puts the model together; `layer` loads each layer from its module.
    pub(crate) fn load(
        keys: &Keys,
        weights: &Weights,
        names: Names,
        config: &DecoderConfig,
        rope: RopeSpec,
        layer: impl Fn(usize, Module) -> Result<L>,
    ) -> Result<Box<dyn Model>> {
        let embed_tokens = Embedding::load(weights, config, 1.0)?;
        let layers = (0..config.num_hidden_layers)
            .map(|index| {
                let w = weights.module(format!("model.layers.{index}"));
                w.declare(ModuleKind::Layer);
                layer(index, w)
            })
            .collect::<Result<Vec<_>>>()?;
        let head = Head::load(weights, config, &embed_tokens, None)?;
        let caches = layers.iter().map(L::cache).collect();
        let base = config.base(keys, weights, names, caches)?;
        Ok(Box::new(Self { base, embed_tokens, layers, head, rope }))
    }
}

impl<L: Layer> Model for Decoder<L> {
    fn base(&self) -> &ModelBase {
        &self.base
    }

    fn draws(&self) -> bool {
        true
    }

    fn takes_late_ids(&self) -> bool {
        self.is_as_loaded() && self.base.takes_late_ids()
    }

    fn forward(&self, step: &Step, caches: &mut Caches) -> Result<Tensor> {
        Ok(self.forward_with(step, caches, &ForwardOptions::default())?.logits)
    }

    fn forward_with(
        &self,
        step: &Step,
        caches: &mut Caches,
        options: &ForwardOptions,
    ) -> Result<ModelOutput> {
        let cx = Forward::new(&self.base, step, options)?;
        let caches = &*caches;
        let logits = cx.logits(&self.base, caches, |cx| self.pass(cx, caches))?;
        Ok(cx.finish(logits))
    }
}

impl<L: Layer> Decoder<L> {
    fn pass(&self, cx: &Forward, caches: &Caches) -> Result<Tensor> {
        let mut x = self.embed_tokens.forward(cx)?;
        let mut rope = cx.rope(&self.rope)?;
        for (index, layer) in self.layers.iter().enumerate() {
            if x.enter(cx, cx.placement.layer(index))? {
                rope = cx.rope(&self.rope)?;
            }
            if cx.is_idle() {
                continue;
            }
            if !x.replaced(cx, layer.name())? {
                layer.forward(cx, &mut x, &rope, caches)?;
            }
            if index + 1 < self.layers.len() {
                x.keep(cx)?;
            }
        }
        self.head.forward(cx, x)
    }
}
