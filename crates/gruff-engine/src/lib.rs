//! Requests to batches to tokens: scheduler, caches, sampling, the decode loop.

mod beams;
mod choose;
mod deliver;
mod engine;
mod error;
mod job;
pub mod logits;
mod pages;
mod parked;
mod plan;
mod request;
mod sampling;
mod scheduler;
mod sequence;
pub mod speculation;
mod states;
pub mod stopping;

pub use beams::{BeamParams, EarlyStopping};
pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use plan::{Context, MemoryPlan, available_memory};
pub use request::{
    BeamOutput, Event, FinishReason, Guidance, OutputOptions, Request, RequestId, TokenDetails, Usage,
};
pub use sampling::SamplingParams;
pub use states::AttentionWeights;
