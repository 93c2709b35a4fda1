//! Which files a model was read from.

use std::fs;
use std::path::{Path, PathBuf};

use gruff::ModelFiles;

/// The files of a model, whatever names and links lead to them: revisions of a repository often share a file, and a path
/// may lead into the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SameFiles {
    /// All parts, in order.
    parts: Vec<PathBuf>,
    /// What it recommends stands beside it: with other recommendations it answers otherwise.
    generation_config: Option<PathBuf>,
}

impl SameFiles {
    /// Follows all links. `None` for a model that is no file.
    pub(crate) fn of(files: &ModelFiles) -> Option<Self> {
        // What cannot be followed is its own name; whoever opens it says why.
        let follow = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        (!files.parts.is_empty()).then(|| Self {
            parts: files.parts.iter().map(follow).collect(),
            generation_config: files.generation_config.as_ref().map(follow),
        })
    }

    /// Whether the model's only or first part is this file, which links have been followed to.
    pub(crate) fn begin_with(&self, file: &Path) -> bool {
        self.parts.first().is_some_and(|first| first == file)
    }
}
