//! Requests to batches to tokens: scheduler, caches, sampling, the decode loop.

mod engine;
mod error;
mod pages;
mod parked;
mod plan;
mod request;
mod sampling;
mod scheduler;
mod sequence;

pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use plan::{Context, MemoryPlan, available_memory};
pub use request::{Event, FinishReason, Request, RequestId, Usage};
pub use sampling::SamplingParams;
