//! Operations of several devices at once, for models whose matrices are shared out among them (tensor parallelism): sums of
//! what each has computed, and results put together of parts.
//!
//! Every device has a *rank*, its number in the [`Collective`], and a thread of its own while they compute together
//! ([`Collective::run`]). A collective operation is put on the devices' streams when all ranks have asked for it, by the last
//! one for all: a rank that fails before leaves nothing behind that the others' streams would wait for. The host waits for
//! the other ranks' calls, not for the devices.
//!
//! Cards go through NCCL (`cuda/nccl.rs`), devices in the host's memory through that.
//!
//! Contract: operands are f32 without gaps, alike on all ranks. Sums are made in the order of ranks, value by value: what a
//! row gets depends on no other row. NCCL promises no order, and takes another one for other sizes, which two summands do
//! not tell; for more of them parts are gathered and added here.

mod meeting;

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::thread;

use meeting::Meeting;

use crate::{DType, Device, Error, Result, Tensor, elementwise};

#[cfg(feature = "nccl")]
use crate::cuda::nccl::{Communicators, Nccl};

/// Devices that compute together.
#[derive(Clone)]
pub struct Collective(Arc<Inner>);

struct Inner {
    devices: Vec<Device>,
    fabric: Fabric,
    meeting: Meeting<Request>,
    /// One step at a time.
    turn: Mutex<()>,
}

/// What values go through from one device to another.
enum Fabric {
    Host,
    #[cfg(feature = "nccl")]
    Nccl(Communicators),
}

/// What a rank asks for.
#[derive(Clone)]
enum Request {
    /// The sum of all ranks' tensors, in the place of each.
    Sum(Tensor),
    /// All ranks' tensors one behind the other, in another.
    Gather { part: Tensor, whole: Tensor },
}

/// One device of a [`Collective`].
#[derive(Clone)]
pub struct Rank {
    all: Arc<Inner>,
    rank: usize,
}

impl Collective {
    /// Devices that are to compute together, in the order of their ranks: all cards, each once, or all in the host's memory.
    ///
    /// # Errors
    /// [`Error::Option`] for fewer than two devices, for cards beside others, and for cards in a program that was built
    /// without the feature `nccl`; [`Error::Cuda`] when NCCL is not there or refuses.
    pub fn new(devices: &[Device]) -> Result<Self> {
        let refuse = |what: &str| Err(Error::Option { what: what.to_owned() });
        if devices.len() < 2 {
            return refuse("tensor parallelism takes two devices or more");
        }
        let cards = devices.iter().filter(|device| device.backend().as_cuda().is_some()).count();
        let fabric = match cards {
            0 => Fabric::Host,
            count if count == devices.len() => cards_fabric(devices)?,
            _ => {
                return refuse(
                    "tensor parallelism takes cards alone, or none; leave the CPU out of the devices",
                );
            }
        };
        let (devices, meeting) = (devices.to_vec(), Meeting::of(devices.len()));
        Ok(Self(Arc::new(Inner { devices, fabric, meeting, turn: Mutex::default() })))
    }

    /// What cards compute together through: version and place of the library, for people.
    ///
    /// # Errors
    /// [`Error::Cuda`] when it is not there, [`Error::Option`] in a program that was built without the feature `nccl`.
    pub fn library() -> Result<String> {
        library()
    }

    /// The devices, in the order of their ranks.
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// One of them; the number is below how many there are.
    pub fn rank(&self, rank: usize) -> Rank {
        assert!(rank < self.0.devices.len(), "there is no rank {rank}");
        Rank { all: self.0.clone(), rank }
    }

    /// Has every rank do its part, each on a thread of its own, and gives their results. Where one of them fails the others
    /// fail at their next collective operation, and the first error is given. One call at a time goes on.
    ///
    /// # Errors
    /// Those of `pass`; [`Error::Option`] when there is not one part a rank, or no thread to be had.
    pub fn run<P, T, E>(&self, parts: Vec<P>, pass: impl Fn(P) -> Result<T, E> + Sync) -> Result<Vec<T>, E>
    where
        P: Send,
        T: Send,
        E: From<Error> + Display + Send,
    {
        let Inner { devices, meeting, turn, .. } = &*self.0;
        let failed = |what: String| E::from(Error::Option { what });
        if parts.len() != devices.len() {
            return Err(failed(format!("{} parts for {} ranks", parts.len(), devices.len())));
        }
        let _turn = turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        meeting.begin();
        let one = |rank: usize, part: P| {
            // Also where it panics: nobody is to wait for it.
            let leaving = Leaving { meeting, rank };
            let result = pass(part);
            match &result {
                Ok(_) => {
                    std::mem::forget(leaving);
                    meeting.end(rank);
                }
                Err(error) => meeting.fail(rank, error.to_string()),
            }
            result
        };
        let mut results: Vec<Result<T, E>> = Vec::with_capacity(devices.len());
        thread::scope(|scope| {
            let mut parts = parts.into_iter().enumerate();
            let first = parts.next();
            let others: Vec<_> = parts
                .map(|(rank, part)| {
                    let one = &one;
                    let named = thread::Builder::new().name(format!("rank {rank}"));
                    let thread = named.spawn_scoped(scope, move || one(rank, part));
                    thread.inspect_err(|error| meeting.fail(rank, error.to_string()))
                })
                .collect();
            results.extend(first.map(|(rank, part)| one(rank, part)));
            for thread in others {
                results.push(match thread.map(thread::ScopedJoinHandle::join) {
                    Ok(Ok(result)) => result,
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                    Err(error) => Err(failed(format!("no thread for a rank could be started: {error}"))),
                });
            }
        });
        if let Some(rank) = meeting.failed().filter(|rank| results[*rank].is_err()) {
            results.swap(0, rank);
        }
        results.into_iter().collect()
    }
}

/// Says that a rank has failed when it is dropped.
struct Leaving<'a> {
    meeting: &'a Meeting<Request>,
    rank: usize,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.meeting.fail(self.rank, "it ended early".to_owned());
    }
}

#[cfg(feature = "nccl")]
fn cards_fabric(devices: &[Device]) -> Result<Fabric> {
    let cards: Vec<_> = devices.iter().filter_map(|device| device.backend().as_cuda()).collect();
    Ok(Fabric::Nccl(Communicators::new(&cards)?))
}

#[cfg(feature = "nccl")]
fn library() -> Result<String> {
    let nccl = Nccl::find()?;
    let version = nccl.version();
    let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
    Ok(format!("{major}.{minor}.{patch} at {}", nccl.path()))
}

#[cfg(not(feature = "nccl"))]
fn cards_fabric(_devices: &[Device]) -> Result<Fabric> {
    Err(built_without())
}

#[cfg(not(feature = "nccl"))]
fn library() -> Result<String> {
    Err(built_without())
}

#[cfg(not(feature = "nccl"))]
fn built_without() -> Error {
    Error::Option {
        what: "tensor parallelism between cards goes through NCCL, which this program was built without: build it with \
               `cargo build --release --features nccl`, or choose --split-mode layer"
            .to_owned(),
    }
}

impl Rank {
    /// Its number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn of(&self) -> usize {
        self.all.devices.len()
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.all.devices[self.rank]
    }

    /// The sum of all ranks' tensors of this shape, on this one's device; what `tensor` holds afterwards is undefined. In a
    /// rehearsal ([`Device::prepare`]) nobody is waited for.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] and [`Error::Device`] for a tensor that the contract does not allow,
    /// [`Error::Rank`] when another rank has failed, [`Error::Cuda`] when NCCL does.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<Tensor> {
        const ORDERLESS: usize = 2;
        if self.of() <= ORDERLESS {
            self.ask("all_reduce", &[tensor], Request::Sum(tensor.clone()))?;
            return Ok(tensor.clone());
        }
        let shape: Vec<usize> = [self.of()].iter().chain(tensor.shape()).copied().collect();
        let parts = self.device().scratch(DType::F32, &shape)?;
        self.all_gather(tensor, &parts)?;
        let sum = parts.select(0, 0)?;
        for rank in 1..self.of() {
            elementwise::add(&sum, &parts.select(0, rank)?)?;
        }
        Ok(sum)
    }

    /// Writes all ranks' `part`, one behind the other, to `whole`, which is as many times as long. In a rehearsal nobody is
    /// waited for.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather(&self, part: &Tensor, whole: &Tensor) -> Result<()> {
        let op = "all_gather";
        if part.len().checked_mul(self.of()) != Some(whole.len()) {
            let what = format!("{} values for {} parts of {}", whole.len(), self.of(), part.len());
            return Err(Error::Shape { op, what });
        }
        self.ask(op, &[part, whole], Request::Gather { part: part.clone(), whole: whole.clone() })
    }

    fn ask(&self, op: &'static str, operands: &[&Tensor], request: Request) -> Result<()> {
        for tensor in operands {
            if tensor.dtype() != DType::F32 {
                return Err(Error::DType {
                    op,
                    operand: "a part",
                    found: tensor.dtype(),
                    expected: DType::F32,
                });
            }
            if !tensor.device().same(self.device()) {
                return Err(Error::Device { op, operand: "a part", device: self.device().name().to_owned() });
            }
            if !tensor.is_contiguous() || !tensor.buffer().writable() {
                return Err(Error::Shape {
                    op,
                    what: "a part has gaps or is read-only; copy it first".to_owned(),
                });
            }
        }
        if operands[0].is_empty() || self.device().is_rehearsing() {
            return Ok(());
        }
        self.all.meeting.meet(self.rank, request, |requests| self.all.serve(op, &requests))
    }
}

impl Inner {
    /// Does what all ranks have asked for.
    fn serve(&self, op: &'static str, requests: &[Request]) -> Result<()> {
        let (mut parts, mut wholes) = (Vec::new(), Vec::new());
        for request in requests {
            match request {
                Request::Sum(tensor) => parts.push(tensor),
                Request::Gather { part, whole } => {
                    parts.push(part);
                    wholes.push(whole);
                }
            }
        }
        let alike = parts.iter().all(|part| part.len() == parts[0].len());
        if !alike || (!wholes.is_empty() && wholes.len() != parts.len()) {
            return Err(Error::Shape { op, what: "ranks ask for different things".to_owned() });
        }
        match &self.fabric {
            Fabric::Host => through_host(&parts, &wholes),
            #[cfg(feature = "nccl")]
            Fabric::Nccl(cards) => {
                let bytes = parts[0].span_bytes();
                Device::together(&self.devices, op, bytes, || match wholes.as_slice() {
                    [] => cards.all_reduce(&parts),
                    wholes => cards.all_gather(&parts, wholes),
                })
            }
        }
    }
}

fn through_host(parts: &[&Tensor], wholes: &[&Tensor]) -> Result<()> {
    let values = parts.iter().map(|part| part.to_vec_f32()).collect::<Result<Vec<_>>>()?;
    if !wholes.is_empty() {
        let all = values.concat();
        return wholes.iter().try_for_each(|whole| whole.write_f32(&all));
    }
    let mut values = values.into_iter();
    let mut sum = values.next().unwrap_or_default();
    for part in values {
        sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
    }
    parts.iter().try_for_each(|part| part.write_f32(&sum))
}
