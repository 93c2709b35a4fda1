//! The cores that this process may use: how many, of which speeds, on which memory nodes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where Linux describes processors and nodes.
const SYSTEM: &str = "/sys/devices";

/// Numbers of processors that a list may name: more than Linux can be built for.
const MOST: usize = 1 << 16;

/// A core, among the threads of a computation, is worth having from this share of the fastest one's speed on. Threads take
/// pieces of work as they are done with others, eight or so each, so at an operation's end the others wait for a piece of the
/// slowest core's: with half the speed that is some percent of what it contributes, with a sixth it is more than all of it.
const WORTH_HAVING: f64 = 0.4;

/// Speeds that differ by less than this are one: the best cores of a processor may be clocked a little higher.
const ALIKE: f64 = 0.8;

/// A physical core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Core {
    /// Hardware threads of it that this process may use.
    pub threads: usize,
    /// Its speed, the fastest core's being 1, as far as the system tells.
    pub speed: f64,
    /// Its memory node.
    pub node: usize,
}

/// The physical cores that this process may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    cores: Vec<Core>,
    /// Threads that run at a time, where a control group or something like it allows fewer than there are.
    available: usize,
}

/// What is known of a processor, a hardware thread.
struct Processor {
    number: usize,
    /// The smallest number among those that share its core.
    core: usize,
    node: usize,
}

impl Topology {
    /// This machine's, under this thread's affinity and the process's control group.
    pub fn here() -> Self {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Self::read(Path::new(SYSTEM), allowed.and_then(numbers), available)
    }

    /// What a folder like `/sys/devices` says of the processors `allowed` (`None`: all that are online), of which
    /// `available` run at a time. Where it says nothing that makes sense, each of these is a core of its own.
    fn read(system: &Path, allowed: Option<Vec<usize>>, available: usize) -> Self {
        let available = available.max(1);
        let list = |path: &str| fs::read_to_string(system.join(path)).ok().and_then(|text| numbers(&text));
        let online = list("system/cpu/online");
        let usable = match (allowed, online) {
            (Some(allowed), Some(online)) => {
                let both: Vec<usize> = allowed.iter().copied().filter(|cpu| online.contains(cpu)).collect();
                if both.is_empty() { allowed } else { both }
            }
            (Some(list), None) | (None, Some(list)) => list,
            (None, None) => (0..available).collect(),
        };
        let nodes = nodes(system);
        let processors: Vec<Processor> = usable
            .into_iter()
            .map(|number| {
                let siblings = ["core_cpus_list", "thread_siblings_list"]
                    .into_iter()
                    .find_map(|name| list(&format!("system/cpu/cpu{number}/topology/{name}")))
                    .filter(|siblings| siblings.contains(&number));
                let core = siblings.and_then(|siblings| siblings.into_iter().min()).unwrap_or(number);
                Processor { number, core, node: nodes.get(&number).copied().unwrap_or(0) }
            })
            .collect();
        let speeds = speeds(system, &processors);
        let mut cores: BTreeMap<usize, Core> = BTreeMap::new();
        for (processor, speed) in processors.iter().zip(speeds) {
            let new = Core { threads: 0, speed, node: processor.node };
            cores.entry(processor.core).or_insert(new).threads += 1;
        }
        Self { cores: cores.into_values().collect(), available }
    }

    /// The cores, in the system's order.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Hardware threads of all cores.
    pub fn hardware_threads(&self) -> usize {
        self.cores.iter().map(|core| core.threads).sum()
    }

    /// Cores by speed, the fastest first: the speed and how many have about that.
    pub fn speeds(&self) -> Vec<(f64, usize)> {
        let mut sorted: Vec<f64> = self.cores.iter().map(|core| core.speed).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let mut kinds: Vec<(f64, usize)> = Vec::new();
        for speed in sorted {
            match kinds.last_mut() {
                Some((first, count)) if speed >= ALIKE * *first => *count += 1,
                _ => kinds.push((speed, 1)),
            }
        }
        kinds
    }

    /// Memory nodes that the cores are on.
    pub fn nodes(&self) -> usize {
        let mut nodes: Vec<usize> = self.cores.iter().map(|core| core.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len().max(1)
    }

    /// Threads to compute with: one for each physical core, whose hardware threads share its vector units and read memory
    /// no faster together; of cores of unequal speed, those that do not hold up the others; and no more than may run.
    pub fn default_threads(&self) -> usize {
        let fastest = self.cores.iter().map(|core| core.speed).fold(0.0, f64::max);
        let worth = self.cores.iter().filter(|core| core.speed >= WORTH_HAVING * fastest).count();
        worth.clamp(1, self.available)
    }
}

/// The node of each processor.
fn nodes(system: &Path) -> BTreeMap<usize, usize> {
    let mut nodes = BTreeMap::new();
    let Ok(entries) = fs::read_dir(system.join("system/node")) else { return nodes };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")).and_then(|n| n.parse().ok());
        let list = fs::read_to_string(entry.path().join("cpulist")).ok().and_then(|text| numbers(&text));
        if let (Some(number), Some(list)) = (number, list) {
            nodes.extend(list.into_iter().map(|processor| (processor, number)));
        }
    }
    nodes
}

/// The speed of each processor, the fastest being 1: by the capacity that the scheduler reckons with, else by what Intel's
/// hybrid processors say of their kinds of cores, else by the highest clock; 1 for all where any of them is not told.
fn speeds(system: &Path, processors: &[Processor]) -> Vec<f64> {
    let file = |processor: &Processor, name: &str| -> Option<f64> {
        let path = system.join(format!("system/cpu/cpu{}/{name}", processor.number));
        fs::read_to_string(path).ok()?.trim().parse::<u32>().ok().filter(|speed| *speed > 0).map(f64::from)
    };
    let all =
        |name: &str| processors.iter().map(|processor| file(processor, name)).collect::<Option<Vec<_>>>();
    let kinds = || {
        /// What an efficient core does in the time of a fast one, about: its clock is three quarters, and it multiplies
        /// half as many numbers at a time.
        const EFFICIENT: f64 = 0.5;
        let list = |name: &str| {
            fs::read_to_string(system.join(name).join("cpus")).ok().and_then(|text| numbers(&text))
        };
        let (fast, efficient) = (list("cpu_core")?, list("cpu_atom")?);
        let speed = |processor: &Processor| match processor.number {
            number if fast.contains(&number) => Some(1.0),
            number if efficient.contains(&number) => Some(EFFICIENT),
            _ => None,
        };
        processors.iter().map(speed).collect::<Option<Vec<_>>>()
    };
    let speeds = all("cpu_capacity").or_else(kinds).or_else(|| all("cpufreq/cpuinfo_max_freq"));
    let speeds = speeds.unwrap_or_else(|| vec![1.0; processors.len()]);
    let fastest = speeds.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    speeds.into_iter().map(|speed| speed / fastest).collect()
}

/// Numbers of a list as the kernel prints it: `0-3,8,10-11`; `None` for anything else, and for none.
fn numbers(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests;
