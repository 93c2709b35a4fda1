//! What kernels read about a step, copied to the card once and kept while layers ask for the same step.

use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUdeviceptr;

use super::CudaDevice;
use super::memory::Pooled;
use crate::{CHUNK, PAGE_LEN, Result, Step};

/// Words (i32) that a sequence takes in the table: start, len, past, slot, first page in the list of pages, first piece in
/// the list of pieces of chunks; then some for later.
pub(crate) const SEQUENCE_WORDS: usize = 8;

/// Steps that are kept: a step, and the one that a drafting model runs beside it.
const KEPT: usize = 4;

/// A step's tables on the card.
pub(crate) struct CudaStep {
    id: u64,
    memory: Pooled,
    owners: usize,
    positions: usize,
    pages: usize,
    plans: Mutex<Vec<(PlanKey, Arc<Plan>)>>,
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
}

impl CudaStep {
    /// `[B][SEQUENCE_WORDS]` i32.
    pub(crate) fn sequences(&self) -> CUdeviceptr {
        self.memory.pointer()
    }

    /// `[T]` i32: the sequence that owns a token.
    pub(crate) fn owners(&self) -> CUdeviceptr {
        self.at(self.owners)
    }

    /// `[3][T]` i32: positions for rotary embeddings.
    pub(crate) fn positions(&self) -> CUdeviceptr {
        self.at(self.positions)
    }

    /// i32: pages of all sequences, one after the other.
    pub(crate) fn pages(&self) -> CUdeviceptr {
        self.at(self.pages)
    }

    fn at(&self, word: usize) -> CUdeviceptr {
        self.memory.pointer() + (4 * word) as CUdeviceptr
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

impl CudaDevice {
    /// The tables of a step.
    pub(crate) fn step(&self, step: &Step) -> Result<Arc<CudaStep>> {
        let mut kept = self.steps().kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = kept.iter().find(|known| known.id == step.id()) {
            return Ok(known.clone());
        }
        let tokens = step.len();
        let sequences = step.sequences();
        let mut words: Vec<i32> = Vec::with_capacity(sequences.len() * SEQUENCE_WORDS + 4 * tokens);
        let (mut page, mut piece) = (0, 0);
        let used = |past: usize, len: usize, pages: usize| (past + len).div_ceil(PAGE_LEN).min(pages);
        for (sequence, start) in sequences.iter().zip(step.starts()) {
            let numbers = [*start, sequence.len, sequence.past, sequence.slot, page, piece, 0, 0];
            words.extend(numbers.map(|number| number as i32));
            page += used(sequence.past, sequence.len, sequence.pages.len());
            piece += chunks(sequence.past, sequence.len).len();
        }
        let owners = words.len();
        for (index, sequence) in sequences.iter().enumerate() {
            words.extend(std::iter::repeat_n(index as i32, sequence.len));
        }
        let positions = words.len();
        for line in step.positions() {
            words.extend(line.iter().map(|position| *position as i32));
        }
        let pages = words.len();
        for sequence in sequences {
            let pages = &sequence.pages[..used(sequence.past, sequence.len, sequence.pages.len())];
            words.extend(pages.iter().map(|page| *page as i32));
        }
        let made = Arc::new(CudaStep {
            id: step.id(),
            memory: self.upload(&words)?,
            owners,
            positions,
            pages,
            plans: Mutex::default(),
        });
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(made.clone());
        Ok(made)
    }
}
