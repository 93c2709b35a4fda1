//! Decode steps that a device records once and then replays: hundreds of launches become one.
//!
//! A recording serves all steps of as many sequences with one token each, whatever their lengths: what differs (ids,
//! positions, pages, slots, how ids are drawn and where they go) is read from tables that are filled before each replay.
//! Its intermediate results lie in memory that only recordings use, one of them at a time.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::Lease;
use crate::step::DrawKind;
use crate::{DType, Device, Error, Result, Step, StepTokens, Tensor};

/// The most sequences of a step that is recorded: with more, launches take little of its time.
pub(crate) const MOST_SEQUENCES: usize = 256;

/// Recordings that are kept, one for each number of sequences and way of drawing from their logits.
const MOST_RECORDINGS: usize = 64;

/// Steps that are launched before another attempt to record or replay them: what failed may have been short of memory.
const PAUSE: usize = 1000;

/// What a device has recorded.
pub(crate) trait Recording: Send {
    /// Runs it for a step of the same shape; `false`, and nothing is done, where it has no room for the step.
    fn replay(&self, step: &Step) -> Result<bool>;
}

/// The recordings of one model with one set of caches, which their kernels point into: drop them together.
#[derive(Default)]
pub struct Recordings {
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
    owner: u64,
    sequences: usize,
    draw: DrawKind,
    state: State,
}

enum State {
    /// Such a step ran once: its kernels are there.
    Seen,
    Ready(Box<dyn Recording>, Place),
    /// It could not be recorded or replayed: so many more steps are launched.
    Refused(usize),
}

/// Where a recording leaves its result.
struct Place {
    /// Of the device's recordings.
    generation: u64,
    address: u64,
    bytes: usize,
    dtype: DType,
    shape: Vec<usize>,
}

/// Whether a step has one token, and logits, of every sequence.
fn is_decode(step: &Step) -> bool {
    let tokens = step.len();
    tokens == step.sequences().len()
        && tokens <= MOST_SEQUENCES
        && matches!(step.tokens(), StepTokens::Ids(_))
        && step.output_rows().iter().copied().eq(0..tokens as u32)
}

impl Recordings {
    /// What `pass` makes of the step: by calling it, or by replaying what it launched for an earlier step of as many
    /// sequences from whose logits ids are drawn in the same way. `owner` tells apart what else a pass depends on; `pass`
    /// must launch the same for all such steps, and the caller has checked what operations would have checked.
    ///
    /// The result is an ordinary tensor: as long as somebody holds it, no recording writes to it.
    ///
    /// # Errors
    /// Those of `pass`, and what the device says.
    pub fn run<E: From<Error> + fmt::Display>(
        &self,
        device: &Device,
        step: &Step,
        owner: u64,
        pass: impl Fn() -> Result<Tensor, E>,
    ) -> Result<Tensor, E> {
        if !device.records() || !is_decode(step) {
            return pass();
        }
        let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (sequences, draw) = (step.len(), step.draw_kind());
        let own = |kept: &Kept| (kept.owner, kept.sequences, kept.draw) == (owner, sequences, draw);
        let Some(at) = kept.iter().position(own) else {
            // Only what ran has all that a recording finds there: kernels, tables of constants.
            let result = pass()?;
            if kept.len() == MOST_RECORDINGS {
                kept.remove(0);
            }
            kept.push(Kept { owner, sequences, draw, state: State::Seen });
            return Ok(result);
        };
        // Those that were used last stand last.
        let mut found = kept.remove(at);
        let result = found.run(device, step, &pass);
        kept.push(found);
        drop(kept);
        result
    }
}

impl Kept {
    fn run<E: From<Error> + fmt::Display>(
        &mut self,
        device: &Device,
        step: &Step,
        pass: &dyn Fn() -> Result<Tensor, E>,
    ) -> Result<Tensor, E> {
        if let State::Refused(left) = &mut self.state {
            *left -= 1;
            if *left == 0 {
                self.state = State::Seen;
            }
            return pass();
        }
        // Another recording's result is still in use.
        let Some(lease) = device.lease() else { return pass() };
        if matches!(&self.state, State::Ready(_, place) if place.generation != device.recordings_generation())
        {
            // Its memory was needed for something else.
            self.state = State::Seen;
        }
        if matches!(self.state, State::Seen) {
            match record(device, step, pass) {
                Ok((recording, place)) => self.state = State::Ready(recording, place),
                Err(fault) => self.refuse(&fault),
            }
        }
        let State::Ready(recording, place) = &self.state else {
            drop(lease);
            return pass();
        };
        let Some(result) = place.take(lease)? else { return pass() };
        match recording.replay(step) {
            Ok(true) => return Ok(result),
            Ok(false) => {}
            Err(fault) if device.lost().is_some() => return Err(fault.into()),
            Err(fault) => self.refuse(&fault.to_string()),
        }
        // What the pass takes may need its memory.
        drop(result);
        pass()
    }

    fn refuse(&mut self, fault: &str) {
        warn(fault);
        self.state = State::Refused(PAUSE);
    }
}

/// Records a pass, which gives no values yet; twice, where its intermediate results have no room until it is known how much
/// they need.
fn record<E: fmt::Display>(
    device: &Device,
    step: &Step,
    pass: &dyn Fn() -> Result<Tensor, E>,
) -> Result<(Box<dyn Recording>, Place), String> {
    loop {
        device.begin_recording();
        let mut place = Err("it did not run".to_owned());
        let recording = device.record(step, &mut || {
            place = pass().map_err(|error| error.to_string()).and_then(|result| Place::of(&result));
        });
        let (mut place, recording) = (place?, recording.map_err(|error| error.to_string())?);
        if device.recorded_in_use() > 0 {
            return Err("the pass keeps intermediate results".to_owned());
        }
        if device.had_room().map_err(|error| error.to_string())? {
            place.generation = device.recordings_generation();
            return Ok((recording, place));
        }
    }
}

impl Place {
    fn of(result: &Tensor) -> Result<Self, String> {
        let buffer = result.buffer();
        let address = buffer.memory().address().filter(|_| buffer.is_recorded());
        match address {
            Some(address) if result.offset() == 0 && result.is_contiguous() => Ok(Self {
                generation: 0,
                address,
                bytes: buffer.bytes(),
                dtype: result.dtype(),
                shape: result.shape().to_vec(),
            }),
            _ => Err("its result does not lie in memory of the recording".to_owned()),
        }
    }

    fn take(&self, lease: Lease) -> Result<Option<Tensor>> {
        let Some(buffer) = lease.take(self.bytes, self.address) else { return Ok(None) };
        Tensor::contiguous_in(buffer, 0, self.dtype, &self.shape).map(Some)
    }
}

/// Says once that steps are launched operation by operation.
fn warn(fault: &str) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        eprintln!(
            "warning: decode steps are launched operation by operation for a while, not replayed: {fault}"
        );
    }
}

impl fmt::Debug for Recordings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        write!(f, "{} recordings", kept.iter().filter(|kept| matches!(kept.state, State::Ready(..))).count())
    }
}
