//! Decode steps that a device records once and then replays: hundreds of launches become one.
//!
//! A recording serves all steps of as many sequences with one token each, whatever their lengths: what differs (ids,
//! positions, pages, slots, how ids are drawn and where they go) is read from tables that are filled before each replay.
//! Its intermediate results lie in memory that only recordings use, one of them at a time.
//!
//! Several devices are recorded together where a step goes from one to the other: of each a recording a stretch, and the copies
//! in between.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::device::Lease;
use crate::step::DrawKind;
use crate::{DType, Device, Error, Result, Step, StepTokens, Tensor};

/// The most sequences of a step that is recorded: with more, launches take little of its time.
pub(crate) const MOST_SEQUENCES: usize = 256;

/// Recordings that are kept, one for each number of sequences and way of drawing from their logits.
const MOST_RECORDINGS: usize = 64;

/// Steps that are launched before another attempt to record or replay them: what failed may have been short of memory.
const PAUSE: usize = 1000;

/// What devices have recorded.
pub(crate) trait Recording: Send {
    /// Runs it for a step of the same shape.
    ///
    /// # Errors
    /// What a device says when a part of the step is done already.
    fn replay(&self, step: &Step) -> Result<Replayed>;
}

/// What a replay has done.
pub(crate) enum Replayed {
    /// The step.
    Whole,
    /// Nothing, since it has no room for the step, or a device refuses what is first.
    Nothing(Option<Error>),
}

/// The recordings of one model with one set of caches, which their kernels point into: drop them together.
#[derive(Default)]
pub struct Recordings {
    kept: Mutex<Vec<Kept>>,
    replays: AtomicUsize,
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
    /// Which of the devices it is on.
    device: usize,
    /// Of each device's recordings.
    generations: Vec<u64>,
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
    /// must launch the same for all such steps, and the caller has checked what operations would have checked. `devices` are
    /// all that it computes on, each once; where one of them records nothing the pass is called.
    ///
    /// The result is an ordinary tensor: as long as somebody holds it, no recording writes to it.
    ///
    /// # Errors
    /// Those of `pass`, and what the devices say.
    pub fn run<E: From<Error> + fmt::Display>(
        &self,
        devices: &[&Device],
        step: &Step,
        owner: u64,
        pass: impl Fn() -> Result<Tensor, E>,
    ) -> Result<Tensor, E> {
        if !devices.iter().all(|device| device.records()) || !is_decode(step) {
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
        let result = found.run(devices, step, &pass, &self.replays);
        kept.push(found);
        drop(kept);
        result
    }
}

impl Kept {
    fn run<E: From<Error> + fmt::Display>(
        &mut self,
        devices: &[&Device],
        step: &Step,
        pass: &dyn Fn() -> Result<Tensor, E>,
        replays: &AtomicUsize,
    ) -> Result<Tensor, E> {
        if let State::Refused(left) = &mut self.state {
            *left -= 1;
            if *left == 0 {
                self.state = State::Seen;
            }
            return pass();
        }
        // Another recording's result is still in use.
        let leases: Option<Vec<Lease>> = devices.iter().map(|device| device.lease()).collect();
        let Some(mut leases) = leases else { return pass() };
        if matches!(&self.state, State::Ready(_, place) if place.generations != generations(devices)) {
            // Its memory was needed for something else.
            self.state = State::Seen;
        }
        if matches!(self.state, State::Seen) {
            match record(devices, step, pass) {
                Ok((recording, place)) => self.state = State::Ready(recording, place),
                Err(fault) => self.refuse(&fault),
            }
        }
        let State::Ready(recording, place) = &self.state else {
            drop(leases);
            return pass();
        };
        // The other devices' last until their part of the replay is on its way.
        let Some(result) = place.take(leases.swap_remove(place.device))? else {
            drop(leases);
            return pass();
        };
        let (fault, begun) = match recording.replay(step) {
            Ok(Replayed::Whole) => {
                replays.fetch_add(1, Ordering::Relaxed);
                return Ok(result);
            }
            Ok(Replayed::Nothing(fault)) => (fault, false),
            Err(fault) => (Some(fault), true),
        };
        if let Some(fault) = fault {
            let lost = devices.iter().any(|device| device.lost().is_some());
            if !lost {
                self.refuse(&fault.to_string());
            }
            // What is done of a step cannot be done again.
            if lost || begun {
                return Err(fault.into());
            }
        }
        // What the pass takes may need its memory.
        drop((result, leases));
        pass()
    }

    fn refuse(&mut self, fault: &str) {
        warn(fault);
        self.state = State::Refused(PAUSE);
    }
}

/// Which recordings of the devices are good.
fn generations(devices: &[&Device]) -> Vec<u64> {
    devices.iter().map(|device| device.recordings_generation()).collect()
}

/// Records a pass, which gives no values yet; twice, where its intermediate results have no room until it is known how much
/// they need.
fn record<E: fmt::Display>(
    devices: &[&Device],
    step: &Step,
    pass: &dyn Fn() -> Result<Tensor, E>,
) -> Result<(Box<dyn Recording>, Place), String> {
    loop {
        devices.iter().for_each(|device| device.begin_recording());
        let mut place = Err("it did not run".to_owned());
        let recording = Device::record(devices, step, &mut || {
            let result = pass().map_err(|error| error.to_string());
            place = result.and_then(|result| Place::of(devices, &result));
        });
        let (mut place, recording) = (place?, recording.map_err(|error| error.to_string())?);
        if devices.iter().any(|device| device.recorded_in_use() > 0) {
            return Err("the pass keeps intermediate results".to_owned());
        }
        let mut had_room = true;
        for device in devices {
            had_room &= device.had_room().map_err(|error| error.to_string())?;
        }
        if had_room {
            place.generations = generations(devices);
            return Ok((recording, place));
        }
    }
}

impl Place {
    fn of(devices: &[&Device], result: &Tensor) -> Result<Self, String> {
        let buffer = result.buffer();
        let address = buffer.memory().address().filter(|_| buffer.is_recorded());
        let device = devices.iter().position(|device| device.same(result.device()));
        match (address, device) {
            (Some(address), Some(device)) if result.offset() == 0 && result.is_contiguous() => Ok(Self {
                device,
                generations: Vec::new(),
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
        let ready = kept.iter().filter(|kept| matches!(kept.state, State::Ready(..))).count();
        write!(f, "{ready} recordings, {} replays", self.replays.load(Ordering::Relaxed))
    }
}
