//! Where the time of a step goes, operation by operation, beside what the machine could do.

use std::io::Write;
use std::time::{Duration, Instant};

use gruff::AutoModelForCausalLM;
use gruff::floors::kernels::sampling::{SampleSpec, sample};
use gruff::floors::kernels::{DType, Family, OpProfile, bandwidth, compute};
use serde_json::{Value, json};

use super::measure::Test;
use super::sequences::Sequences;

/// What the machine can do with the threads of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceilings {
    /// Bytes a second from memory.
    read: f64,
    compute: compute::Compute,
}

impl Ceilings {
    pub(super) fn measure(threads: usize) -> anyhow::Result<Self> {
        Ok(Self { read: bandwidth::measure(Some(threads))?, compute: compute::measure(Some(threads))? })
    }

    /// Products a second that a family's kernels could reach.
    fn products(&self, family: Family) -> f64 {
        match family {
            Family::Matmul | Family::Moe => self.compute.int8.unwrap_or(self.compute.f32),
            _ => self.compute.f32,
        }
    }
}

/// The steps of one test, counted.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    label: String,
    steps: usize,
    total: Duration,
    /// The longest first.
    ops: Vec<OpProfile>,
    ceilings: Ceilings,
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

/// Runs a test once more with `count` sequences together, every operation counted. After each generated token of each
/// an id is sampled.
pub(super) fn measure(
    model: &AutoModelForCausalLM,
    test: Test,
    count: usize,
    ubatch: usize,
    ceilings: Ceilings,
) -> anyhow::Result<Profile> {
    let device = model.device();
    let mut sequences = Sequences::new(model, count, test.depth + test.prompt + test.generated + 1, ubatch)?;
    sequences.prompt(test.depth)?;
    if test.generated > 0 {
        // Memory of intermediate results is taken in the first step.
        sequences.generate()?;
    }
    device.profile(true);
    let started = Instant::now();
    sequences.prompt(test.prompt)?;
    for position in 0..test.generated {
        let logits = sequences.generate()?;
        let ids = device.scratch(DType::I32, &[count])?;
        sample(&logits, &vec![sampling(position as u64); count], &ids)?;
        ids.to_vec_i32()?;
    }
    let total = started.elapsed();
    let ops = device.take_profile();
    device.profile(false);
    let steps = (test.prompt * count).div_ceil(ubatch.max(count)) + test.generated;
    let label = if count == 1 { test.label() } else { format!("{} of {count} sequences", test.label()) };
    Ok(Profile { label, steps, total, ops, ceilings })
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
    /// Families with anything to show, the longest first.
    fn families(&self) -> Vec<(Family, Sum)> {
        let sum = |family| (family, Sum::of(self.ops.iter().filter(|op| op.family == family)));
        let mut families: Vec<_> =
            Family::ALL.into_iter().map(sum).filter(|(_, sum)| sum.calls > 0).collect();
        families.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.time));
        families
    }

    /// What passes outside of operations: building steps, taking memory.
    fn between(&self) -> Sum {
        let inside = Sum::of(self.ops.iter()).time;
        Sum { time: self.total.saturating_sub(inside), ..Sum::default() }
    }

    /// Shares of the step, of the bandwidth and of the multiplications that the machine could make meanwhile.
    fn shares(&self, family: Family, sum: &Sum) -> [f64; 3] {
        [
            sum.seconds() / self.total.as_secs_f64().max(1e-12),
            sum.bytes as f64 / sum.seconds() / self.ceilings.read,
            sum.products as f64 / sum.seconds() / self.ceilings.products(family),
        ]
    }

    /// A table a family, below it the operations.
    pub(super) fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let per_step = self.total.as_secs_f64() * 1e3 / self.steps.max(1) as f64;
        writeln!(out, "\n{}, operation by operation: {} steps of {per_step:.3} ms", self.label, self.steps)?;
        let int8 =
            self.ceilings.compute.int8.map_or_else(|| "no".to_owned(), |int8| format!("{:.0}", int8 / 1e9));
        writeln!(
            out,
            "ceilings: memory is read at {:.1} GB/s; {int8} int8 and {:.0} f32 GMAC/s (G multiplications with addition)",
            self.ceilings.read / 1e9,
            self.ceilings.compute.f32 / 1e9,
        )?;
        writeln!(
            out,
            "\n| {:<28} | {:>7} | {:>9} | {:>7} | {:>8} | {:>7} | {:>8} | {:>7} |",
            "operation", "calls", "ms a step", "share", "GB/s", "of read", "GMAC/s", "of peak"
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
            }
        }
        self.row(out, "between operations", Family::Transfer, &self.between())
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
    pub(super) fn json(&self) -> Value {
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
            }
            entry
        };
        let families: Vec<Value> =
            self.families().iter().map(|(family, sum)| entry(*family, None, sum)).collect();
        let ops: Vec<Value> =
            self.ops.iter().map(|op| entry(op.family, Some(op), &Sum::of(std::iter::once(op)))).collect();
        json!({
            "steps": self.steps,
            "ns": self.total.as_nanos() as u64,
            "between_ns": self.between().time.as_nanos() as u64,
            "read_bandwidth": self.ceilings.read,
            "int8_products": self.ceilings.compute.int8,
            "f32_products": self.ceilings.compute.f32,
            "families": families,
            "ops": ops,
        })
    }
}
