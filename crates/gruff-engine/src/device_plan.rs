//! What each device holds of a model that is planned for.

use std::fmt;

use gruff_kernels::Device;
use gruff_models::{CachePlan, LayerCache, ModelConfig, PartBytes, Placement};

use crate::EngineOptions;
use crate::options::LEAST_TOKENS;
use crate::plan::{Bytes, HEADROOM, MemoryPlan, available_memory};

/// The part of a [`MemoryPlan`] that one device holds, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    /// The device's name.
    pub device: String,
    /// The packed weights of its layers, experts and ends, as it lays them out (mapped from the file on the CPU).
    pub weights: u64,
    /// Keys and values of its layers, the prefix cache's with them.
    pub kv: u64,
    /// Recurrent state of its layers.
    pub state: u64,
    /// Snapshots of recurrent state for the prefix cache.
    pub snapshots: u64,
    /// Intermediate results of a step, what its products take beside them, and logits where the head is.
    pub scratch: u64,
    /// Intermediate results of recorded steps.
    pub recordings: u64,
    /// What the device says is available, where it says so.
    pub available: Option<u64>,
    /// Whether all of that may be used, since it was asked for or found out: nothing of it need stay free.
    pub capped: bool,
}

impl DevicePlan {
    /// The sum.
    pub fn total(&self) -> u64 {
        let Self { weights, kv, state, snapshots, scratch, recordings, .. } = *self;
        [weights, kv, state, snapshots, scratch, recordings].into_iter().fold(0, u64::saturating_add)
    }

    /// Whether it fits, with so many bytes left for the system where they are to be.
    pub(crate) fn fits(&self, headroom: u64) -> bool {
        let headroom = if self.capped { 0 } else { headroom };
        self.available.is_none_or(|available| self.total().saturating_add(headroom) <= available)
    }
}

impl fmt::Display for DevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, kv, state, snapshots, scratch, recordings, .. } = *self;
        write!(f, "{}: weights {} + KV {} + state {}", self.device, Bytes(weights), Bytes(kv), Bytes(state))?;
        if snapshots > 0 {
            write!(f, " + prefix cache {}", Bytes(snapshots))?;
        }
        write!(f, " + scratch {}", Bytes(scratch))?;
        if recordings > 0 {
            write!(f, " + recordings {}", Bytes(recordings))?;
        }
        write!(f, " = {}", Bytes(self.total()))?;
        match self.available {
            Some(available) => write!(f, ", of {} available", Bytes(available)),
            None => Ok(()),
        }
    }
}

/// What is planned for: a model's sizes and where its parts are to live.
pub(crate) struct Planned<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) placement: &'a Placement,
    /// What its layers remember, of a model whose matrices are shared out on each device by itself.
    pub(crate) caches: CachePlan,
    /// What each of the placement's devices can give, and whether that is what may be used.
    pub(crate) available: Vec<(Option<u64>, bool)>,
    /// Tokens in a step, and those of prompts beside answers.
    pub(crate) tokens: (usize, usize),
    /// Sequences of the largest step that is recorded.
    recorded: usize,
    /// What each of the placement's devices takes, whatever the context.
    taken: Vec<Taken>,
    parts: &'a PartBytes,
}

/// What a device takes for the parts of a model that it has, in bytes.
#[derive(Clone, Copy, Default)]
struct Taken {
    weights: u64,
    /// What products of a step take beside tensors, and those of the largest step that is recorded.
    products: u64,
    recorded_products: u64,
}

impl<'a> Planned<'a> {
    pub(crate) fn new(
        config: &'a ModelConfig,
        parts: &'a PartBytes,
        placement: &'a Placement,
        options: &EngineOptions,
    ) -> Self {
        let devices = placement.devices(config.num_hidden_layers);
        let available = match devices.as_slice() {
            [only] if only.free_bytes().is_none() => {
                let most = options.most_on(only);
                vec![(most.or_else(|| available_on(only)), most.is_some())]
            }
            // Of cards, and of each of several devices, no more than there is.
            several => several
                .iter()
                .map(|device| (usable_on(device, options), options.most_on(device).is_some()))
                .collect(),
        };
        let (ranks, known) = (placement.ranks().len(), config.caches.layers().len());
        let caches = match ranks > 0 && known == config.num_hidden_layers {
            true => config.caches.shared_out(ranks),
            false => config.caches.clone(),
        };
        let whole = devices.iter().map(|device| device.tokens_of_a_step()).min().unwrap_or(1);
        let least = available.iter().filter_map(|(bytes, _)| *bytes).min();
        let each = 4 * config.hidden_size as u64 * ROWS_IN_FLIGHT;
        let tokens = options.tokens_of_steps(whole, each, least.map(|bytes| bytes / STEP_SHARE));
        // A step is recorded where all devices that it comes to record, each its part, and none has a part of every matrix.
        let recorded = devices.iter().map(|device| device.recorded_sequences(options.max_sequences));
        let recorded = if ranks == 0 { recorded.min().unwrap_or(0) } else { 0 };
        let only = devices.len() == 1;
        let taken = |device: &&Device| Taken {
            weights: match only && device.free_bytes().is_none() {
                true => config.weight_bytes,
                false => parts.on(placement, device),
            },
            products: parts.products_on(placement, device, tokens.0),
            recorded_products: parts.products_on(placement, device, recorded),
        };
        let taken = devices.iter().map(taken).collect();
        Self { config, placement, caches, available, tokens, recorded, taken, parts }
    }

    /// Halves the tokens of a step; `false` where there are as few as there should be.
    pub(crate) fn shorten(&mut self) -> bool {
        let tokens = (self.tokens.0 / 2).max(LEAST_TOKENS);
        if tokens >= self.tokens.0 {
            return false;
        }
        self.tokens.0 = tokens;
        let devices = self.placement.devices(self.config.num_hidden_layers);
        for (device, taken) in devices.iter().zip(&mut self.taken) {
            taken.products = self.parts.products_on(self.placement, device, tokens);
        }
        true
    }

    /// What all devices together can give.
    pub(crate) fn all_available(&self) -> Option<u64> {
        self.available.iter().try_fold(0_u64, |sum, (own, _)| Some(sum.saturating_add((*own)?)))
    }

    /// Each device's part of `plan`.
    pub(crate) fn devices(&self, plan: &MemoryPlan, options: &EngineOptions) -> Vec<DevicePlan> {
        let Self { config, placement, caches, .. } = self;
        let layers = config.num_hidden_layers;
        let devices = placement.devices(layers);
        // They are kept in the host's memory; a card alone has it counted as its own, which is on the safe side.
        let keeper = devices.iter().position(|device| device.free_bytes().is_none()).unwrap_or(0);
        let tokens = (plan.cache_tokens + plan.prefix_tokens) as u64;
        let part = |(index, device): (usize, &&Device)| {
            let own = || {
                let all = caches.layers().len();
                let caches = caches.layers().iter().enumerate();
                caches.filter(move |(index, _)| placement.cache(*index, all).same(device)).map(|(_, own)| own)
            };
            let per_token: usize = own().map(|cache| cache.bytes_per_token(options.kv_dtype)).sum();
            let state = own().try_fold(0_usize, |sum, cache| {
                sum.checked_add(cache.state_bytes(options.rollback, options.max_sequences)?)
            });
            let shared_out = !placement.ranks().is_empty();
            let logits = match shared_out {
                // The parts of all devices, which the first one puts together.
                true => 2,
                false => u64::from(placement.head().same(device)),
            };
            let taken = self.taken.get(index).copied().unwrap_or_default();
            let exchange = if shared_out && device.free_bytes().is_some() { EXCHANGE } else { 0 };
            // Snapshots go to the host, and come from there, through memory of the card.
            let snapshots = device.runs_behind() && options.prefix_cache != Some(0);
            let copying: usize = if snapshots { own().map(LayerCache::copying_bytes).sum() } else { 0 };
            let copying = copying as u64;
            let (available, capped) = self.available.get(index).copied().unwrap_or_default();
            DevicePlan {
                device: device.name().to_owned(),
                weights: taken.weights,
                kv: tokens.saturating_mul(per_token as u64),
                state: state.map_or(u64::MAX, |bytes| bytes as u64),
                snapshots: if index == keeper { plan.snapshots } else { 0 },
                scratch: scratch_bytes(config, options, self.tokens.0, logits)
                    .saturating_add(taken.products)
                    .saturating_add(exchange)
                    .saturating_add(copying),
                // Theirs are others.
                recordings: recording_bytes(config, self.recorded, logits)
                    .saturating_add(taken.recorded_products),
                available,
                capped,
            }
        };
        devices.iter().enumerate().map(part).collect()
    }
}

/// What a device can give, or less where less may be used, which leaves nothing to the system by itself.
pub(crate) fn usable_on(device: &Device, options: &EngineOptions) -> Option<u64> {
    match (available_on(device), options.most_on(device)) {
        (Some(found), Some(most)) => Some(found.saturating_sub(HEADROOM).min(most)),
        (found, most) => found.or(most),
    }
}

/// Bytes that the device can give a model, the weights that it holds already included; of devices that compute in the
/// system's memory, what the system can give.
fn available_on(device: &Device) -> Option<u64> {
    match device.free_bytes() {
        Some(free) => Some((free + device.allocated_bytes()) as u64),
        None => available_memory(),
    }
}

/// Rows of the residual stream's width that a step holds at once: the stream, its norm, projections, the
/// feed-forward's inner rows and their quantized forms. Measured on the supported families, rounded up.
const ROWS_IN_FLIGHT: u64 = 24;

/// What a card is taken to need for exchanging values with others: NCCL's buffers, some megabytes for each of its channels.
/// Not measured.
const EXCHANGE: u64 = 256 << 20;

/// What the intermediate results of a step may take of a card's memory by themselves: one part of so many.
const STEP_SHARE: u64 = 16;

/// Intermediate results of a full step, and so many times its logits.
fn scratch_bytes(config: &ModelConfig, options: &EngineOptions, tokens: usize, logits: u64) -> u64 {
    let in_flight = (tokens as u64).saturating_mul(config.hidden_size as u64 * ROWS_IN_FLIGHT);
    let rows = (options.max_sequences as u64).saturating_mul(1 + options.rollback as u64);
    let logits = rows.saturating_mul(config.vocab_size as u64).saturating_mul(logits);
    in_flight.saturating_add(logits).saturating_mul(4)
}

/// Intermediate results of the largest step that is recorded, of so many sequences, and so many times its logits. Recordings of
/// other numbers of sequences use the same memory where sizes are alike, and all of them give way to what needs memory.
fn recording_bytes(config: &ModelConfig, sequences: usize, logits: u64) -> u64 {
    let row = config.hidden_size as u64 * ROWS_IN_FLIGHT + config.vocab_size as u64 * logits;
    (sequences as u64).saturating_mul(row).saturating_mul(4)
}
