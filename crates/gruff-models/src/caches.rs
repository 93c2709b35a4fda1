//! What a model remembers of its sequences, a layer at a time.

use gruff_kernels::{
    Device, KvDtype, KvLayer, PAGE_LEN, Recordings, StateLayer, StateShape, Step, StepTokens, Tensor,
};

use crate::snapshot::Copying;
use crate::{Error, Placement, Result};

/// What one layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerCache {
    /// Keys and values of every token, in pages.
    Kv {
        /// Key-value heads.
        kv_heads: usize,
        /// Width of a key head.
        key_dim: usize,
        /// Width of a value head.
        value_dim: usize,
    },
    /// A recurrent state of fixed size, in slots. `rollback` is set when caches are made.
    State(StateShape),
}

impl LayerCache {
    /// Bytes of keys and values that one token takes.
    pub fn bytes_per_token(&self, kv_dtype: KvDtype) -> usize {
        match *self {
            LayerCache::Kv { kv_heads, key_dim, value_dim } => {
                KvLayer::bytes_per_token(kv_dtype, kv_heads, key_dim, value_dim)
            }
            LayerCache::State(_) => 0,
        }
    }

    /// Bytes that the recurrent states of `slots` sequences take; `None` when they cannot be counted.
    pub fn state_bytes(&self, rollback: usize, slots: usize) -> Option<usize> {
        match *self {
            LayerCache::Kv { .. } => Some(0),
            LayerCache::State(shape) => StateShape { rollback, ..shape }.pool_bytes(slots),
        }
    }

    /// What one of `of` devices remembers that share the layer out; where there are fewer key-value heads than devices, some
    /// of these remember the same.
    fn shared_out(self, of: usize) -> Self {
        match self {
            Self::Kv { kv_heads, key_dim, value_dim } => {
                Self::Kv { kv_heads: kv_heads.div_ceil(of), key_dim, value_dim }
            }
            Self::State(shape) => {
                let (key_heads, value_heads) = (shape.key_heads.div_ceil(of), shape.value_heads.div_ceil(of));
                let conv_channels = shape.conv_channels.div_ceil(of);
                Self::State(StateShape { key_heads, value_heads, conv_channels, ..shape })
            }
        }
    }
}

/// What every layer of a model remembers: sizes to plan memory with, before any is taken. Of a model whose matrices are shared
/// out among devices, what every layer remembers on the first, then on the second, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePlan(Vec<LayerCache>);

impl CachePlan {
    /// A plan from the kinds of all layers, in order.
    pub fn new(layers: Vec<LayerCache>) -> Self {
        Self(layers)
    }

    /// That of the same model with its matrices shared out among so many devices ([`Placement::tensor_parallel`]).
    #[must_use]
    pub fn shared_out(&self, devices: usize) -> Self {
        let parts = std::iter::repeat_n(&self.0, devices).flatten();
        Self(parts.map(|layer| layer.shared_out(devices)).collect())
    }

    /// The kinds of all layers, in order.
    pub fn layers(&self) -> &[LayerCache] {
        &self.0
    }

    /// Whether any layer has a recurrent state, so that a sequence cannot be cut at an arbitrary token.
    pub fn is_recurrent(&self) -> bool {
        self.0.iter().any(|layer| matches!(layer, LayerCache::State(_)))
    }

    /// Bytes of keys and values that one token takes in all layers.
    pub fn bytes_per_token(&self, kv_dtype: KvDtype) -> usize {
        self.0.iter().map(|layer| layer.bytes_per_token(kv_dtype)).sum()
    }

    /// Bytes of a page of [`PAGE_LEN`] tokens in all layers.
    pub fn bytes_per_page(&self, kv_dtype: KvDtype) -> usize {
        PAGE_LEN * self.bytes_per_token(kv_dtype)
    }

    /// Bytes that the recurrent states of `slots` sequences take in all layers; `None` when they cannot be counted.
    pub fn state_bytes(&self, rollback: usize, slots: usize) -> Option<usize> {
        self.0.iter().try_fold(0_usize, |sum, layer| sum.checked_add(layer.state_bytes(rollback, slots)?))
    }

    /// Bytes of the caches that `options` ask for; `None` when they cannot be counted.
    pub fn bytes(&self, options: &CacheOptions) -> Option<usize> {
        let pages = self.bytes_per_page(options.kv_dtype).checked_mul(options.pages)?;
        pages.checked_add(self.state_bytes(options.rollback, options.slots)?)
    }
}

/// How large caches are and how exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// How keys and values are kept: f16, f32 for the exact path, or q8_0 in half the room.
    pub kv_dtype: KvDtype,
    /// Pages of [`PAGE_LEN`] tokens in the pool that sequences share.
    pub pages: usize,
    /// Recurrent-state slots: sequences at a time.
    pub slots: usize,
    /// How many of a sequence's last tokens may be dropped again.
    pub rollback: usize,
}

/// One layer's memory.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one a layer, made once")]
pub enum CacheLayer {
    /// Pages of keys and values.
    Kv(KvLayer),
    /// Slots of recurrent state.
    State(StateLayer),
}

/// The memory of all layers of a model, of each on its device.
///
/// Page and slot numbers mean the same in every layer; who owns which is the caller's business, told to each
/// step by its sequences.
#[derive(Debug)]
pub struct Caches {
    /// Steps that were recorded on them.
    recordings: Recordings,
    layers: Vec<CacheLayer>,
    options: CacheOptions,
    copying: Copying,
}

impl Caches {
    /// Takes the memory for `plan` on `device`.
    ///
    /// # Errors
    /// [`Error::Kernel`] when it cannot be had.
    pub fn new(device: &Device, plan: &CachePlan, options: &CacheOptions) -> Result<Self> {
        Self::placed(&Placement::on(device), plan, options)
    }

    /// Takes the memory for `plan`, of each layer on the device that `placement` says.
    ///
    /// # Errors
    /// [`Error::Kernel`] when it cannot be had.
    pub fn placed(placement: &Placement, plan: &CachePlan, options: &CacheOptions) -> Result<Self> {
        let CacheOptions { kv_dtype, pages, slots, rollback } = *options;
        let make = |(index, layer): (usize, &LayerCache)| -> Result<CacheLayer> {
            let device = placement.cache(index, plan.layers().len());
            Ok(match *layer {
                LayerCache::Kv { kv_heads, key_dim, value_dim } => {
                    CacheLayer::Kv(KvLayer::new(device, kv_dtype, pages, kv_heads, key_dim, value_dim)?)
                }
                LayerCache::State(shape) => {
                    CacheLayer::State(StateLayer::new(device, slots, StateShape { rollback, ..shape })?)
                }
            })
        };
        let layers = plan.layers().iter().enumerate().map(make).collect::<Result<_>>()?;
        Ok(Self::of(layers, options))
    }

    fn of(layers: Vec<CacheLayer>, options: &CacheOptions) -> Self {
        Self { recordings: Recordings::default(), layers, options: *options, copying: Copying::default() }
    }

    /// What one of `of` devices that share matrices out has of them: the same memory.
    pub(crate) fn of_rank(&self, rank: usize, of: usize) -> Self {
        let layers = self.layers.len() / of;
        let own = self.layers[rank * layers..(rank + 1) * layers].to_vec();
        Self::of(own, &self.options)
    }

    /// The layers' memory, in order.
    pub fn layers(&self) -> &[CacheLayer] {
        &self.layers
    }

    /// What they were made with.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// The snapshot that was taken last.
    pub(crate) fn copying(&self) -> &Copying {
        &self.copying
    }

    /// Steps that were recorded on these caches.
    pub(crate) fn recordings(&self) -> &Recordings {
        &self.recordings
    }

    /// Whether a step's ids, pages and slots, and what is drawn from its logits, are all there, on the devices of this placement:
    /// what operations check when they are called.
    pub(crate) fn admit(&self, step: &Step, vocab_size: usize, placement: &Placement) -> bool {
        let CacheOptions { pages, slots, .. } = self.options;
        let known = match step.tokens() {
            StepTokens::Ids(ids) => ids.iter().all(|id| (*id as usize) < vocab_size),
            StepTokens::Embeddings(_) => false,
        };
        let here = step.late().is_none_or(|late| late.ids().device().same(placement.embedding()));
        let drawn = step.draw().is_none_or(|draw| {
            let mut penalized = draw.specs().iter().flat_map(|spec| &spec.penalized);
            draw.ids().device().same(placement.head()) && penalized.all(|id| (*id as usize) < vocab_size)
        });
        known
            && drawn
            && here
            && step.sequences().iter().all(|sequence| {
                let needed = (sequence.past + sequence.len).div_ceil(PAGE_LEN);
                let own = sequence.pages.get(..needed);
                sequence.slot < slots
                    && own.is_some_and(|own| own.iter().all(|page| (*page as usize) < pages))
            })
    }

    /// Copies a page of keys and values in all layers.
    ///
    /// # Errors
    /// [`Error::Kernel`] when a page does not exist.
    pub fn copy_page(&mut self, from: u32, to: u32) -> Result<()> {
        for layer in &self.layers {
            if let CacheLayer::Kv(kv) = layer {
                copy_entries(kv.keys(), from, to, 1)?;
                copy_entries(kv.values(), from, to, 1)?;
            }
        }
        Ok(())
    }

    /// The bytes of a page of keys and values in all layers, as many as [`CachePlan::bytes_per_page`] says.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no such page.
    pub fn page_bytes(&self, page: u32) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for pool in self.pools() {
            bytes.extend_from_slice(&pool.narrow(0, page as usize, 1)?.to_raw()?);
        }
        Ok(bytes)
    }

    /// Fills a page with bytes that [`page_bytes`](Self::page_bytes) gave of caches like these.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no such page or the number of bytes is another.
    pub fn write_page(&mut self, page: u32, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        let pools: Vec<Tensor> = self.pools().cloned().collect();
        let last = pools.len().saturating_sub(1);
        for (index, pool) in pools.iter().enumerate() {
            let part = pool.narrow(0, page as usize, 1)?;
            let count = if index == last { rest.len() } else { part.len() * part.dtype().bytes() };
            let (own, others) = rest.split_at(count.min(rest.len()));
            part.write_raw(own)?;
            rest = others;
        }
        Ok(())
    }

    /// The tensors that pages lie in.
    fn pools(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flat_map(|layer| match layer {
            CacheLayer::Kv(kv) => vec![kv.keys(), kv.values()],
            CacheLayer::State(_) => Vec::new(),
        })
    }

    /// Copies a slot of recurrent state in all layers, with what it can be rolled back to.
    ///
    /// # Errors
    /// [`Error::Kernel`] when a slot does not exist.
    pub fn copy_slot(&mut self, from: u32, to: u32) -> Result<()> {
        for layer in &self.layers {
            if let CacheLayer::State(state) = layer {
                copy_entries(state.matrix(), from, to, state.shape().matrices())?;
                for rows in [state.keys(), state.updates(), state.decays(), state.conv()] {
                    copy_entries(rows, from, to, 1)?;
                }
            }
        }
        Ok(())
    }

    /// The keys and values of an attention layer.
    ///
    /// # Errors
    /// [`Error::Caches`] when the layer has none.
    pub fn kv(&self, layer: usize) -> Result<&KvLayer> {
        match self.layers.get(layer) {
            Some(CacheLayer::Kv(kv)) => Ok(kv),
            other => Err(Error::Caches { layer, needed: "keys and values", found: describe(other) }),
        }
    }

    /// Memory for the same layers, with other numbers of pages and slots.
    ///
    /// # Errors
    /// [`Error::Kernel`] when it cannot be had.
    pub fn like(&self, options: &CacheOptions) -> Result<Self> {
        let CacheOptions { kv_dtype, pages, slots, rollback } = *options;
        let make = |layer: &CacheLayer| -> Result<CacheLayer> {
            Ok(match layer {
                CacheLayer::Kv(kv) => {
                    let (key_dim, value_dim) = (kv.key_dim(), kv.value_dim());
                    let device = kv.keys().device();
                    CacheLayer::Kv(KvLayer::new(device, kv_dtype, pages, kv.kv_heads(), key_dim, value_dim)?)
                }
                CacheLayer::State(state) => {
                    let shape = StateShape { rollback, ..*state.shape() };
                    CacheLayer::State(StateLayer::new(state.matrix().device(), slots, shape)?)
                }
            })
        };
        let layers = self.layers.iter().map(make).collect::<Result<_>>()?;
        Ok(Self::of(layers, options))
    }

    /// The recurrent state of a linear-attention layer.
    ///
    /// # Errors
    /// [`Error::Caches`] when the layer has none.
    pub fn state(&self, layer: usize) -> Result<&StateLayer> {
        match self.layers.get(layer) {
            Some(CacheLayer::State(state)) => Ok(state),
            other => Err(Error::Caches { layer, needed: "a recurrent state", found: describe(other) }),
        }
    }
}

/// Copies entry `from` of the first axis to entry `to`, where `count` of them are one.
fn copy_entries(tensor: &Tensor, from: u32, to: u32, count: usize) -> Result<()> {
    let (from, to) = (from as usize * count, to as usize * count);
    let (from, to) = (tensor.narrow(0, from, count)?, tensor.narrow(0, to, count)?);
    Ok(to.copy_from(&from)?)
}

fn describe(layer: Option<&CacheLayer>) -> &'static str {
    match layer {
        None => "no such layer",
        Some(CacheLayer::Kv(_)) => "keys and values",
        Some(CacheLayer::State(_)) => "a recurrent state",
    }
}
