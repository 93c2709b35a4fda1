//! The sizes that all decoders share.

use crate::keys::Keys;
use crate::layers::AttentionConfig;
use crate::weights::Weights;
use crate::{CachePlan, LayerCache, ModelBase, ModelConfig, Names, Origin, Result};

/// Sizes of a decoder, in transformers' names.
#[derive(Clone, Debug)]
pub(crate) struct DecoderConfig {
    /// Layers of the trunk: `block_count` without the blocks for multi-token prediction.
    pub(crate) num_hidden_layers: usize,
    /// Blocks for multi-token prediction behind the trunk.
    pub(crate) num_nextn_layers: usize,
    pub(crate) hidden_size: usize,
    pub(crate) vocab_size: usize,
    pub(crate) max_position_embeddings: usize,
    /// One a block; 0 in blocks without attention.
    num_attention_heads: Vec<usize>,
    num_key_value_heads: Vec<usize>,
    pub(crate) head_dim: usize,
    pub(crate) value_head_dim: usize,
    pub(crate) rms_norm_eps: f32,
}

impl DecoderConfig {
    /// Reads and checks the sizes.
    pub(crate) fn new(keys: &Keys, names: Names) -> Result<Self> {
        let blocks = keys.block_count()?;
        let num_nextn_layers = keys.count("nextn_predict_layers")?;
        if num_nextn_layers >= blocks {
            let expected = format!("there are only {blocks} blocks");
            return Err(keys.refuse("nextn_predict_layers", num_nextn_layers, expected));
        }
        let hidden_size = keys.require_size("embedding_length")?;
        let heads_key = "attention.head_count";
        let num_attention_heads = match keys.per_layer(heads_key, blocks)? {
            Some(heads) => heads,
            None => vec![keys.require_size(heads_key)?; blocks],
        };
        let num_key_value_heads =
            keys.per_layer("attention.head_count_kv", blocks)?.unwrap_or_else(|| num_attention_heads.clone());
        let head_dim = match keys.size("attention.key_length")? {
            Some(dim) => dim,
            None => {
                let heads = num_attention_heads.iter().copied().max().unwrap_or(0);
                if heads == 0 || !hidden_size.is_multiple_of(heads) {
                    let expected = format!("{hidden_size} values cannot be shared out among that many heads");
                    return Err(keys.refuse(heads_key, heads, expected));
                }
                hidden_size / heads
            }
        };
        Ok(Self {
            num_hidden_layers: blocks - num_nextn_layers,
            num_nextn_layers,
            hidden_size,
            vocab_size: vocab_size(keys, names)?,
            max_position_embeddings: keys.context_length()?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            value_head_dim: keys.size("attention.value_length")?.unwrap_or(head_dim),
            rms_norm_eps: keys.require_positive("attention.layer_norm_rms_epsilon")? as f32,
        })
    }

    /// The attention of one layer: scores divided by the root of the head's width, all keys seen, no norms.
    pub(crate) fn attention(&self, keys: &Keys, layer: usize) -> Result<AttentionConfig> {
        let heads = self.num_attention_heads.get(layer).copied().unwrap_or(0);
        let kv_heads = self.num_key_value_heads.get(layer).copied().unwrap_or(0);
        if heads == 0 {
            return Err(keys.refuse("attention.head_count", heads, format!("layer {layer} has attention")));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let expected = format!("the {heads} query heads of layer {layer} cannot share that many");
            return Err(keys.refuse("attention.head_count_kv", kv_heads, expected));
        }
        Ok(AttentionConfig {
            hidden_size: self.hidden_size,
            heads,
            kv_heads,
            head_dim: self.head_dim,
            value_dim: self.value_head_dim,
            scale: (self.head_dim as f64).sqrt().recip() as f32,
            window: None,
            softcap: None,
            qk_norm: None,
            gated: false,
        })
    }

    /// Layers of the trunk and blocks behind it.
    pub(crate) fn num_blocks(&self) -> usize {
        self.num_hidden_layers + self.num_nextn_layers
    }

    /// What the model has in common with all others, once all its weights are loaded.
    pub(crate) fn base(
        &self,
        keys: &Keys,
        weights: &Weights,
        names: Names,
        caches: Vec<LayerCache>,
    ) -> Result<ModelBase> {
        let config = ModelConfig {
            architecture: keys.architecture().to_owned(),
            name: keys.gguf().metadata().str("general.name")?.map(str::to_owned),
            num_hidden_layers: self.num_hidden_layers,
            hidden_size: self.hidden_size,
            vocab_size: self.vocab_size,
            max_position_embeddings: self.max_position_embeddings,
            num_parameters: weights.parameters(),
            weight_bytes: weights.bytes(),
            caches: CachePlan::new(caches),
        };
        let (modules, parameters) = weights.take_named();
        let mut base =
            ModelBase::placed(config, weights.placement().clone(), names).with_named(modules, parameters);
        base.origin = Origin::of(keys.gguf());
        let place = weights.placement();
        if !weights.module("lm_head").exists() && !place.head().same(place.embedding()) {
            let (table, head) = ("model.embed_tokens.weight", "lm_head.weight");
            base.parameters = base.parameters.with_copy(table, head, place.head());
        }
        Ok(base)
    }

    /// The width of each layer's dense feed-forward.
    pub(crate) fn intermediate_size(&self, keys: &Keys) -> Result<Vec<usize>> {
        let key = "feed_forward_length";
        let blocks = self.num_blocks();
        let mut sizes = match keys.per_layer(key, blocks)? {
            Some(sizes) => sizes,
            None => vec![keys.require_size(key)?; blocks],
        };
        sizes.truncate(self.num_hidden_layers);
        match sizes.iter().position(|size| *size == 0) {
            Some(layer) => Err(keys.refuse(key, 0, format!("layer {layer} has a feed-forward"))),
            None => Ok(sizes),
        }
    }
}

/// Rows of the embedding table, which must agree with the vocabulary that the metadata state.
fn vocab_size(keys: &Keys, names: Names) -> Result<usize> {
    let embeddings = names.gguf("model.embed_tokens").unwrap_or_default() + ".weight";
    let rows = keys.gguf().require(&embeddings)?.rows();
    let stated = keys.size("vocab_size")?;
    let tokens = match keys.gguf().metadata().str_array("tokenizer.ggml.tokens")? {
        Some(tokens) if !tokens.is_empty() => Some(tokens.len()),
        _ => None,
    };
    // Some converters cut the table to the tokenizer's size and leave the key, others pad the table.
    let agrees = |size: &usize| *size as u64 == rows;
    let known = [stated, tokens];
    let mut known = known.iter().flatten().peekable();
    if let Some(&first) = known.peek()
        && !known.any(agrees)
    {
        let expected = format!("{embeddings:?} has {rows} rows");
        return Err(keys.refuse("vocab_size", first, expected));
    }
    // Ids are i32 on devices.
    if rows > i32::MAX as u64 {
        return Err(keys.refuse("vocab_size", rows, "token ids end at 2^31"));
    }
    Ok(rows as usize)
}
