//! Embeddings of texts from any language model.

use std::str::FromStr;

use gruff_models::ForwardOptions;

use crate::{AutoModelForCausalLM, Error, LogitRows, Prompts, Result};

/// Texts that go through the model together at most.
const MOST_SEQUENCES: usize = 32;

/// Tokens of each text that go through the model at once at most.
const CHUNK: usize = 512;

/// Which hidden states become a text's embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// That of the last token: what a causal model has seen the whole text for.
    #[default]
    Last,
    /// The mean over all tokens.
    Mean,
    /// That of the first token, where the model was trained for it.
    Cls,
}

impl Pooling {
    /// Its name: `last`, `mean` or `cls`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Mean => "mean",
            Self::Cls => "cls",
        }
    }
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::Last, Self::Mean, Self::Cls];
        let unknown = || Error::Option(format!("pooling {name:?} is not one; choose last, mean or cls"));
        all.into_iter().find(|own| own.name() == name).ok_or_else(unknown)
    }
}

/// How embeddings are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingOptions {
    /// Which hidden states are taken.
    pub pooling: Pooling,
    /// Whether an embedding has length 1, so that a product of two is their cosine.
    pub normalize: bool,
}

impl Default for EmbeddingOptions {
    fn default() -> Self {
        Self { pooling: Pooling::Last, normalize: true }
    }
}

impl AutoModelForCausalLM {
    /// The embedding `[hidden_size]` of each text, from the last layer's hidden states behind the final norm. Texts may
    /// be of any lengths; one's embedding does not depend on the others.
    ///
    /// # Errors
    /// [`Error::Option`] for a text without tokens or an id outside the vocabulary, [`Error::Engine`] when one is longer
    /// than the model was trained for or memory does not suffice.
    pub fn embed(&self, texts: impl Into<Prompts>, options: &EmbeddingOptions) -> Result<Vec<Vec<f32>>> {
        let Prompts(texts) = texts.into();
        if let Some(empty) = texts.iter().position(Vec::is_empty) {
            return Err(Error::Option(format!("text {empty} has no tokens; there is nothing to embed")));
        }
        let mut embeddings = Vec::with_capacity(texts.len());
        for group in texts.chunks(MOST_SEQUENCES) {
            embeddings.extend(self.embed_group(group, options)?);
        }
        Ok(embeddings)
    }

    fn embed_group(&self, texts: &[Vec<u32>], options: &EmbeddingOptions) -> Result<Vec<Vec<f32>>> {
        let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
        let width = self.model().config().hidden_size;
        let mut cache = self.new_cache(texts.len(), longest)?;
        let mut pools: Vec<Pool> = texts.iter().map(|_| Pool::new(options.pooling, width)).collect();
        let wanted = ForwardOptions { output_last_hidden_state: true, ..ForwardOptions::default() };
        let each = (CHUNK / texts.len()).max(1);
        let mut start = 0;
        while start < longest {
            // As many tokens of each as make a step of a good size.
            let part = |text: &Vec<u32>| text[start.min(text.len())..(start + each).min(text.len())].to_vec();
            let tokens: Vec<Vec<u32>> = texts.iter().map(part).collect();
            let output = self.forward_with(tokens, &mut cache, LogitRows::None, &wanted)?;
            if let Some(states) = &output.last_hidden_state {
                let values = states.to_vec_f32()?;
                for (index, pool) in pools.iter_mut().enumerate() {
                    let rows = output.rows(index);
                    values[rows.start * width..rows.end * width]
                        .chunks_exact(width)
                        .for_each(|row| pool.add(row));
                }
            }
            start += each;
        }
        Ok(pools.into_iter().map(|pool| pool.finish(options.normalize)).collect())
    }
}

/// Hidden states of one text, token by token.
struct Pool {
    pooling: Pooling,
    values: Vec<f64>,
    count: usize,
}

impl Pool {
    fn new(pooling: Pooling, width: usize) -> Self {
        Self { pooling, values: vec![0.0; width], count: 0 }
    }

    fn add(&mut self, row: &[f32]) {
        let pairs = self.values.iter_mut().zip(row);
        match self.pooling {
            Pooling::Last => pairs.for_each(|(value, row)| *value = f64::from(*row)),
            Pooling::Mean => pairs.for_each(|(value, row)| *value += f64::from(*row)),
            Pooling::Cls if self.count == 0 => pairs.for_each(|(value, row)| *value = f64::from(*row)),
            Pooling::Cls => {}
        }
        self.count += 1;
    }

    fn finish(self, normalize: bool) -> Vec<f32> {
        let divisor = match (normalize, self.pooling) {
            // A sum has the direction of its mean.
            (true, _) => self.values.iter().map(|value| value * value).sum::<f64>().sqrt(),
            (false, Pooling::Mean) => self.count as f64,
            (false, _) => 1.0,
        };
        let divisor = if divisor > 0.0 { divisor } else { 1.0 };
        self.values.iter().map(|value| (value / divisor) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, normalize: bool) -> Vec<f32> {
        let mut pool = Pool::new(pooling, 2);
        [[3.0, 4.0], [0.0, 8.0], [6.0, 0.0]].iter().for_each(|row| pool.add(row));
        pool.finish(normalize)
    }

    #[test]
    fn states_are_pooled() {
        assert_eq!(pooled(Pooling::Last, false), [6.0, 0.0]);
        assert_eq!(pooled(Pooling::Mean, false), [3.0, 4.0]);
        assert_eq!(pooled(Pooling::Cls, false), [3.0, 4.0]);
        assert_eq!(pooled(Pooling::Mean, true), [0.6, 0.8]);
        assert_eq!(pooled(Pooling::Last, true), [1.0, 0.0]);
        assert_eq!(Pool::new(Pooling::Mean, 2).finish(true), [0.0, 0.0]);
    }

    #[test]
    fn poolings_have_names() {
        for pooling in [Pooling::Last, Pooling::Mean, Pooling::Cls] {
            assert_eq!(pooling.name().parse::<Pooling>().unwrap(), pooling);
        }
        assert!("max".parse::<Pooling>().unwrap_err().to_string().contains("last, mean or cls"));
    }
}
