//! Sequences put through a model by hand: prompts in steps of equal size, then one token of each at a time.

use std::sync::Arc;

use gruff::floors::engine::{EngineOptions, MemoryPlan};
use gruff::floors::kernels::sampling::argmax;
use gruff::floors::kernels::{DType, PAGE_LEN, Step, StepSequence, Tensor};
use gruff::floors::models::{CacheOptions, Caches, Model, Steps, prepare};
use gruff::{AutoModelForCausalLM, Context};

/// Some sequences with caches of their own.
pub(super) struct Sequences {
    model: Arc<dyn Model>,
    caches: Caches,
    /// The pages of each.
    pages: Vec<Vec<u32>>,
    /// Tokens of each that the caches hold.
    past: Vec<usize>,
    /// Tokens in a step at most.
    step_tokens: usize,
    random: Random,
}

impl Sequences {
    /// Takes memory for `count` sequences of up to `capacity` tokens.
    pub(super) fn new(
        model: &AutoModelForCausalLM,
        count: usize,
        capacity: usize,
        step_tokens: usize,
    ) -> anyhow::Result<Self> {
        let step_tokens = step_tokens.max(count);
        let options = EngineOptions {
            context: Context::Tokens(capacity),
            max_sequences: count,
            step_tokens: Some(step_tokens),
            prefix_cache: Some(0),
            ..model.engine_options().clone()
        };
        let model = model.model().clone();
        MemoryPlan::new(&*model, &options)?;
        let steps = Steps { kv_dtype: options.kv_dtype, sequences: count, tokens: step_tokens };
        prepare(&*model, &steps)?;
        let each = capacity.div_ceil(PAGE_LEN);
        let caches = model.new_caches(&CacheOptions {
            kv_dtype: options.kv_dtype,
            pages: count * each,
            slots: count,
            rollback: 0,
        })?;
        let pages =
            (0..count).map(|index| (index * each..(index + 1) * each).map(|page| page as u32).collect());
        Ok(Self {
            pages: pages.collect(),
            past: vec![0; count],
            step_tokens,
            random: Random(0x6772_7566),
            model,
            caches,
        })
    }

    /// Forgets what the sequences hold.
    pub(super) fn clear(&mut self) {
        self.past.fill(0);
    }

    /// Puts so many random tokens through, of every sequence, and copies the logits of the last ones to the host, as
    /// llama-bench does.
    pub(super) fn prompt(&mut self, tokens: usize) -> anyhow::Result<()> {
        let count = self.past.len();
        let mut left = vec![tokens; count];
        let mut first = 0;
        while first < count {
            let mut shares = Vec::new();
            let mut room = self.step_tokens;
            for (index, left) in left.iter_mut().enumerate().skip(first) {
                let share = room.min(*left);
                if share == 0 {
                    break;
                }
                *left -= share;
                room -= share;
                shares.push((index, share, *left == 0));
            }
            first += left[first..].iter().take_while(|left| **left == 0).count();
            if shares.is_empty() {
                break;
            }
            if let Some(logits) = self.step(&shares)? {
                logits.to_vec_f32()?;
            }
        }
        Ok(())
    }

    /// Puts one random token of every sequence through: logits `[sequences, vocabulary]` on the device.
    pub(super) fn generate(&mut self) -> anyhow::Result<Tensor> {
        let shares: Vec<_> = (0..self.past.len()).map(|index| (index, 1, true)).collect();
        self.step(&shares)?.ok_or_else(|| anyhow::anyhow!("a step of no sequences"))
    }

    /// The same, and waits for the likeliest id behind each, chosen where the logits are, as gruff's own loop has it: of
    /// many sequences the copy of logits would take longer than the step.
    pub(super) fn generate_ids(&mut self) -> anyhow::Result<Vec<i32>> {
        let logits = self.generate()?;
        let ids = logits.device().scratch(DType::I32, &[logits.shape()[0]])?;
        argmax(&logits, &ids)?;
        Ok(ids.to_vec_i32()?)
    }

    /// One step: sequences, their tokens, and whether the last of them gets logits.
    fn step(&mut self, shares: &[(usize, usize, bool)]) -> anyhow::Result<Option<Tensor>> {
        let vocabulary = self.model.config().vocab_size as u64;
        let mut sequences = Vec::with_capacity(shares.len());
        let mut output_rows = Vec::new();
        let mut total = 0;
        for (index, len, last) in shares {
            let (past, pages) = (self.past[*index], self.pages[*index].clone());
            sequences.push(StepSequence { len: *len, past, slot: *index, pages });
            total += len;
            if *last {
                output_rows.push(total as u32 - 1);
            }
            self.past[*index] += len;
        }
        let tokens = (0..total).map(|_| self.random.below(vocabulary)).collect();
        let wanted = !output_rows.is_empty();
        let step = Step::text(tokens, sequences)?.with_output_rows(output_rows)?;
        let logits = self.model.forward(&step, &mut self.caches)?;
        Ok(wanted.then_some(logits))
    }
}

/// Knuth's linear congruential generator: which tokens does not matter, only that they vary.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 32) * bound) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_stay_in_the_vocabulary() {
        let mut random = Random(1);
        assert!((0..1000).all(|_| random.below(7) < 7));
    }
}
