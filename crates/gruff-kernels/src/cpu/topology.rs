//! How many cores this process may use.

use std::collections::HashSet;

/// Physical cores that this process may run on, at least 1. Hardware threads that share a core count once: they
/// share its vector units, and weights stream no faster for two of them.
pub(crate) fn physical_cores() -> usize {
    // Honours affinity masks and control-group quotas.
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    sibling_groups().map_or(available, |cores| cores.clamp(1, available))
}

/// Distinct groups of hardware threads among the allowed ones; `None` where the system does not tell.
fn sibling_groups() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut groups = HashSet::new();
    for cpu in parse_list(allowed)? {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        groups.insert(std::fs::read_to_string(path).ok()?);
    }
    (!groups.is_empty()).then_some(groups.len())
}

/// Numbers of a list as the kernel prints it: `0-3,8,10-11`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    const MOST: usize = 1 << 16;
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_list(" 0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("7"), Some(vec![7]));
        assert_eq!(parse_list("0-99999999999"), None);
        assert_eq!(parse_list("x"), None);
    }

    #[test]
    fn there_is_a_core() {
        assert!(physical_cores() >= 1);
    }
}
