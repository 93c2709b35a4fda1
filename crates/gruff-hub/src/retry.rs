use std::time::Duration;

use crate::{Error, Progress};

/// Tries for the first answer of a Hub that cannot be reached.
const GONE: u32 = 3;

/// How often a request that may succeed later is made again, and after how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all without anything gained; at least 1. A Hub that cannot be reached from the start gets three.
    pub attempts: u32,
    /// The wait before the second try. It doubles each time.
    pub first_wait: Duration,
    /// No wait is longer. A server that asks for more ends the tries.
    pub longest_wait: Duration,
}

impl Default for Retry {
    /// Five tries over about 15 seconds.
    fn default() -> Self {
        Retry { attempts: 5, first_wait: Duration::from_secs(1), longest_wait: Duration::from_secs(60) }
    }
}

impl Retry {
    /// The same, but only one try: for when there is something else to fall back on.
    pub(crate) fn once(&self) -> Self {
        Retry { attempts: 1, ..*self }
    }

    /// The wait after `failures` tries that failed, the last one with `error`; `None` if it is time to give up.
    pub(crate) fn wait(&self, failures: u32, error: &Error) -> Option<Duration> {
        if failures >= self.attempts || !error.is_transient() {
            return None;
        }
        let doubled = self.first_wait.saturating_mul(1 << failures.saturating_sub(1).min(16));
        let wait = doubled.min(self.longest_wait).max(error.retry_after().unwrap_or_default());
        (wait <= self.longest_wait).then_some(wait)
    }

    /// Tries until success, a lasting error or the end of patience.
    pub(crate) fn run<T>(
        &self,
        progress: &dyn Progress,
        mut f: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut failures = 0;
        loop {
            let error = match f() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            failures += 1;
            // A network that is not there at all seldom comes up within seconds.
            let patient = failures < GONE || !matches!(error, Error::Unreachable { .. });
            let Some(wait) = self.wait(failures, &error).filter(|_| patient) else { return Err(error) };
            pause(progress, wait, &error);
        }
    }
}

/// Says why, and waits.
pub(crate) fn pause(progress: &dyn Progress, wait: Duration, error: &Error) {
    progress.notice(&format!("{}; trying again in {:.1} s", error.brief(), wait.as_secs_f64()));
    std::thread::sleep(wait);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    fn busy(retry_after: Option<u64>) -> Error {
        Error::RateLimited { endpoint: "h".into(), retry_after: retry_after.map(Duration::from_secs) }
    }

    #[test]
    fn waits_double_up_to_a_limit_and_respect_the_server() {
        let retry = Retry { attempts: 9, ..Retry::default() };
        let waits: Vec<u64> = (1..9).map(|n| retry.wait(n, &busy(None)).unwrap().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(retry.wait(9, &busy(None)), None);
        assert_eq!(retry.wait(1, &busy(Some(30))), Some(Duration::from_secs(30)));
        assert_eq!(retry.wait(1, &busy(Some(3600))), None);
        assert_eq!(retry.wait(1, &Error::NoHome), None);
    }

    #[test]
    fn lasting_errors_are_not_tried_again() {
        let mut calls = 0;
        let retry = Retry { attempts: 4, first_wait: Duration::ZERO, longest_wait: Duration::ZERO };
        let mut run = |error: fn() -> Error| {
            calls = 0;
            let outcome = retry.run(&Silent, || -> Result<(), Error> {
                calls += 1;
                Err(error())
            });
            assert!(outcome.is_err());
            calls
        };
        assert_eq!(run(|| Error::NoHome), 1);
        assert_eq!(run(|| busy(None)), 4);
        assert_eq!(run(|| Error::Unreachable { host: "h".into(), reason: "r".into() }), 3);
    }
}
