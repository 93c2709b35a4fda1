//! What a checkpoint is worth: perplexity, KL divergence, multiple choice, importance matrix, comparison.
//!
//! An [`Evaluator`] is a model with its tokenizer. Perplexity, KL divergence and the importance matrix are
//! llama.cpp's, window by window, so that their values can be put beside published ones and their files
//! exchanged. Nothing here samples: every figure is a function of the model and the text.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use gruff::{AutoModelForCausalLM, AutoTokenizer};
//! use gruff_eval::{Evaluator, EvaluatorOptions, Windows, perplexity};
//!
//! let model = AutoModelForCausalLM::from_pretrained("model.gguf").load()?;
//! let tokenizer = AutoTokenizer::from_pretrained("model.gguf").load()?;
//! let evaluator =
//!     Evaluator::new(model.model().clone(), tokenizer.tokenizer().clone(), EvaluatorOptions::default());
//! let tokens = evaluator.tokenize(&std::fs::read_to_string("text.txt")?)?;
//! let result = perplexity(&evaluator, &tokens, &Windows::default(), |_| ControlFlow::Continue(()))?;
//! println!("{:.4} ± {:.4}", result.perplexity.value, result.perplexity.error);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
mod whole_file;
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
pub use whole_file::WholeFile;
pub use windows::{Window, Windows};
