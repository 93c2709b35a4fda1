//! Requests to batches to tokens: scheduler, caches, sampling, the decode loop.

mod admission;
mod beams;
mod check;
mod choose;
mod deliver;
mod device_plan;
mod disk;
mod engine;
mod error;
mod forward;
mod job;
mod keep;
mod late;
pub mod logits;
mod options;
mod pages;
#[cfg(test)]
mod paper_tests;
mod place;
mod plan;
mod prefix;
mod request;
mod rounds;
mod sampling;
mod scheduler;
mod sequence;
pub mod speculation;
mod states;
mod stats;
pub mod stopping;
mod turns;

pub use beams::{BeamParams, EarlyStopping};
pub use check::Checker;
pub use device_plan::DevicePlan;
pub use engine::Engine;
pub use error::{Error, Result};
pub use options::{EngineOptions, PrefixCacheFolder};
pub use place::{Chosen, Division, SplitMode, fits_on, place};
pub use plan::{Context, MemoryPlan, available_memory};
pub use prefix::CacheStats;
pub use request::{
    BeamOutput, Event, FinishReason, Guidance, OutputOptions, Request, RequestId, TokenDetails, Usage,
};
pub use sampling::SamplingParams;
pub use states::AttentionWeights;
pub use stats::EngineStats;
