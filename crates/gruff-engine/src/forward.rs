//! A step through the model.

use std::ops::Range;

use gruff_kernels::{DType, Step, StepSequence, Tensor, sampling};
use gruff_models::{AttnImplementation, ForwardOptions, LoraScales};

use crate::engine::Engine;
use crate::job::Mode;
use crate::scheduler::Share;
use crate::states::StepStates;
use crate::{Result, SamplingParams};

/// What a step computed.
pub(crate) struct Rows {
    /// `[R, vocab_size]`.
    pub(crate) logits: Tensor,
    /// For each share, its rows: the one behind its last token and those behind its drafts.
    pub(crate) ranges: Vec<Range<usize>>,
    /// For each share, the rows that lead to tokens of its prompt which are told of.
    pub(crate) prompts: Vec<Range<usize>>,
    /// For each row, the token that the device chose, where it chooses by itself: `[R]` i32.
    pub(crate) chosen: Option<Tensor>,
    /// The same on the host, once it was read.
    pub(crate) ids: Option<Vec<i32>>,
}

impl Rows {
    /// Waits for what the device chose.
    pub(crate) fn read(mut self) -> Result<Self> {
        self.ids = self.chosen.as_ref().map(Tensor::to_vec_i32).transpose()?;
        Ok(self)
    }
}

impl Engine {
    /// Puts the shares through the model. Where the device chooses the tokens by itself, it does.
    pub(crate) fn forward(&mut self, shares: &[Share]) -> Result<Rows> {
        let mut tokens = Vec::new();
        let mut sequences = Vec::with_capacity(shares.len());
        let mut output_rows = Vec::new();
        let mut specs = Vec::new();
        let mut ranges = Vec::with_capacity(shares.len());
        let mut prompts = Vec::with_capacity(shares.len());
        let mut any_fused = false;
        let mut late = Vec::new();
        for share in shares {
            let job = &self.running[share.job];
            let sequence = &job.members[share.member];
            let (past, known) = (sequence.past, sequence.tokens.len());
            let (end, chosen) = (past + share.tokens, sequence.chosen());
            tokens.extend_from_slice(&sequence.tokens[past..end.min(known)]);
            if let Some(row) = sequence.late {
                // The device knows it.
                late.push((tokens.len(), row));
                tokens.push(0);
            }
            tokens.extend_from_slice(&sequence.drafts[..end.saturating_sub(chosen)]);
            sequences.push(StepSequence {
                len: share.tokens,
                past,
                slot: sequence.slot.unwrap_or_default() as usize,
                pages: sequence.pages.clone(),
            });
            // The logits behind a token lead to the one at the next place.
            let told = sequence.telling(end.min(known));
            let start = tokens.len() - share.tokens;
            prompts.push(output_rows.len()..output_rows.len() + told.len());
            output_rows.extend(told.map(|place| (start + place - 1 - past) as u32));
            specs.resize(output_rows.len(), SamplingParams::default().spec(&[]));
            let first_row = output_rows.len();
            if end >= chosen {
                let count = end - chosen + 1;
                output_rows.extend((tokens.len() - count..tokens.len()).map(|row| row as u32));
                let alone = matches!(job.mode, Mode::Separate { .. }) && job.guidance.is_none();
                let fused = alone && sequence.is_fused(job.request.outputs);
                any_fused |= fused;
                for drafts in 0..count {
                    specs.push(match drafts {
                        _ if !fused => SamplingParams::default().spec(&[]),
                        0 if sequence.late.is_some() => sequence.sampling.tail_spec(chosen),
                        0 => sequence.sampling.spec(&sequence.tokens),
                        _ => sequence
                            .sampling
                            .spec(&[sequence.tokens.as_slice(), &sequence.drafts[..drafts]].concat()),
                    });
                }
            }
            ranges.push(first_row..output_rows.len());
        }
        let mut step = Step::text(tokens, sequences)?.with_output_rows(output_rows)?;
        if let Some(known) = self.late.as_ref().filter(|_| !late.is_empty()) {
            // From the card of the head to that of the embedding table, behind what both are at.
            let ids = known.ids().to_device(self.model.placement().embedding())?;
            step = step.with_late_ids(&ids, late)?;
        }
        let (model, rows) = (&self.model, specs.len());
        let chosen = any_fused.then(|| model.device().scratch(DType::I32, &[rows])).transpose()?;
        // Drawn with the step where the model does that.
        let behind = match &chosen {
            Some(ids) if model.draws() => {
                step = step.with_draw(specs, ids)?;
                None
            }
            chosen => chosen.as_ref().map(|ids| (ids, specs)),
        };
        let options = self.forward_options(shares);
        let output = self.model.forward_with(&step, &mut self.caches, &options)?;
        if let Some(states) = StepStates::of(&output, step.len())? {
            self.collect(shares, &states)?;
        }
        let logits = output.logits;
        if let Some((ids, specs)) = behind {
            sampling::sample(&logits, &specs, ids)?;
        }
        Ok(Rows { logits, ranges, prompts, chosen, ids: None })
    }

    /// What the shares' requests, which look at the same, ask of the model.
    fn forward_options(&self, shares: &[Share]) -> ForwardOptions {
        let outputs = shares.first().map(|share| self.running[share.job].request.outputs).unwrap_or_default();
        ForwardOptions {
            output_hidden_states: outputs.hidden_states,
            output_attentions: outputs.attentions,
            attn_implementation: outputs.attentions.then_some(AttnImplementation::Eager),
            adapters: self.adapters(shares),
            ..ForwardOptions::default()
        }
    }

    /// Hands each sequence what the step has of the tokens that lead to its next one.
    fn collect(&mut self, shares: &[Share], step: &StepStates) -> Result<()> {
        let mut start = 0;
        for (index, share) in shares.iter().enumerate() {
            let member = &mut self.running[share.job].members[share.member];
            let rows = start..start + share.tokens;
            start = rows.end;
            let wanted = (member.past + share.tokens).saturating_sub(member.past.max(member.leading()));
            if let Some(states) = member.states.as_mut().filter(|_| wanted > 0) {
                states.collect(step, index, rows, wanted)?;
            }
        }
        Ok(())
    }

    /// The scales of adapters for each share, where any request has scales of its own.
    fn adapters(&self, shares: &[Share]) -> Option<Vec<LoraScales>> {
        let own = |share: &Share| self.running[share.job].members[share.member].adapters.as_ref();
        shares.iter().any(|share| own(share).is_some()).then(|| {
            let default = self.model.adapters().scales();
            shares.iter().map(|share| own(share).unwrap_or(&default).clone()).collect()
        })
    }
}
