use std::ops::Range;

use gruff_kernels::{Activation, DType, ROWS_TOGETHER, Rank, Tensor, elementwise};

use super::{Embedding, Forward, Linear, Residual, RmsNorm};
use crate::Result;
use crate::config::DecoderConfig;
use crate::parameters::PackedWeight;
use crate::shard::{Part, Shard};
use crate::weights::Weights;

/// The end of a decoder: final norm and projection to logits.
#[derive(Debug)]
pub(crate) struct Head {
    norm: RmsNorm,
    lm_head: Linear,
    softcap: Option<f32>,
    vocab_size: usize,
}

/// The rows of the vocabulary that a device has: a view of the embedding table where that is the head, unless the vocabulary is
/// smaller than any model's.
pub(crate) fn shared_rows(shard: Shard, vocab_size: usize) -> Result<Range<usize>> {
    /// More than kernels take at a time.
    const UNIT: usize = 8 * ROWS_TOGETHER;
    let units = || shard.in_units(vocab_size, UNIT);
    let rows = units().or_else(|| shard.in_units_and_rest(vocab_size, ROWS_TOGETHER));
    let rows = rows.or_else(|| shard.in_units(vocab_size, 1));
    rows.ok_or_else(|| shard.refuse(format!("a vocabulary of {vocab_size} is too small to share out")))
}

impl Head {
    /// `lm_head` is the embedding table where the file has no tensor for it.
    pub(crate) fn load(
        weights: &Weights,
        config: &DecoderConfig,
        embed_tokens: &Embedding,
        softcap: Option<f32>,
    ) -> Result<Self> {
        let DecoderConfig { hidden_size, vocab_size, rms_norm_eps, .. } = *config;
        let norm = RmsNorm::load(weights.module("model.norm"), hidden_size, rms_norm_eps)?;
        let w = weights.module("lm_head");
        let rows = shared_rows(w.shard(), vocab_size)?;
        let lm_head = if w.exists() {
            let rows = Part::range(rows, vocab_size);
            Linear::load_part(w, [vocab_size, hidden_size], [&rows, &Part::All])?
        } else {
            let place = weights.placement();
            let (table, far) = (weights.module(embed_tokens.name()), !place.head().same(place.embedding()));
            let copy =
                far.then(|| table.packed_on(place.head(), [1, vocab_size, hidden_size])).transpose()?;
            let weight = copy.as_ref().map_or(embed_tokens.weight(), PackedWeight::tensor);
            let weight = weight.narrow_rows(rows.start, rows.len())?;
            Linear::shared(&w, embed_tokens.name(), &weight)
        };
        Ok(Self { norm, lm_head, softcap, vocab_size })
    }

    /// Logits `[R, vocab]` of the rows that the step asks for; of devices that share the vocabulary out, on the first, and
    /// no row on the others.
    pub(crate) fn forward(&self, cx: &Forward, mut x: Residual) -> Result<Tensor> {
        x.enter(cx, cx.placement.head())?;
        if cx.is_idle() {
            return self.none(cx);
        }
        let wanted = !cx.step.output_rows().is_empty();
        if wanted || cx.keeps_last_hidden_state() {
            let h = x.output_rows(cx, &self.norm)?;
            if wanted {
                return self.logits(cx, &h);
            }
        }
        self.none(cx)
    }

    fn none(&self, cx: &Forward) -> Result<Tensor> {
        Ok(cx.device().scratch(DType::F32, &[0, self.vocab_size])?)
    }

    fn logits(&self, cx: &Forward, h: &Activation) -> Result<Tensor> {
        cx.enter_head();
        let logits = self.lm_head.forward(cx, h)?;
        if let Some(cap) = self.softcap {
            elementwise::softcap(&logits, cap)?;
        }
        match cx.placement.rank() {
            None => Ok(logits),
            Some(rank) => self.gather(cx, rank, &logits),
        }
    }

    /// Puts the columns that the devices have computed beside each other. Every device gives as many values, those with fewer
    /// columns some behind theirs that nobody reads.
    fn gather(&self, cx: &Forward, rank: &Rank, own: &Tensor) -> Result<Tensor> {
        let of = rank.of();
        let columns = (0..of).map(|rank| shared_rows(Shard { rank, of }, self.vocab_size));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let rows = own.shape()[0];
        let most = columns.iter().map(Range::len).max().unwrap_or(0);
        let given = match own.shape()[1] == most {
            true => own.clone(),
            false => {
                let longer = cx.scratch(&[rows * most])?;
                elementwise::copy(own, &longer.narrow(0, 0, own.len())?.reshape(own.shape())?)?;
                longer
            }
        };
        let all = cx.scratch(&[of, rows * most])?;
        rank.all_gather(&given, &all)?;
        if rank.rank() > 0 {
            return self.none(cx);
        }
        if rows == 1 && columns.iter().all(|columns| columns.len() == most) {
            return Ok(all.reshape(&[1, self.vocab_size])?);
        }
        let logits = cx.scratch(&[rows, self.vocab_size])?;
        for (rank, columns) in columns.into_iter().enumerate() {
            let part = all.select(0, rank)?.narrow(0, 0, rows * columns.len())?;
            let part = part.reshape(&[rows, columns.len()])?;
            elementwise::copy(&part, &logits.narrow(1, columns.start, columns.len())?)?;
        }
        Ok(logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(vocab_size: usize, of: usize) -> Vec<Range<usize>> {
        (0..of).map(|rank| shared_rows(Shard { rank, of }, vocab_size).expect("enough rows")).collect()
    }

    #[test]
    fn devices_begin_where_rows_of_the_table_can_be_viewed() {
        for vocab_size in [64, 100, 32_000, 32_001, 49_152, 50_257, 128_256, 151_669, 248_320] {
            for of in 1..=8 {
                let parts = cut(vocab_size, of);
                assert!(parts.iter().all(|part| part.start.is_multiple_of(ROWS_TOGETHER)), "{parts:?}");
                let all = parts.iter().fold(0, |end, part| if part.start == end { part.end } else { 0 });
                assert_eq!(all, vocab_size, "{parts:?}");
                let longest = parts.iter().map(Range::len).max();
                let even = vocab_size.div_ceil(of) + 8 * ROWS_TOGETHER;
                assert!(longest.is_some_and(|longest| longest <= even), "{parts:?}");
            }
        }
        // Whole units where there are some, which costs nothing.
        assert_eq!(cut(128, 2), [0..64, 64..128]);
        assert_eq!(cut(9, 3), [0..3, 3..6, 6..9], "too few rows to begin so");
        assert!(shared_rows(Shard { rank: 0, of: 3 }, 2).is_err());
    }
}
