//! Runs cases on devices.

use std::fmt;

use super::compare::first_difference;
use super::{Bar, Case, Output, Shard, Subset};
use crate::{Activations, CpuOptions, CudaOptions, Device, Isa, Result, Without};

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Run on the CPU: every instruction set that this machine has, with one and with two threads.
    pub cpu: bool,
    /// The CPU's numbers of threads.
    pub threads: Vec<usize>,
    /// Run on the reference device itself.
    pub reference: bool,
    /// Run on the CPU with families in their plainest form, all but the delta rule, which keeps another state; on a card with
    /// what stands in the place of its kernels.
    pub plain: bool,
    /// Run on the NVIDIA card with this number.
    pub cuda: Option<usize>,
    /// Only cases whose operation and label, as in `linear Q4_K [7, 256] x 1`, contain this.
    pub filter: Option<String>,
    /// Only cases of a subset.
    pub subset: Option<Subset>,
    /// Of those, only a part, for several processes side by side.
    pub shard: Option<Shard>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cpu: true,
            threads: vec![1, 2],
            reference: false,
            plain: false,
            cuda: None,
            filter: None,
            subset: None,
            shard: None,
        }
    }
}

/// What went wrong in a case.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The operation returned an error.
    Error(String),
    /// The result is too far from the reference.
    Distance,
    /// Results that must have the same bits differ.
    Bits {
        /// The other way to the result, or the other device.
        against: String,
        /// The first difference.
        what: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Error(error) => write!(f, "error: {error}"),
            Failure::Distance => write!(f, "too far from the reference"),
            Failure::Bits { against, what } => write!(f, "not the bits of {against}: {what}"),
        }
    }
}

/// How one case went on one device.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The operation.
    pub op: &'static str,
    /// The case.
    pub label: String,
    /// The device.
    pub device: String,
    /// What it was compared with.
    pub bar: Bar,
    /// The measured distance, in the measure of the bar's tolerance.
    pub distance: f64,
    /// What went wrong, if anything did.
    pub failure: Option<Failure>,
}

/// How all cases went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One entry a case, bar and device.
    pub outcomes: Vec<Outcome>,
    /// Comparisons that demanded the same bits.
    pub bit_checks: usize,
}

impl Report {
    /// The outcomes that are failures.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.failure.is_some())
    }
}

/// Runs all cases that the options ask for; `progress` sees the outcomes of each case when it is done.
///
/// # Errors
/// [`crate::Error::Option`] when a device cannot be made. What goes wrong inside a case is in the report.
pub fn run(options: &Options, mut progress: impl FnMut(&[Outcome])) -> Result<Report> {
    let bench = Bench::new(options)?;
    let mut report = Report::default();
    let wanted = |case: &Case| {
        options.filter.as_ref().is_none_or(|filter| case.name().contains(filter.as_str()))
            && options.subset.is_none_or(|subset| subset.has(case))
    };
    let cases = super::cases();
    let cases = cases.iter().filter(|case| wanted(case)).enumerate();
    for (_, case) in cases.filter(|&(place, _)| options.shard.is_none_or(|shard| shard.has(place))) {
        let first = report.outcomes.len();
        for bar in &case.bars {
            bench.hold(case, *bar, &mut report);
        }
        progress(&report.outcomes[first..]);
    }
    Ok(report)
}

/// The devices of a run.
struct Bench {
    references: [(Activations, Device); 3],
    devices: Vec<(Activations, Device)>,
}

impl Bench {
    fn new(options: &Options) -> Result<Self> {
        let all = [Activations::Int8, Activations::Bf16, Activations::F32];
        let references = all.map(|activations| (activations, Device::reference(activations)));
        let mut devices = Vec::new();
        for activations in all {
            if options.reference {
                devices.push((activations, Device::reference(activations)));
            }
            // Plain products do not round their inputs.
            let without: &[Without] = match activations {
                _ if !options.plain => &[],
                Activations::F32 => &[Without::Matmul, Without::Moe],
                Activations::Int8 => &[Without::Norm, Without::Attention, Without::Fusion],
                Activations::Bf16 => &[Without::Norm, Without::Attention, Without::DeltaNet, Without::Fusion],
            };
            if let Some(ordinal) = options.cuda.filter(|_| activations != Activations::Int8) {
                let options =
                    CudaOptions { activations, without: without.to_vec(), ..CudaOptions::default() };
                devices.push((activations, Device::cuda(ordinal, options)?));
            }
            if activations == Activations::Bf16 {
                continue;
            }
            if options.plain && options.cuda.is_none() {
                let cpu = CpuOptions { threads: Some(2), activations, isa: None };
                devices.push((activations, Device::cpu_without(cpu, without)?));
            }
            let instruction_sets = Isa::ALL.into_iter().filter(|isa| options.cpu && isa.available());
            for isa in instruction_sets {
                for &threads in &options.threads {
                    let options = CpuOptions { threads: Some(threads), activations, isa: Some(isa) };
                    devices.push((activations, Device::cpu(options)?));
                }
            }
        }
        Ok(Self { references, devices })
    }

    fn hold(&self, case: &Case, bar: Bar, report: &mut Report) {
        let reference = self.references.iter().find(|(activations, _)| *activations == bar.reference);
        let expected = reference.map(|(_, device)| (case.compute)(device));
        let mut first: Option<(String, Vec<Output>)> = None;
        for (_, device) in self.devices.iter().filter(|(activations, _)| *activations == bar.device) {
            let mut outcome = Outcome {
                op: case.op,
                label: case.label.clone(),
                device: device.name().to_owned(),
                bar,
                distance: 0.0,
                failure: None,
            };
            match (&expected, (case.compute)(device)) {
                (Some(Ok(expected)), Ok(got)) => {
                    let (distance, within) = bar.tolerance.judge(&got, expected);
                    outcome.distance = distance;
                    if !within {
                        outcome.failure = Some(Failure::Distance);
                    }
                    let bits = outcome.failure.is_none().then(|| {
                        self.hold_bits(case, bar, device, &got, first.as_ref(), &mut report.bit_checks)
                    });
                    outcome.failure = outcome.failure.or(bits.flatten());
                    if first.is_none() && !is_reference(device) {
                        first = Some((device.name().to_owned(), got));
                    }
                }
                (Some(Err(error)), _) => {
                    outcome.failure = Some(Failure::Error(format!("reference: {error}")))
                }
                (_, Err(error)) => outcome.failure = Some(Failure::Error(error.to_string())),
                (None, _) => {}
            }
            report.outcomes.push(outcome);
        }
    }

    /// The other ways to the result, and the first device, have the same bits.
    fn hold_bits(
        &self,
        case: &Case,
        bar: Bar,
        device: &Device,
        got: &[Output],
        first: Option<&(String, Vec<Output>)>,
        checks: &mut usize,
    ) -> Option<Failure> {
        for (way, compute) in &case.equals {
            *checks += 1;
            let other = match compute(device) {
                Ok(other) => other,
                Err(error) => return Some(Failure::Error(format!("{way}: {error}"))),
            };
            let difference = if is_reference(device) {
                (!bar.tolerance.judge(&other, got).1).then(|| "too far".to_owned())
            } else {
                first_difference(&other, got)
            };
            if let Some(what) = difference {
                return Some(Failure::Bits { against: (*way).to_owned(), what });
            }
        }
        let (name, values) = first.filter(|_| !is_reference(device))?;
        *checks += 1;
        first_difference(got, values).map(|what| Failure::Bits { against: name.clone(), what })
    }
}

fn is_reference(device: &Device) -> bool {
    device.name().starts_with("reference")
}
