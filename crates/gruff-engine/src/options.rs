//! What an engine is made with.

use std::path::PathBuf;

use gruff_kernels::{Device, KvDtype};

use crate::Context;

/// Of what occupies a device, the part that prompts have beside answers in progress: two chunks of the delta rule on a
/// processor, which are enough to read a weight for.
const BESIDE_ANSWERS: usize = 4;

/// Tokens of a step that need no more room than a step has anyway.
pub(crate) const LEAST_TOKENS: usize = 512;

/// A folder for what is kept of earlier requests.
///
/// Several engines and models may share it. What another model, another number type or another version of gruff
/// computed is not read. A model that hooks, weights or adapters have changed since the engine was made neither reads
/// nor writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixCacheFolder {
    /// Where it is; made if need be. Who may read it may read the tokens of requests.
    pub path: PathBuf,
    /// Bytes that all files in it may take; the oldest make room.
    pub bytes: u64,
}

/// Choices for an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Tokens a sequence may have.
    pub context: Context,
    /// Sequences in progress at once; further requests wait.
    pub max_sequences: usize,
    /// Tokens in a step at most: prompts go through in chunks of this size. `None` for what suits the model's devices: 512
    /// where a processor computes, up to 2,048 on cards.
    pub step_tokens: Option<usize>,
    /// Tokens of prompts in a step in which answers are in progress, at most: what an answer may have to wait for
    /// between two of its tokens, however long the prompts of others are. `None` for a quarter of what occupies the devices:
    /// 128 to 512.
    pub mixed_tokens: Option<usize>,
    /// Tokens that the caches hold for all sequences together; `None` for every sequence at full context. With
    /// less, sequences that grow too long for it wait for each other.
    pub cache_tokens: Option<usize>,
    /// How keys and values are kept: f16, f32 for exact results, or q8_0 in half the room.
    pub kv_dtype: KvDtype,
    /// Tokens that can be dropped again from recurrent state (speculation); 0 for plain decoding.
    pub rollback: usize,
    /// Memory for what was computed for earlier requests, in bytes, besides what sequences in progress leave of their
    /// own: `None` for a default (of a model with recurrent state as much as keys and values take, for snapshots of
    /// it; else nothing more), 0 to keep nothing.
    pub prefix_cache: Option<u64>,
    /// Where the prefix cache is written to when the engine ends (and before, by
    /// [`Engine::save_some`](crate::Engine::save_some)), and read from when a prompt begins like what is there;
    /// `None` for nowhere.
    pub prefix_cache_folder: Option<PrefixCacheFolder>,
    /// Memory that may be used, in bytes; `None` for what the system has available.
    pub memory: Option<u64>,
    /// Bytes that devices give at most, by their names, whatever they say is free: what was found out when weights were copied.
    pub device_memory: Vec<(String, u64)>,
    /// Refuse requests whose answers would depend on more than the model, these options and the request: those that end by the
    /// clock. All others are deterministic without it.
    pub deterministic: bool,
    /// Whether a step may begin before the tokens of the one before are read from the device, which go from one to the
    /// other there; they are told of a step later. Answers are the same. `None` for where it pays: on devices that run
    /// behind their callers. Requests for which the host has to know a token before the next one (grammars, penalties,
    /// drafts, beams and the like) are served at once in any case, with those beside them.
    pub late_ids: Option<bool>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context: Context::Auto,
            max_sequences: 1,
            step_tokens: None,
            mixed_tokens: None,
            cache_tokens: None,
            kv_dtype: KvDtype::F16,
            rollback: 0,
            prefix_cache: None,
            prefix_cache_folder: None,
            memory: None,
            device_memory: Vec::new(),
            deterministic: false,
            late_ids: None,
        }
    }
}

impl EngineOptions {
    /// Bytes that may be used of a device, where that is known from elsewhere than the device.
    pub(crate) fn most_on(&self, device: &Device) -> Option<u64> {
        let found = self.device_memory.iter().filter(|(name, _)| name == device.name());
        found.map(|(_, bytes)| *bytes).chain(self.memory).min()
    }

    /// Tokens in a step, and those of prompts beside answers, on a device that `whole` tokens occupy and where each takes
    /// so many bytes: no more than take `room`, but 512.
    pub(crate) fn tokens_of_steps(&self, whole: usize, each: u64, room: Option<u64>) -> (usize, usize) {
        let mut tokens = whole;
        while tokens > LEAST_TOKENS && room.is_some_and(|room| each.saturating_mul(tokens as u64) > room) {
            tokens /= 2;
        }
        (self.step_tokens.unwrap_or(tokens), self.mixed_tokens.unwrap_or(whole / BESIDE_ANSWERS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_long_on_cards_that_have_room() {
        let auto = EngineOptions::default();
        // The 4B shape takes 240 KiB a token: half a GiB for 2,048 of them.
        let each = 240 << 10;
        assert_eq!(auto.tokens_of_steps(512, each, Some(0)), (512, 128));
        assert_eq!(auto.tokens_of_steps(2048, each, None), (2048, 512));
        assert_eq!(auto.tokens_of_steps(2048, each, Some(480 << 20)), (2048, 512));
        assert_eq!(auto.tokens_of_steps(2048, each, Some(400 << 20)), (1024, 512));
        assert_eq!(auto.tokens_of_steps(2048, each, Some(0)), (512, 512));
        let told = EngineOptions { step_tokens: Some(7), mixed_tokens: Some(3), ..auto };
        assert_eq!(told.tokens_of_steps(2048, each, None), (7, 3));
    }
}
