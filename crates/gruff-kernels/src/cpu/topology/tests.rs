//! Machines as Linux describes them, written to a folder.

use std::fs;
use std::path::PathBuf;

use super::{Topology, numbers};

/// A folder like `/sys/devices`.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(online: &str) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.with("system/cpu/online", online)
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn with(self, file: &str, text: &str) -> Self {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    /// Processors that share a core.
    fn core(self, processors: &[usize], list: &str) -> Self {
        processors.iter().fold(self, |machine, processor| {
            machine.with(&format!("system/cpu/cpu{processor}/topology/thread_siblings_list"), list)
        })
    }

    /// A file of each processor of a range.
    fn each(self, processors: std::ops::Range<usize>, file: &str, text: &str) -> Self {
        processors
            .fold(self, |machine, processor| machine.with(&format!("system/cpu/cpu{processor}/{file}"), text))
    }

    fn read(&self, allowed: &str, available: usize) -> Topology {
        Topology::read(&self.path(), numbers(allowed), available)
    }
}

/// Four cores of two hardware threads, numbered as most machines do.
fn pairs() -> Machine {
    let machine = Machine::new("0-7");
    (0..4).fold(machine, |machine, core| machine.core(&[core, core + 4], &format!("{core},{}", core + 4)))
}

/// Six fast cores of two hardware threads (0-11), eight efficient ones (12-19).
fn hybrid() -> Machine {
    let machine = Machine::new("0-19");
    let fast = (0..6).fold(machine, |machine, core| {
        let (first, second) = (2 * core, 2 * core + 1);
        machine.core(&[first, second], &format!("{first}-{second}"))
    });
    (12..20).fold(fast, |machine, core| machine.core(&[core], &core.to_string()))
}

#[test]
fn hardware_threads_of_a_core_count_once() {
    let topology = pairs().read("0-7", 8);
    assert_eq!((topology.cores().len(), topology.hardware_threads()), (4, 8));
    assert_eq!((topology.default_threads(), topology.nodes()), (4, 1));
    assert_eq!(topology.speeds(), [(1.0, 4)]);
}

#[test]
fn affinity_and_quotas_are_limits() {
    // One hardware thread each of two cores, both of another.
    let some = pairs().read("0,1,2,6", 4);
    assert_eq!((some.cores().len(), some.hardware_threads(), some.default_threads()), (3, 4, 3));
    let both = pairs().read("3,7", 2);
    assert_eq!((both.cores().len(), both.default_threads()), (1, 1));
    // A control group that grants two processors' time on all of them.
    assert_eq!(pairs().read("0-7", 2).default_threads(), 2);
    assert_eq!(pairs().read("0-7", 0).default_threads(), 1);
}

#[test]
fn processors_that_are_offline_do_not_count() {
    let machine = pairs().with("system/cpu/online", "0-1,4-5");
    // The mask of a process may name processors that are not there.
    assert_eq!(machine.read("0-255", 4).cores().len(), 2);
    // With hardware threads switched off, siblings name themselves only.
    let single = Machine::new("0-3").core(&[0], "0").core(&[1], "1").core(&[2], "2").core(&[3], "3");
    assert_eq!(single.read("0-7", 4).default_threads(), 4);
}

#[test]
fn fast_and_efficient_cores_are_told_apart() {
    let by_kind = hybrid().with("cpu_core/cpus", "0-11").with("cpu_atom/cpus", "12-19");
    let topology = by_kind.read("0-19", 20);
    assert_eq!(topology.speeds(), [(1.0, 6), (0.5, 8)]);
    assert_eq!(topology.hardware_threads(), 20);
    // They take pieces as they can, so all are of use.
    assert_eq!(topology.default_threads(), 14);
    // What the scheduler says goes first.
    let capacity = by_kind.each(0..12, "cpu_capacity", "1024").each(12..20, "cpu_capacity", "623");
    let speeds = capacity.read("0-19", 20).speeds();
    assert_eq!(speeds.len(), 2);
    assert!((speeds[1].0 - 623.0 / 1024.0).abs() < 1e-12);
    // Clocks, where nothing else is told; the best two cores of the fast ones are one kind with the others.
    let clocks = hybrid()
        .each(0..4, "cpufreq/cpuinfo_max_freq", "5200000")
        .each(4..12, "cpufreq/cpuinfo_max_freq", "4900000")
        .each(12..20, "cpufreq/cpuinfo_max_freq", "3600000");
    let counts: Vec<usize> = clocks.read("0-19", 20).speeds().into_iter().map(|(_, count)| count).collect();
    assert_eq!(counts, [6, 8]);
    // Only efficient cores allowed: they are the fastest there are.
    assert_eq!(by_kind_only_efficient().default_threads(), 8);
}

fn by_kind_only_efficient() -> Topology {
    hybrid().with("cpu_core/cpus", "0-11").with("cpu_atom/cpus", "12-19").read("12-19", 8)
}

#[test]
fn cores_that_would_hold_up_the_others_are_left_out() {
    // A telephone: one large core, three middle, four small.
    let machine = (0..8).fold(Machine::new("0-7"), |machine, core| machine.core(&[core], &core.to_string()));
    let machine = machine.each(0..4, "cpu_capacity", "250").each(4..7, "cpu_capacity", "870").each(
        7..8,
        "cpu_capacity",
        "1024",
    );
    let topology = machine.read("0-7", 8);
    assert_eq!(topology.cores().len(), 8);
    assert_eq!(topology.default_threads(), 4);
    // Alone they are all there is.
    assert_eq!(machine.read("0-3", 4).default_threads(), 4);
}

#[test]
fn nodes_are_counted_among_the_allowed() {
    let machine =
        pairs().with("system/node/node0/cpulist", "0-1,4-5").with("system/node/node1/cpulist", "2-3,6-7");
    // A node of memory only, and things that are no node.
    let machine = machine.with("system/node/node2/cpulist", "").with("system/node/possible", "0-2");
    let machine = machine.with("system/node/nodes/cpulist", "0-7");
    let topology = machine.read("0-7", 8);
    assert_eq!((topology.nodes(), topology.default_threads()), (2, 4));
    assert_eq!(topology.cores().iter().map(|core| core.node).collect::<Vec<_>>(), [0, 0, 1, 1]);
    assert_eq!(machine.read("2,6", 2).nodes(), 1);
}

#[test]
fn folders_that_make_no_sense_count_processors() {
    let empty = Machine(tempfile::tempdir().unwrap());
    assert_eq!(empty.read("0-3", 4).default_threads(), 4);
    assert_eq!(empty.read("nothing", 3).default_threads(), 3);
    let garbage = Machine::new("a-b").core(&[0, 1], "\u{fffd}").core(&[2], "9").core(&[3], "3-1");
    let garbage = garbage.each(0..4, "cpu_capacity", "fast").each(0..4, "cpufreq/cpuinfo_max_freq", "-1");
    let garbage = garbage.with("system/node/node0/cpulist", "0-").with("cpu_core/cpus", "?");
    let topology = garbage.read("0-3", 4);
    assert_eq!((topology.cores().len(), topology.nodes()), (4, 1));
    assert_eq!(topology.speeds(), [(1.0, 4)]);
    // Told of some only: not at all.
    assert_eq!(pairs().each(0..3, "cpu_capacity", "1024").read("0-7", 8).speeds(), [(1.0, 4)]);
    assert_eq!(pairs().each(0..8, "cpu_capacity", "0").read("0-7", 8).default_threads(), 4);
    // Online and allowed have nothing in common.
    assert_eq!(pairs().read("8-9", 2).cores().len(), 2);
}

#[test]
fn lists_of_processors_are_read() {
    assert_eq!(numbers(" 0-2,5\n"), Some(vec![0, 1, 2, 5]));
    assert_eq!(numbers("7"), Some(vec![7]));
    for text in ["0-99999999999", "x", "", "3-1", "1,,2", "-", "1-2-3"] {
        assert_eq!(numbers(text), None, "{text}");
    }
}

#[test]
fn this_machine_has_a_core() {
    let here = Topology::here();
    assert!(here.default_threads() >= 1 && here.default_threads() <= here.hardware_threads());
    assert!(here.nodes() >= 1 && !here.speeds().is_empty());
}
