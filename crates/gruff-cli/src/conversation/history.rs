//! Where typed lines are kept between conversations.

use std::path::PathBuf;

use reedline::{FileBackedHistory, History};

use crate::console::Console;

/// Lines kept.
const LINES: usize = 1000;

/// The history file's history; none where it cannot be used, with a note for the curious.
pub(super) fn open(console: &Console) -> Option<Box<dyn History>> {
    let path = path()?;
    match FileBackedHistory::with_file(LINES, path.clone()) {
        Ok(history) => Some(Box::new(history)),
        Err(error) => {
            console.detail(format_args!("no history: {}: {error}", path.display()));
            None
        }
    }
}

/// `gruff/history.txt` in the user's state folder (`XDG_STATE_HOME`, else `~/.local/state`; `LOCALAPPDATA` on
/// Windows).
fn path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = if cfg!(windows) {
        variable("LOCALAPPDATA")?
    } else {
        variable("XDG_STATE_HOME").or_else(|| Some(std::env::home_dir()?.join(".local").join("state")))?
    };
    Some(folder.join("gruff").join("history.txt"))
}
