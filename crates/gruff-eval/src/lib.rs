//! What a checkpoint is worth: perplexity, KL divergence, multiple choice, importance matrix, comparison.
//!
//! An [`Evaluator`] is a model with its tokenizer. Perplexity, KL divergence and the importance matrix are
//! llama.cpp's, window by window, so that their values can be put beside published ones and their files
//! exchanged. Nothing here samples: every figure is a function of the model and the text.

mod compare;
mod divergence;
mod error;
mod evaluator;
mod imatrix;
mod logits_file;
mod multiple_choice;
mod perplexity;
mod plot;
mod softmax;
mod statistics;
mod windows;

pub use compare::{LogitsComparison, TensorComparison, TensorErrors, compare_logits, compare_tensors};
pub use divergence::{ChunkDivergence, Divergence, Percentiles, kl_divergence};
pub use error::{Error, Result};
pub use evaluator::{Evaluator, EvaluatorOptions};
pub use imatrix::{ImatrixOptions, ImportanceMatrix, InputStatistics, importance_matrix};
pub use logits_file::{LogitsReader, LogitsWriter};
pub use multiple_choice::{Accuracy, MultipleChoice, Task, TaskScore, multiple_choice, read_tasks};
pub use perplexity::{ChunkPerplexity, Perplexity, perplexity, save_logits};
pub use plot::{plot_perplexity, plot_tensors};
pub use statistics::Estimate;
pub use windows::{Window, Windows};
