//! A step: the ragged batch of tokens that goes through a model at once.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sampling::SampleSpec;
use crate::{DType, Error, Result, Tensor};

/// What enters the model for each token of a step.
#[derive(Clone, Debug)]
pub enum StepTokens {
    /// Token ids, to be looked up in the embedding table.
    Ids(Vec<u32>),
    /// Embeddings `[T, hidden]`, f32, used in place of the lookup.
    Embeddings(Tensor),
}

/// One sequence's part of a step.
#[derive(Clone, Debug)]
pub struct StepSequence {
    /// Tokens of this sequence in the step, at least one.
    pub len: usize,
    /// Tokens the caches hold already: the first token of the step has this index in its sequence.
    pub past: usize,
    /// The recurrent-state slot that the sequence owns.
    pub slot: usize,
    /// The KV pages that the sequence owns, in order; enough for `past + len` tokens.
    pub pages: Vec<u32>,
}

/// Ids of a step's tokens that its device has chosen and the host has not read yet.
#[derive(Clone, Debug)]
pub struct LateIds {
    ids: Tensor,
    rows: Vec<(usize, u32)>,
}

impl LateIds {
    /// `[R]` i32 on the device of the model's embedding table.
    pub fn ids(&self) -> &Tensor {
        &self.ids
    }

    /// Tokens of the step, each with the row of [`ids`](Self::ids) that its id stands in.
    pub fn rows(&self) -> &[(usize, u32)] {
        &self.rows
    }
}

/// What is drawn from a step's logits, and where the ids go.
#[derive(Clone, Debug)]
pub struct Draw {
    specs: Vec<SampleSpec>,
    ids: Tensor,
    kind: DrawKind,
}

/// Which operations draw: what recordings of steps differ in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrawKind {
    /// Whether there is anything to draw.
    pub(crate) any: bool,
    /// Whether a row takes another id than its largest logit's.
    pub(crate) random: bool,
    /// Whether a row has penalties.
    pub(crate) penalized: bool,
}

impl Draw {
    /// How each row is sampled.
    pub fn specs(&self) -> &[SampleSpec] {
        &self.specs
    }

    /// `[R]` i32 on the model's device: where the ids go.
    pub fn ids(&self) -> &Tensor {
        &self.ids
    }
}

/// A ragged batch: tokens of several sequences, one after the other, without padding.
///
/// One conversation, a padded batch, one long prefill among thirty decodes: all are the same shape of step.
#[derive(Clone, Debug)]
pub struct Step {
    tokens: StepTokens,
    positions: [Vec<u32>; 3],
    starts: Vec<usize>,
    sequences: Vec<StepSequence>,
    output_rows: Vec<u32>,
    late: Option<LateIds>,
    draw: Option<Draw>,
    id: u64,
}

/// A number that no other step has.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Step {
    /// A step of ordinary text: the position of a token is its index in the sequence, and the last token of
    /// each sequence gets logits.
    ///
    /// # Errors
    /// [`Error::Shape`] when lengths do not add up or a sequence is empty.
    pub fn text(tokens: Vec<u32>, sequences: Vec<StepSequence>) -> Result<Self> {
        let line: Vec<u32> =
            sequences.iter().flat_map(|s| (s.past..s.past + s.len).map(|p| p as u32)).collect();
        let mut end = 0;
        let output_rows = sequences
            .iter()
            .map(|s| {
                end += s.len;
                end.saturating_sub(1) as u32
            })
            .collect();
        Self::new(StepTokens::Ids(tokens), [line.clone(), line.clone(), line], sequences, output_rows)
    }

    /// The same step with other output rows, from which nothing is drawn.
    ///
    /// # Errors
    /// [`Error::Shape`] when a row does not exist.
    pub fn with_output_rows(self, output_rows: Vec<u32>) -> Result<Self> {
        let total = self.len();
        if let Some(row) = output_rows.iter().find(|row| **row as usize >= total) {
            let what = format!("output row {row} of {total} tokens");
            return Err(Error::Shape { op: "step", what });
        }
        Ok(Self { output_rows, draw: None, id: next_id(), ..self })
    }

    /// The same step with some ids taken from what [`crate::sampling::sample`] has left on a device, that of the model's embedding
    /// table ([`Tensor::to_device`] brings them there): `rows` are tokens of the step, each with its row of `ids` `[R]` i32. What the step was made with in their place does not count. -1,
    /// where nothing could be chosen, is taken for id 0; so is an id outside the vocabulary on a device that runs behind its
    /// callers, on others it is an error of the step.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such token or row, or the step has embeddings; [`Error::DType`].
    pub fn with_late_ids(self, ids: &Tensor, rows: Vec<(usize, u32)>) -> Result<Self> {
        let fail = |what: String| Err(Error::Shape { op: "step", what });
        if ids.dtype() != DType::I32 {
            let (found, expected) = (ids.dtype(), DType::I32);
            return Err(Error::DType { op: "step", operand: "the ids", found, expected });
        }
        if ids.shape().len() != 1 || !matches!(self.tokens, StepTokens::Ids(_)) {
            return fail(format!("ids {:?} are no row, or the step has embeddings", ids.shape()));
        }
        let count = ids.len();
        if let Some(wild) = rows.iter().find(|(token, row)| *token >= self.len() || *row as usize >= count) {
            return fail(format!("{wild:?}: token {} of {}, row {} of {count}", wild.0, self.len(), wild.1));
        }
        // Clones of it without these ids, or with others, are other steps.
        Ok(Self { late: Some(LateIds { ids: ids.clone(), rows }), id: next_id(), ..self })
    }

    /// The same step with ids drawn from its logits, one an output row: into `ids` `[R]` i32, behind the step
    /// ([`crate::sampling::draw`]). A device that records steps draws within the recording; `specs` may be others each time.
    ///
    /// # Errors
    /// [`Error::Shape`] when there are not as many specs or ids as output rows, [`Error::DType`].
    pub fn with_draw(self, specs: Vec<SampleSpec>, ids: &Tensor) -> Result<Self> {
        let rows = self.output_rows.len();
        if ids.dtype() != DType::I32 {
            let (found, expected) = (ids.dtype(), DType::I32);
            return Err(Error::DType { op: "step", operand: "the ids", found, expected });
        }
        if ids.shape() != [rows] || specs.len() != rows {
            let what = format!("{} specs and ids {:?} for {rows} rows of logits", specs.len(), ids.shape());
            return Err(Error::Shape { op: "step", what });
        }
        let kind = DrawKind {
            any: true,
            random: specs.iter().any(|spec| spec.temperature != 0.0),
            penalized: specs.iter().any(|spec| spec.repetition_penalty != 1.0 && !spec.penalized.is_empty()),
        };
        // Clones of it without are other steps.
        Ok(Self { draw: Some(Draw { specs, ids: ids.clone(), kind }), id: next_id(), ..self })
    }

    /// A step with explicit positions (`[3][T]`: time, height, width; equal for text) and output rows
    /// (indices into the step's tokens; only these get logits).
    ///
    /// # Errors
    /// [`Error::Shape`] when lengths do not add up, a sequence is empty, two sequences share a slot, or an
    /// output row does not exist.
    pub fn new(
        tokens: StepTokens,
        positions: [Vec<u32>; 3],
        sequences: Vec<StepSequence>,
        output_rows: Vec<u32>,
    ) -> Result<Self> {
        let fail = |what: String| Err(Error::Shape { op: "step", what });
        let mut starts = Vec::with_capacity(sequences.len() + 1);
        starts.push(0);
        for (index, sequence) in sequences.iter().enumerate() {
            if sequence.len == 0 {
                return fail(format!("sequence {index} has no token in it"));
            }
            starts.push(starts[index] + sequence.len);
        }
        let mut slots: Vec<usize> = sequences.iter().map(|sequence| sequence.slot).collect();
        slots.sort_unstable();
        if let Some(twice) = slots.windows(2).find(|pair| pair[0] == pair[1]) {
            return fail(format!("two sequences share state slot {}", twice[0]));
        }
        let total = starts[sequences.len()];
        let given = match &tokens {
            StepTokens::Ids(ids) => ids.len(),
            StepTokens::Embeddings(rows) => rows.shape()[0],
        };
        if total == 0 || given != total || positions.iter().any(|line| line.len() != total) {
            return fail(format!("sequences hold {total} tokens, but {given} were given"));
        }
        if let Some(row) = output_rows.iter().find(|row| **row as usize >= total) {
            return fail(format!("output row {row} of {total} tokens"));
        }
        Ok(Self { tokens, positions, starts, sequences, output_rows, late: None, draw: None, id: next_id() })
    }

    /// Tokens in the step.
    pub fn len(&self) -> usize {
        self.positions[0].len()
    }

    /// A number of its own (clones share it): what a device has made of a step serves all layers.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Never true: a step has at least one token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What enters for each token.
    pub fn tokens(&self) -> &StepTokens {
        &self.tokens
    }

    /// Ids that are still on the device.
    pub fn late(&self) -> Option<&LateIds> {
        self.late.as_ref()
    }

    /// What is drawn from its logits.
    pub fn draw(&self) -> Option<&Draw> {
        self.draw.as_ref()
    }

    pub(crate) fn draw_kind(&self) -> DrawKind {
        self.draw.as_ref().map(|draw| draw.kind).unwrap_or_default()
    }

    /// Positions for rotary embeddings: time, height and width, equal for text.
    pub fn positions(&self) -> &[Vec<u32>; 3] {
        &self.positions
    }

    /// `[B + 1]`: sequence `b` owns the tokens `starts[b]..starts[b + 1]`.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// The sequences, in the order of their tokens.
    pub fn sequences(&self) -> &[StepSequence] {
        &self.sequences
    }

    /// The tokens that get logits, as indices into the step.
    pub fn output_rows(&self) -> &[u32] {
        &self.output_rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activations, Device};

    #[test]
    fn a_step_with_other_late_ids_is_another_step() {
        let sequence = StepSequence { len: 1, past: 0, slot: 0, pages: vec![0] };
        let step = Step::text(vec![1], vec![sequence]).unwrap();
        assert_eq!(step.clone().id(), step.id());
        let ids = Device::reference(Activations::F32).tensor_i32(&[5, 6], &[2]).unwrap();
        let late = [0, 1].map(|row| step.clone().with_late_ids(&ids, vec![(0, row)]).unwrap());
        assert!(late[0].id() != step.id() && late[1].id() != step.id() && late[0].id() != late[1].id());
    }

    #[test]
    fn sequences_have_slots_of_their_own() {
        let step = |slots: &[usize]| {
            let sequence = |slot: &usize| StepSequence { len: 1, past: 0, slot: *slot, pages: vec![0] };
            Step::text(vec![1; slots.len()], slots.iter().map(sequence).collect())
        };
        assert!(step(&[3, 0, 2]).is_ok());
        let error = step(&[3, 0, 2, 0]).unwrap_err().to_string();
        assert!(error.contains("slot 0"), "{error}");
    }

    #[test]
    fn there_is_a_row_for_each_that_is_drawn() {
        let device = Device::reference(Activations::F32);
        let sequence = |slot, len| StepSequence { len, past: 0, slot, pages: vec![0] };
        let step = Step::text(vec![1; 3], vec![sequence(0, 2), sequence(1, 1)]).unwrap();
        let spec = SampleSpec {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            penalized: vec![4],
            seed: 0,
            position: 0,
        };
        let ids = |len: usize| device.zeros(DType::I32, &[len]).unwrap();
        assert!(step.clone().with_draw(vec![spec.clone(); 3], &ids(3)).is_err());
        assert!(step.clone().with_draw(vec![spec.clone(); 2], &ids(3)).is_err());
        assert!(
            step.clone().with_draw(vec![spec.clone(); 2], &device.zeros(DType::F32, &[2]).unwrap()).is_err()
        );
        let greedy = step.clone().with_draw(vec![spec.clone(); 2], &ids(2)).unwrap();
        assert_ne!(greedy.id(), step.id());
        assert_eq!(greedy.draw_kind(), DrawKind { any: true, random: false, penalized: false });
        let other = SampleSpec { temperature: 0.5, repetition_penalty: 1.5, ..spec.clone() };
        let drawn = step.clone().with_draw(vec![spec, other], &ids(2)).unwrap();
        assert_eq!(drawn.draw_kind(), DrawKind { any: true, random: true, penalized: true });
        assert_eq!(step.draw_kind(), DrawKind::default());
        let all = drawn.with_output_rows(vec![0, 1, 2]).unwrap();
        assert!(all.draw().is_none() && all.output_rows().len() == 3);
        assert!(all.with_output_rows(vec![3]).is_err());
    }
}
