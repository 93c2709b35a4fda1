//! Two checkpoints side by side.

mod logits;
mod tensors;

pub use logits::{LogitsComparison, compare_logits};
pub use tensors::{TensorComparison, TensorErrors, compare_tensors};
