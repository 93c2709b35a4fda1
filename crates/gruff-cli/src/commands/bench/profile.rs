//! Where the time of a step goes, operation by operation, beside what the machine could do.

use std::io::Write;
use std::time::{Duration, Instant};

use gruff::AutoModelForCausalLM;
use gruff::floors::kernels::sampling::{SampleSpec, sample};
use gruff::floors::kernels::{self, DType, Device, Family, OpProfile, bandwidth, compute};
use serde_json::{Value, json};

use super::measure::Test;
use super::sequences::Sequences;

/// What the machine can do: a processor with the threads of a run, or a card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceilings {
    on_card: bool,
    /// Bytes a second: read by a processor; read and written by a card that copies.
    memory: f64,
    f32: f64,
    int8: Option<f64>,
    /// By a card's tensor cores.
    bf16: Option<f64>,
}

impl Ceilings {
    pub(super) fn measure(device: &Device) -> anyhow::Result<Self> {
        if let Some(card) = device.ceilings()? {
            let kernels::Ceilings { copy, bf16, int8, f32 } = card;
            return Ok(Self { on_card: true, memory: copy, f32, int8, bf16 });
        }
        let threads = Some(device.threads());
        let memory = bandwidth::measure(threads)?;
        let compute::Compute { f32, int8 } = compute::measure(threads)?;
        Ok(Self { on_card: false, memory, f32, int8, bf16: None })
    }

    /// Products a second that a family's kernels could reach.
    fn products(&self, family: Family) -> f64 {
        let fastest = match family {
            Family::Matmul | Family::Moe => self.bf16.or(self.int8.filter(|_| !self.on_card)),
            Family::Attention | Family::DeltaNet => self.bf16,
            _ => None,
        };
        fastest.unwrap_or(self.f32)
    }

    fn words(&self) -> String {
        let giga = |speed: Option<f64>| speed.map_or("no".to_owned(), |speed| format!("{:.0}", speed / 1e9));
        let (memory, f32) = (self.memory / 1e9, giga(Some(self.f32)));
        if self.on_card {
            return format!(
                "memory is copied at {memory:.1} GB/s, read and written; {} bf16 and {} int8 GMAC/s by tensor cores, {f32} f32 \
                 (G multiplications with addition)",
                giga(self.bf16),
                giga(self.int8)
            );
        }
        format!(
            "memory is read at {memory:.1} GB/s; {} int8 and {f32} f32 GMAC/s (G multiplications with addition)",
            giga(self.int8)
        )
    }
}

/// The steps of one test, counted.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    label: String,
    steps: usize,
    /// All steps together. Where a card has counted by its own clock, of a run that was not counted.
    total: Duration,
    /// What each device of the model did, the one with its head first.
    parts: Vec<Part>,
}

/// What one device did.
#[derive(Clone, Debug)]
struct Part {
    device: String,
    /// The longest first.
    ops: Vec<OpProfile>,
    /// What a kernel that does nothing takes by the card's clock, which counted.
    empty_kernel: Option<Duration>,
    ceilings: Ceilings,
    /// The profile's, which shares relate to.
    steps: usize,
    total: Duration,
}

/// The devices that a model computes on, the one with its head first.
pub(super) fn devices(model: &AutoModelForCausalLM) -> Vec<Device> {
    let head = model.device();
    let all = model.model().devices();
    let others = all.iter().filter(|device| !device.same(head)).map(|device| Device::clone(device));
    std::iter::once(head.clone()).chain(others).collect()
}

/// As Qwen recommends for its models; sampling is a part of a decode step.
fn sampling(position: u64) -> SampleSpec {
    SampleSpec {
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.0,
        repetition_penalty: 1.0,
        penalized: Vec::new(),
        seed: 1,
        position,
    }
}

/// Runs a test once more with `count` sequences together, every operation of every device counted; `ceilings` are those of
/// [`devices`]. After each generated token of each an id is sampled. A card counts by its own clock, of steps that are launched operation by operation; what a step takes
/// when nothing is counted, recorded steps replayed, is measured before.
pub(super) fn measure(
    model: &AutoModelForCausalLM,
    test: Test,
    count: usize,
    ubatch: usize,
    ceilings: &[Ceilings],
) -> anyhow::Result<Profile> {
    let devices = devices(model);
    let mut sequences = Sequences::new(model, count, test.depth + test.prompt + test.generated + 1, ubatch)?;
    let uncounted = if devices.iter().any(Device::runs_behind) {
        // Steps are recorded in the first run.
        run(&mut sequences, model, test, &[])?;
        Some(run(&mut sequences, model, test, &[])?)
    } else {
        None
    };
    let counted = run(&mut sequences, model, test, &devices)?;
    let by_card = devices.iter().any(|device| device.profile_overhead().is_some());
    let total = uncounted.filter(|_| by_card).unwrap_or(counted);
    let steps = (test.prompt * count).div_ceil(ubatch.max(count)) + test.generated;
    let part = |(device, ceilings): (&Device, &Ceilings)| {
        let ops = device.take_profile();
        let empty_kernel = device.profile_overhead();
        device.profile(false);
        let device = device.name().to_owned();
        Part { device, ops, empty_kernel, ceilings: *ceilings, steps, total }
    };
    let parts = devices.iter().zip(ceilings).map(part).collect();
    let label = if count == 1 { test.label() } else { format!("{} of {count} sequences", test.label()) };
    Ok(Profile { label, steps, total, parts })
}

/// What the test's steps take from the first to the last, operations of some devices counted.
fn run(
    sequences: &mut Sequences,
    model: &AutoModelForCausalLM,
    test: Test,
    counted: &[Device],
) -> anyhow::Result<Duration> {
    sequences.clear();
    sequences.prompt(test.depth)?;
    if test.generated > 0 {
        // Memory of intermediate results is taken in the first step.
        sequences.generate()?.to_vec_f32()?;
    }
    counted.iter().for_each(|device| device.profile(true));
    let started = Instant::now();
    sequences.prompt(test.prompt)?;
    for position in 0..test.generated {
        let logits = sequences.generate()?;
        let count = logits.shape()[0];
        let ids = model.device().scratch(DType::I32, &[count])?;
        sample(&logits, &vec![sampling(position as u64); count], &ids)?;
        ids.to_vec_i32()?;
    }
    Ok(started.elapsed())
}

/// The sum of some operations.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: u64,
    time: Duration,
    bytes: u64,
    products: u64,
}

impl Sum {
    fn of<'a>(ops: impl Iterator<Item = &'a OpProfile>) -> Self {
        ops.fold(Self::default(), |sum, op| Self {
            calls: sum.calls + op.calls,
            time: sum.time + op.time,
            bytes: sum.bytes + op.bytes,
            products: sum.products + op.products,
        })
    }

    fn seconds(&self) -> f64 {
        self.time.as_secs_f64().max(1e-12)
    }
}

impl Profile {
    /// A table for each device, the heading once.
    pub(super) fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let per_step = self.total.as_secs_f64() * 1e3 / self.steps.max(1) as f64;
        writeln!(out, "\n{}, operation by operation: {} steps of {per_step:.3} ms", self.label, self.steps)?;
        let several = self.parts.len() > 1;
        for part in &self.parts {
            if several {
                writeln!(out, "\non {}", part.device)?;
            }
            part.write(out)?;
            if !several {
                part.row(out, self.between_name(), Family::Transfer, &self.between())?;
            }
        }
        if several {
            let Sum { calls, time, .. } = self.between();
            let name = self.between_name();
            let (steps, all) = (self.steps.max(1) as f64, self.total.as_secs_f64().max(1e-12));
            writeln!(
                out,
                "\n{name}, beside what all devices did one after the other: {:.4} ms a step ({:.1} %), {:.1} launches",
                time.as_secs_f64() * 1e3 / steps,
                time.as_secs_f64() / all * 100.0,
                calls as f64 / steps
            )?;
        }
        Ok(())
    }

    fn between_name(&self) -> &'static str {
        match self.parts.iter().any(|part| part.empty_kernel.is_some()) {
            true => "launches, gaps, host",
            false => "between operations",
        }
    }

    /// What passes outside of operations: building steps, taking memory; on cards the launches, which are counted. 0 where devices
    /// computed at the same time and did more than fills the step.
    fn between(&self) -> Sum {
        let ops = || self.parts.iter().flat_map(|part| &part.ops);
        let inside = Sum::of(ops()).time;
        let launches = ops().flat_map(|op| &op.kernels).filter(|kernel| !kernel.name.is_empty());
        let calls = launches.map(|kernel| kernel.calls).sum();
        Sum { calls, time: self.total.saturating_sub(inside), ..Sum::default() }
    }

    /// The same for programs: of one device its account, of several a list of theirs.
    pub(super) fn json(&self) -> Value {
        let mut all = json!({
            "steps": self.steps,
            "ns": self.total.as_nanos() as u64,
            "between_ns": self.between().time.as_nanos() as u64,
        });
        match self.parts.as_slice() {
            [only] => all.as_object_mut().into_iter().for_each(|all| all.extend(only.json())),
            several => {
                let named = |part: &Part| {
                    let mut own = part.json();
                    own.insert("device".to_owned(), json!(part.device));
                    Value::Object(own)
                };
                all["devices"] = several.iter().map(named).collect();
            }
        }
        all
    }
}

impl Part {
    /// Families with anything to show, the longest first.
    fn families(&self) -> Vec<(Family, Sum)> {
        let sum = |family| (family, Sum::of(self.ops.iter().filter(|op| op.family == family)));
        let mut families: Vec<_> =
            Family::ALL.into_iter().map(sum).filter(|(_, sum)| sum.calls > 0).collect();
        families.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.time));
        families
    }

    /// Shares of the step, of the bandwidth and of the multiplications that the machine could make meanwhile.
    fn shares(&self, family: Family, sum: &Sum) -> [f64; 3] {
        [
            sum.seconds() / self.total.as_secs_f64().max(1e-12),
            sum.bytes as f64 / sum.seconds() / self.ceilings.memory,
            sum.products as f64 / sum.seconds() / self.ceilings.products(family),
        ]
    }

    /// A row a family, below it the operations, and below these, on a card, their kernels.
    fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        if let Some(empty) = self.empty_kernel {
            let empty = empty.as_secs_f64() * 1e6;
            writeln!(
                out,
                "steps as they are run; operations by the card's clock, launched one by one, less the {empty:.2} us that a kernel \
                 which does nothing takes"
            )?;
        }
        writeln!(out, "ceilings: {}", self.ceilings.words())?;
        writeln!(
            out,
            "\n| {:<28} | {:>7} | {:>9} | {:>7} | {:>8} | {:>7} | {:>8} | {:>7} |",
            "operation",
            "calls",
            "ms a step",
            "share",
            "GB/s",
            self.of_memory(),
            "GMAC/s",
            "of peak"
        )?;
        writeln!(
            out,
            "| {} | ------: | --------: | ------: | -------: | ------: | -------: | ------: |",
            "-".repeat(28)
        )?;
        for (family, sum) in self.families() {
            self.row(out, &format!("**{family}**"), family, &sum)?;
            for op in self.ops.iter().filter(|op| op.family == family) {
                let name = format!("{} {}", op.op, op.detail);
                self.row(out, name.trim(), family, &Sum::of(std::iter::once(op)))?;
                self.kernel_rows(out, op)?;
            }
        }
        Ok(())
    }

    /// The heading of shares of the memory's ceiling.
    fn of_memory(&self) -> &'static str {
        if self.ceilings.on_card { "of copy" } else { "of read" }
    }

    /// The kernels of an operation.
    fn kernel_rows(&self, out: &mut impl Write, op: &OpProfile) -> anyhow::Result<()> {
        for kernel in &op.kernels {
            let name = if kernel.name.is_empty() { "copies, host" } else { kernel.name };
            let sum = Sum { calls: kernel.calls, time: kernel.time, ..Sum::default() };
            self.row(out, &format!("  - {name}"), op.family, &sum)?;
        }
        Ok(())
    }

    fn row(&self, out: &mut impl Write, name: &str, family: Family, sum: &Sum) -> anyhow::Result<()> {
        let [share, read, products] = self.shares(family, sum);
        let steps = self.steps.max(1) as f64;
        let per_second = |count: u64| count as f64 / sum.seconds() / 1e9;
        let number = |is: bool, text: String| if is { text } else { String::new() };
        Ok(writeln!(
            out,
            "| {name:<28} | {:>7} | {:>9.4} | {:>5.1} % | {:>8} | {:>7} | {:>8} | {:>7} |",
            number(sum.calls > 0, format!("{:.1}", sum.calls as f64 / steps)),
            sum.time.as_secs_f64() * 1e3 / steps,
            share * 100.0,
            number(sum.bytes > 0, format!("{:.2}", per_second(sum.bytes))),
            number(sum.bytes > 0, format!("{:.0} %", read * 100.0)),
            number(sum.products > 0, format!("{:.2}", per_second(sum.products))),
            number(sum.products > 0, format!("{:.0} %", products * 100.0)),
        )?)
    }

    /// The same for programs.
    fn json(&self) -> serde_json::Map<String, Value> {
        let entry = |family: Family, op: Option<&OpProfile>, sum: &Sum| {
            let [share, read, products] = self.shares(family, sum);
            let mut entry = json!({
                "family": family.name(),
                "calls": sum.calls,
                "ns": sum.time.as_nanos() as u64,
                "bytes": sum.bytes,
                "products": sum.products,
                "share": share,
                "bandwidth_share": read,
                "compute_share": products,
            });
            if let Some(op) = op {
                entry["op"] = json!(op.op);
                entry["weights"] = json!(op.detail);
                let kernel = |kernel: &kernels::KernelProfile| json!({"kernel": kernel.name, "calls": kernel.calls, "ns": kernel.time.as_nanos() as u64});
                if !op.kernels.is_empty() {
                    entry["kernels"] = op.kernels.iter().map(kernel).collect();
                }
            }
            entry
        };
        let families: Vec<Value> =
            self.families().iter().map(|(family, sum)| entry(*family, None, sum)).collect();
        let ops: Vec<Value> =
            self.ops.iter().map(|op| entry(op.family, Some(op), &Sum::of(std::iter::once(op)))).collect();
        let own = json!({
            "clock": if self.empty_kernel.is_some() { "card" } else { "host" },
            "empty_kernel_ns": self.empty_kernel.map(|time| time.as_nanos() as u64),
            "read_bandwidth": (!self.ceilings.on_card).then_some(self.ceilings.memory),
            "copy_bandwidth": self.ceilings.on_card.then_some(self.ceilings.memory),
            "bf16_products": self.ceilings.bf16,
            "int8_products": self.ceilings.int8,
            "f32_products": self.ceilings.f32,
            "families": families,
            "ops": ops,
        });
        match own {
            Value::Object(own) => own,
            _ => serde_json::Map::new(),
        }
    }
}
