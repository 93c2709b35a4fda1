//! How much memory a model takes, planned before any is taken.

use std::fmt;

use gruff_kernels::{CHUNK, PAGE_LEN};
use gruff_models::{CachePlan, Model, PartBytes, Placement};

use crate::device_plan::Planned;
use crate::error::refuse;
use crate::{DevicePlan, EngineOptions, Error, Result};

/// What stays free of each device for the system and for what no plan can count, where no one has said what may be used.
pub(crate) const HEADROOM: u64 = 256 << 20;

/// The context that `Context::Auto` does not exceed on its own, however much memory there is.
const AUTO_CONTEXT: usize = 32_768;

/// Bytes of snapshots that the prefix cache does not exceed on its own, where that is room for a few.
const AUTO_SNAPSHOTS: u64 = 1 << 30;

/// The smallest context worth having.
const LEAST_CONTEXT: usize = 512;

/// How many tokens a sequence may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Context {
    /// As many as the model was trained for and memory allows, at most 32,768.
    #[default]
    Auto,
    /// This many.
    Tokens(usize),
}

/// Where the memory goes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Tokens a sequence may have, prompt and answer.
    pub context: usize,
    /// Sequences in progress at once.
    pub max_sequences: usize,
    /// The packed weights (mapped from the file on the CPU).
    pub weights: u64,
    /// Tokens that the caches hold for all sequences together.
    pub cache_tokens: usize,
    /// Keys and values of that many tokens.
    pub kv: u64,
    /// Recurrent state: all sequences.
    pub state: u64,
    /// Tokens whose keys and values have room besides, in the prefix cache.
    pub prefix_tokens: usize,
    /// The prefix cache: keys and values of those, and snapshots.
    pub prefix_cache: u64,
    /// Of that, snapshots of recurrent state.
    pub snapshots: u64,
    /// Tokens in a step at most.
    pub step_tokens: usize,
    /// Tokens of prompts in a step in which answers are in progress, at most.
    pub mixed_tokens: usize,
    /// Intermediate results and logits of a step.
    pub scratch: u64,
    /// Intermediate results of recorded steps, on devices that record them.
    pub recordings: u64,
    /// What the devices say is available, where they say so.
    pub available: Option<u64>,
    /// What each device holds of that, in the order in which a step comes to them.
    pub devices: Vec<DevicePlan>,
}

impl MemoryPlan {
    /// Plans for `model`.
    ///
    /// # Errors
    /// [`Error::Memory`] with the sum spelled out when it does not fit, [`Error::Request`] for a context the
    /// model or the options make impossible.
    pub fn new(model: &dyn Model, options: &EngineOptions) -> Result<Self> {
        Self::placed(model, model.placement(), options)
    }

    /// Plans for `model` with its parts where `placement` says, wherever they are now: before weights are copied to
    /// devices.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn placed(model: &dyn Model, placement: &Placement, options: &EngineOptions) -> Result<Self> {
        let parts = PartBytes::of(model);
        Self::of(Planned::new(model.config(), &parts, placement, options), options)
    }

    pub(crate) fn of(mut planned: Planned, options: &EngineOptions) -> Result<Self> {
        let trained = planned.config.max_position_embeddings;
        if options.max_sequences == 0 {
            return refuse("max_sequences", "0 sequences can compute nothing; ask for at least 1");
        }
        let context = match options.context {
            Context::Tokens(0) => return refuse("ctx", "a context of 0 tokens holds nothing"),
            Context::Tokens(tokens) if tokens > trained => {
                return refuse(
                    "ctx",
                    format!(
                        "{tokens} tokens are more than the {trained} that this model was trained for; ask for fewer"
                    ),
                );
            }
            Context::Tokens(tokens) => tokens,
            Context::Auto => trained.min(AUTO_CONTEXT),
        };
        // Shorter steps rather than less context, or none.
        while options.step_tokens.is_none()
            && !Self::with_context(&planned, options, context).fits_devices(headroom(options))
            && planned.shorten()
        {}
        let context = match options.context {
            Context::Tokens(tokens) => tokens,
            Context::Auto => Self::fitting_context(&planned, options, context),
        };
        let plan = Self::with_context(&planned, options, context);
        plan.check_prefix_cache(&planned.caches, options)?;
        if plan.cache_tokens < context {
            return refuse(
                "cache_tokens",
                format!("{} tokens do not hold one sequence of {context}", plan.cache_tokens),
            );
        }
        match plan.fits_devices(headroom(options)) {
            true => Ok(plan),
            false => Err(Error::Memory(plan.refusal(headroom(options)))),
        }
    }

    fn fitting_context(planned: &Planned, options: &EngineOptions, most: usize) -> usize {
        let mut context = most;
        while context > LEAST_CONTEXT {
            if Self::with_context(planned, options, context).fits_devices(headroom(options)) {
                break;
            }
            context = (context / 2).max(LEAST_CONTEXT.min(most));
        }
        context
    }

    fn with_context(planned: &Planned, options: &EngineOptions, context: usize) -> Self {
        let full = options.max_sequences.saturating_mul(context.next_multiple_of(PAGE_LEN));
        let cache_tokens =
            options.cache_tokens.map_or(full, |tokens| tokens.next_multiple_of(PAGE_LEN).min(full));
        let caches = &planned.caches;
        let per_token = caches.bytes_per_token(options.kv_dtype) as u64;
        let kv = (cache_tokens as u64).saturating_mul(per_token);
        let (prefix_tokens, snapshots) = prefix_cache(caches, options, kv);
        let mut plan = Self {
            context,
            cache_tokens,
            max_sequences: options.max_sequences,
            weights: 0,
            kv,
            prefix_tokens,
            prefix_cache: (prefix_tokens as u64).saturating_mul(per_token).saturating_add(snapshots),
            snapshots,
            state: 0,
            step_tokens: planned.tokens.0,
            mixed_tokens: planned.tokens.1,
            scratch: 0,
            recordings: 0,
            available: planned.all_available(),
            devices: Vec::new(),
        };
        plan.devices = planned.devices(&plan, options);
        let sum = |part: fn(&DevicePlan) -> u64| plan.devices.iter().map(part).fold(0, u64::saturating_add);
        let (weights, state) = (sum(|own| own.weights), sum(|own| own.state));
        let (scratch, recordings) = (sum(|own| own.scratch), sum(|own| own.recordings));
        Self { weights, state, scratch, recordings, ..plan }
    }

    /// Whether every device has room for its part.
    fn fits_devices(&self, headroom: u64) -> bool {
        self.devices.iter().all(|device| device.fits(headroom))
    }

    /// Whether it fits into so many bytes, with some left for the system.
    pub fn fits(&self, available: u64) -> bool {
        self.total().saturating_add(HEADROOM) <= available
    }

    /// The sum.
    pub fn total(&self) -> u64 {
        let parts = [self.weights, self.kv, self.state, self.prefix_cache, self.scratch, self.recordings];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    fn check_prefix_cache(&self, caches: &CachePlan, options: &EngineOptions) -> Result<()> {
        let least = least_snapshot(caches);
        match options.prefix_cache {
            Some(bytes) if bytes > 0 && caches.is_recurrent() && self.snapshots < least => refuse(
                "prefix_cache",
                format!(
                    "half of {} does not hold one state of this model ({}); give it more, or 0 for no cache",
                    Bytes(bytes),
                    Bytes(least)
                ),
            ),
            _ => Ok(()),
        }
    }

    /// KV pages in the pool.
    pub(crate) fn pages(&self) -> usize {
        (self.cache_tokens + self.prefix_tokens) / PAGE_LEN
    }

    fn refusal(&self, headroom: u64) -> String {
        let headroom = if self.devices.iter().all(|device| device.capped) { 0 } else { headroom };
        let free = match (headroom, self.devices.len()) {
            (0, _) => String::new(),
            (bytes, ..=1) => format!(", {} of which stay free for the system", Bytes(bytes)),
            (bytes, _) => format!("; {} of each stay free for the system", Bytes(bytes)),
        };
        let card = self.devices.iter().any(|device| device.device.starts_with("cuda"));
        let split = if card { ", parts on the CPU (--device auto, --gpu-layers, --n-cpu-moe)" } else { "" };
        format!(
            "not enough memory: {self}{free}. Choose a smaller --ctx, fewer sequences{split}, a smaller model or a \
             smaller quantization"
        )
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "weights {} + KV {} ({} tokens) + state {} + prefix cache {} + scratch {}",
            Bytes(self.weights),
            Bytes(self.kv),
            self.cache_tokens,
            Bytes(self.state),
            Bytes(self.prefix_cache),
            Bytes(self.scratch),
        )?;
        if self.recordings > 0 {
            write!(f, " + recordings {}", Bytes(self.recordings))?;
        }
        write!(f, " = {}", Bytes(self.total()))?;
        if let Some(available) = self.available {
            write!(f, ", of {} available", Bytes(available))?;
        }
        match self.devices.as_slice() {
            [] | [_] => Ok(()),
            several => several.iter().try_for_each(|device| write!(f, "; {device}")),
        }
    }
}

/// The largest snapshot but one row: what most take.
fn least_snapshot(caches: &CachePlan) -> u64 {
    caches.bytes_per_snapshot(2 * CHUNK - 1) as u64
}

/// What the prefix cache gets besides what sequences in progress leave of their own: tokens and bytes of snapshots. Of
/// a model with recurrent state half goes to either, as snapshots are kept where they cost what the keys and values do
/// that they stand for.
fn prefix_cache(caches: &CachePlan, options: &EngineOptions, kv: u64) -> (usize, u64) {
    let per_page = (caches.bytes_per_page(options.kv_dtype) as u64).max(1);
    let pages = |bytes: u64| usize::try_from(bytes / per_page).unwrap_or(0).saturating_mul(PAGE_LEN);
    match (options.prefix_cache, caches.is_recurrent()) {
        (Some(bytes), true) => (pages(bytes / 2), bytes - bytes / 2),
        (Some(bytes), false) => (pages(bytes), 0),
        (None, true) => {
            // A few conversations, and some more where many are answered at once.
            let few = (4 + options.max_sequences as u64 / 4).saturating_mul(least_snapshot(caches));
            (0, kv.min(AUTO_SNAPSHOTS).max(few))
        }
        (None, false) => (0, 0),
    }
}

fn headroom(options: &EngineOptions) -> u64 {
    if options.memory.is_some() { 0 } else { HEADROOM }
}

/// A number of bytes for people.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / (1 << 20) as f64;
        if mib >= 1024.0 { write!(f, "{:.2} GiB", mib / 1024.0) } else { write!(f, "{mib:.1} MiB") }
    }
}

/// Bytes that the system can still give, page cache counted as free, within the limits of a control group;
/// `None` where it does not tell.
pub fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let system = kib * 1024;
    Some(control_group_memory().map_or(system, |group| group.min(system)))
}

/// What the control group leaves (cgroup v2), file cache counted as free.
fn control_group_memory() -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok()
    };
    let stat = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").ok()?;
    let cache: u64 = stat.lines().find_map(|line| line.strip_prefix("file "))?.trim().parse().ok()?;
    Some(number("memory.max")?.saturating_sub(number("memory.current")?.saturating_sub(cache)))
}
