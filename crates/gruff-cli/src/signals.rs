//! Ctrl-C and its relatives: what is half done goes before the program does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Who ends its work by itself when Ctrl-C is pressed.
static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// Whether another part of the program has taken over what Ctrl-C and SIGTERM ask for.
static HANDED_OVER: AtomicBool = AtomicBool::new(false);

struct Listener {
    interrupted: Arc<AtomicBool>,
    /// Whether a second Ctrl-C ends the program.
    impatient: bool,
}

/// Sets `interrupted` when Ctrl-C is pressed, instead of ending the program, until another takes over. When it is set
/// already, the program ends if `impatient`.
pub(crate) fn on_interrupt(interrupted: Arc<AtomicBool>, impatient: bool) {
    #[cfg(not(unix))]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone());
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Listener { interrupted, impatient });
}

/// Leaves Ctrl-C and SIGTERM to the caller, who hears of them by handlers of its own.
pub(crate) fn hand_over() {
    HANDED_OVER.store(true, Ordering::Relaxed);
}

/// Whether somebody listens who ends the work in an orderly way.
#[cfg(unix)]
fn is_heard() -> bool {
    let listener = LISTENER.lock().unwrap_or_else(PoisonError::into_inner);
    listener.as_ref().is_some_and(|Listener { interrupted, impatient }| {
        let again = interrupted.swap(true, Ordering::Relaxed);
        !(again && *impatient)
    })
}

/// From now on, signals that end the program remove unfinished files first.
#[cfg(unix)]
pub(crate) fn watch() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    let ignored = ignored();
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !ignored(*signal));
    // Where signals cannot be handled, they just end the program.
    let Ok(mut signals) = signal_hook::iterator::Signals::new(wanted) else { return };
    let follow = move || {
        for signal in signals.forever() {
            let is_others = signal != SIGHUP && HANDED_OVER.load(Ordering::Relaxed);
            if is_others || signal == SIGINT && is_heard() {
                continue;
            }
            gruff::floors::gguf::abandon_unfinished();
            // Shells tell by it that the program did not end of its own accord.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            std::process::exit(128 + signal);
        }
    };
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(follow);
}

#[cfg(not(unix))]
pub(crate) fn watch() {}

/// Tells which signals were to be ignored when the program began: under nohup, or behind `&` in a script. They stay so.
#[cfg(unix)]
fn ignored() -> impl Fn(i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = ignored_mask(&status);
    // Where the system does not tell, nohup is obeyed rather than cleaned up after.
    move |signal| mask.map_or(signal == signal_hook::consts::SIGHUP, |mask| mask >> (signal - 1) & 1 == 1)
}

/// The line of proc(5) about ignored signals: bit n - 1 stands for signal n.
#[cfg(unix)]
fn ignored_mask(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(ignored_mask("Name:\tx\nSigBlk:\t0\nSigIgn:\t0000000000000001\nSigCgt:\t2\n"), Some(1));
        assert_eq!(ignored_mask("Name:\tx\n"), None);
    }

    #[test]
    fn a_second_interrupt_is_not_heard_by_the_impatient() {
        let flag = Arc::new(AtomicBool::new(false));
        on_interrupt(flag.clone(), true);
        assert!(is_heard() && flag.load(Ordering::Relaxed) && !is_heard());
        on_interrupt(flag, false);
        assert!(is_heard() && is_heard());
    }
}
