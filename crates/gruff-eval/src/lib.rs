//! What a checkpoint is worth: perplexity, KL divergence, multiple choice, importance matrix, comparison.
