//! GGUF checkpoints behind the API that transformers users know.
//!
//! ```no_run
//! use gruff::{AutoModelForCausalLM, AutoTokenizer, ChatOptions, GenerationConfig, Message};
//!
//! let id = "unsloth/Qwen3.5-4B-GGUF";
//! let tokenizer = AutoTokenizer::from_pretrained(id).gguf_file("Qwen3.5-4B-Q4_K_M.gguf").load()?;
//! let model = AutoModelForCausalLM::from_pretrained(id).gguf_file("Qwen3.5-4B-Q4_K_M.gguf").load()?;
//!
//! let inputs = tokenizer.apply_chat_template(&[Message::user("Why is the sky blue?")], &ChatOptions::prompt())?;
//! let outputs = model.generate(inputs, &GenerationConfig { max_new_tokens: Some(256), ..Default::default() })?;
//! println!("{}", tokenizer.decode(outputs.new_tokens(0), true));
//! # Ok::<(), gruff::Error>(())
//! ```

mod batch;
mod batching;
mod bundled;
mod cache;
mod cache_file;
mod constraint;
mod conversation;
mod dense;
mod embeddings;
mod error;
mod fit;
mod forward;
mod generate;
mod generation;
mod generation_json;
mod lora;
mod model;
mod outputs;
mod padded;
mod pipeline;
mod placement;
mod pretrained;
mod stop_strings;
mod streamers;
mod summary;
pub mod system;
mod tokenizer;

pub use batching::{BatchResult, BatchingManager};
pub use bundled::{BUNDLED, HAS_BUNDLED};
pub use cache::{Cache, LogitRows};
pub use constraint::Constraint;
pub use conversation::Conversation;
pub use dense::GgufConfig;
pub use embeddings::{EmbeddingOptions, Pooling};
pub use error::{Error, Result};
pub use fit::{Fit, Machine, best as best_fit, fit, fit_remote};
pub use forward::{CausalLMOutput, Forward};
pub use generate::GenerateOptions;
pub use generation::GenerationConfig;
pub use model::{AutoModelForCausalLM, Prompts, Streamed, StreamedToken};
pub use outputs::GenerateOutput;
pub use pipeline::{
    Generated, GeneratedText, PipelineInput, PipelineInputs, PipelineOptions, TextGenerationPipeline,
    pipeline,
};
pub use placement::Placed;
pub use pretrained::{
    Checkpoint, DEVICES, Dtype, FromCheckpoint, LoadOptions, Pretrained, cuda_ordinal, is_device,
};
pub use stop_strings::StopMatcher;
pub use streamers::{Streamer, TextIteratorStreamer, TextPieces, TextSender, TextStreamer};
pub use summary::TypeShare;
pub use tokenizer::{AutoTokenizer, ChatOptions};

pub use gruff_convert::Dense;
pub use gruff_engine::logits::{self, LogitsProcessor, PrefixAllowedTokens, TokenContext, processor_fn};
pub use gruff_engine::stopping::{self, StoppingCriteria, criterion_fn};
pub use gruff_engine::{
    AttentionWeights, BeamOutput, Context, DevicePlan, EarlyStopping, Error as EngineError, Event,
    FinishReason, MemoryPlan, RequestId, SplitMode, TokenDetails, Usage,
};
pub use gruff_hub::{Environment, Hub, ModelFiles, ModelId, Progress};
pub use gruff_kernels::{Device, KvDtype, Tensor};
pub use gruff_models::{
    AttnImplementation, ForwardOptions, HookContext, HookError, HookGuard, Hooks, InputContext,
    LayerAttentions, LoraScales, Module, ModuleGuard, ModuleInfo, ModuleKind, Weight,
};
pub use gruff_text::chat::Message;

/// The floors below, for those who want more than this face shows.
pub mod floors {
    pub use gruff_blocks as blocks;
    pub use gruff_convert as convert;
    pub use gruff_engine as engine;
    pub use gruff_gguf as gguf;
    pub use gruff_hub as hub;
    pub use gruff_kernels as kernels;
    pub use gruff_models as models;
    pub use gruff_text as text;
}
