//! What kernels read about a step, copied to the card once and kept while layers ask for the same step.

use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUdeviceptr;

use super::CudaDevice;
use super::memory::Pooled;
use super::phase::{self, Phase};
use crate::attention::cuda::SPAN;
use crate::sampling::cuda::{Rows, SPEC_WORDS};
use crate::{CHUNK, PAGE_LEN, Result, Step, StepTokens};

/// Words (i32) that a sequence takes in the table: start, len, past, slot, first page in the list of pages, first piece in
/// the list of pieces of chunks, first span in a list of the spans of all sequences; then one for later.
pub(crate) const SEQUENCE_WORDS: usize = 8;

/// Words in front of the sequences: the address of ids that an earlier step has left on the card, 0 for none; that of the
/// ids that this step draws.
const HEAD_WORDS: usize = 4;

/// In the list of ids: the id stands in the row of the earlier step's ids that the other bits tell.
const LATE: u32 = 1 << 31;

/// Bytes of the tables that recordings read: of each device one, which every replay fills anew.
const FIXED_BYTES: usize = 2 << 20;

/// Steps that are kept: a step, and the one that a drafting model runs beside it.
const KEPT: usize = 4;

/// A step's tables on the card.
pub(crate) struct CudaStep {
    id: u64,
    tables: CUdeviceptr,
    /// Unless the tables are those of recordings.
    _memory: Option<Pooled>,
    places: Places,
    plans: Mutex<Vec<(PlanKey, Arc<Plan>)>>,
}

/// Where the tables of a step begin, in words. It is the same for all steps of as many sequences and tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    owners: usize,
    positions: usize,
    ids: usize,
    draws: usize,
    pages: usize,
}

/// What a plan was made for: the kind of work and its sizes.
pub(crate) type PlanKey = (&'static str, [usize; 4]);

/// A list of pieces of work on the card, made from a step.
pub(crate) struct Plan {
    memory: Pooled,
    /// Entries.
    pub(crate) count: usize,
    /// A number that goes with it: the longest, the most.
    pub(crate) extent: usize,
}

impl Plan {
    pub(crate) fn pointer(&self) -> CUdeviceptr {
        self.memory.pointer()
    }
}

/// The steps that were asked for last.
#[derive(Default)]
pub(crate) struct Steps {
    kept: Mutex<Vec<Arc<CudaStep>>>,
    fixed: Mutex<Option<Arc<Pooled>>>,
}

impl CudaStep {
    /// The tables that a recording of such a step reads, not filled yet.
    pub(super) fn fixed(step: &Step, places: Places, tables: &Pooled) -> Self {
        Self { id: step.id(), tables: tables.pointer(), _memory: None, places, plans: Mutex::default() }
    }

    /// `[B][SEQUENCE_WORDS]` i32.
    pub(crate) fn sequences(&self) -> CUdeviceptr {
        self.at(HEAD_WORDS)
    }

    /// `[T]` i32: the sequence that owns a token.
    pub(crate) fn owners(&self) -> CUdeviceptr {
        self.at(self.places.owners)
    }

    /// `[3][T]` i32: positions for rotary embeddings.
    pub(crate) fn positions(&self) -> CUdeviceptr {
        self.at(self.places.positions)
    }

    /// i32: pages of all sequences, one after the other.
    pub(crate) fn pages(&self) -> CUdeviceptr {
        self.at(self.places.pages)
    }

    /// `[T]` u32: ids of tokens; with the highest bit set, rows of [`late`](Self::late).
    pub(crate) fn ids(&self) -> CUdeviceptr {
        self.at(self.places.ids)
    }

    /// The address of the address of ids that an earlier step has left on the card.
    pub(crate) fn late(&self) -> CUdeviceptr {
        self.tables
    }

    /// `[R]` rows' parameters of what is drawn ([`crate::sampling::cuda::Spec`]).
    pub(crate) fn draws(&self) -> CUdeviceptr {
        self.at(self.places.draws)
    }

    /// The address of the address of the ids that are drawn.
    pub(crate) fn drawn(&self) -> CUdeviceptr {
        self.at(2)
    }

    /// u32: all of the tables, of which penalized ids are a part.
    pub(crate) fn words(&self) -> CUdeviceptr {
        self.tables
    }

    fn at(&self, word: usize) -> CUdeviceptr {
        self.tables + (4 * word) as CUdeviceptr
    }

    /// A list made of the step, once for all layers that ask with the same key; `make` gives words of i32, `words` an
    /// entry, and the extent.
    pub(crate) fn plan(
        &self,
        device: &CudaDevice,
        key: PlanKey,
        words: usize,
        make: impl FnOnce() -> (Vec<i32>, usize),
    ) -> Result<Arc<Plan>> {
        let mut plans = self.plans.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, plan)) = plans.iter().find(|(known, _)| *known == key) {
            return Ok(plan.clone());
        }
        let (list, extent) = make();
        let memory = device.upload(&list)?;
        let plan = Arc::new(Plan { memory, count: list.len() / words.max(1), extent });
        plans.push((key, plan.clone()));
        Ok(plan)
    }
}

/// The chunks of a sequence that a step touches.
pub(crate) fn chunks(past: usize, len: usize) -> std::ops::Range<usize> {
    past / CHUNK..(past + len - 1) / CHUNK + 1
}

/// A step's tables before they are copied.
pub(super) struct Tables {
    pub(super) words: Vec<i32>,
    pub(super) places: Places,
    /// Spans of keys of all sequences.
    pub(super) spans: usize,
}

impl Tables {
    pub(super) fn of(step: &Step) -> Self {
        let tokens = step.len();
        let sequences = step.sequences();
        let mut words: Vec<i32> =
            Vec::with_capacity(HEAD_WORDS + sequences.len() * (SEQUENCE_WORDS + 4) + 5 * tokens);
        let late = step.late();
        // Of ids on another device there is none; the lookup in the embedding table refuses them.
        let draw = step.draw();
        for ids in [late.map(|late| late.ids()), draw.map(|draw| draw.ids())] {
            let address =
                ids.and_then(|ids| Some(ids.buffer().memory().address()? + ids.offset() as CUdeviceptr));
            let address = address.unwrap_or(0);
            words.extend([address as i32, (address >> 32) as i32]);
        }
        let (mut page, mut piece, mut span) = (0, 0, 0);
        let used = |past: usize, len: usize, pages: usize| (past + len).div_ceil(PAGE_LEN).min(pages);
        for (sequence, start) in sequences.iter().zip(step.starts()) {
            let numbers = [*start, sequence.len, sequence.past, sequence.slot, page, piece, span, 0];
            words.extend(numbers.map(|number| number as i32));
            page += used(sequence.past, sequence.len, sequence.pages.len());
            piece += chunks(sequence.past, sequence.len).len();
            span += (sequence.past + sequence.len).div_ceil(SPAN);
        }
        let owners = words.len();
        for (index, sequence) in sequences.iter().enumerate() {
            words.extend(std::iter::repeat_n(index as i32, sequence.len));
        }
        let positions = words.len();
        for line in step.positions() {
            words.extend(line.iter().map(|position| *position as i32));
        }
        let ids = words.len();
        match step.tokens() {
            StepTokens::Ids(own) => words.extend(own.iter().map(|id| *id as i32)),
            StepTokens::Embeddings(_) => words.resize(ids + tokens, 0),
        }
        for (token, row) in late.iter().flat_map(|late| late.rows()) {
            words[ids + token] = (LATE | *row) as i32;
        }
        // Parameters have values of eight bytes.
        let draws = words.len().next_multiple_of(2);
        let rows = draw.map_or(0, |draw| draw.specs().len());
        words.resize(draws + SPEC_WORDS * rows, 0);
        let pages = words.len();
        for sequence in sequences {
            let pages = &sequence.pages[..used(sequence.past, sequence.len, sequence.pages.len())];
            words.extend(pages.iter().map(|page| *page as i32));
        }
        if let Some(draw) = draw {
            let rows = Rows::of(draw.specs(), words.len());
            words[draws..pages].copy_from_slice(bytemuck::cast_slice(&rows.specs));
            words.extend_from_slice(bytemuck::cast_slice(&rows.penalized));
        }
        Self { words, places: Places { owners, positions, ids, draws, pages }, spans: span }
    }

    /// Whether they have room where recordings look for them.
    pub(super) fn fit(&self) -> bool {
        4 * self.words.len() <= FIXED_BYTES
    }
}

impl CudaDevice {
    /// The tables of a step.
    pub(crate) fn step(&self, step: &Step) -> Result<Arc<CudaStep>> {
        if let Some(recorded) = phase::step(self.context(), step.id()) {
            return Ok(recorded);
        }
        let mut kept = self.steps().kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = kept.iter().find(|known| known.id == step.id()) {
            return Ok(known.clone());
        }
        let Tables { words, places, .. } = Tables::of(step);
        let memory = self.upload(&words)?;
        let made = CudaStep {
            id: step.id(),
            tables: memory.pointer(),
            _memory: Some(memory),
            places,
            plans: Mutex::default(),
        };
        let made = Arc::new(made);
        if self.context().phase() == Phase::Rehearsing {
            return Ok(made);
        }
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(made.clone());
        Ok(made)
    }

    /// Where recordings look for a step's tables.
    pub(super) fn fixed_tables(&self) -> Result<Arc<Pooled>> {
        let mut fixed = self.steps().fixed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(fixed) = &*fixed {
            return Ok(fixed.clone());
        }
        let memory = Arc::new(self.temporary(FIXED_BYTES)?);
        *fixed = Some(memory.clone());
        Ok(memory)
    }
}
