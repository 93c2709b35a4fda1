//! Models split into several files.

use std::path::{Path, PathBuf};

use crate::{Limits, Metadata};

/// The key that has a part's number, counted from 0.
pub(crate) const NUMBER_KEY: &str = "split.no";
/// The key that has the number of parts.
pub(crate) const COUNT_KEY: &str = "split.count";
/// The key that has the number of tensors of all parts together.
pub(crate) const TENSORS_KEY: &str = "split.tensors.count";

/// Which part of how many a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Counted from 0.
    pub(crate) number: u64,
    /// More than one for a split model.
    pub(crate) count: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Files and people count parts from 1.
        write!(f, "part {} of {}", self.number.saturating_add(1), self.count)
    }
}

impl Place {
    /// What a file's keys say; `None` for a model in one file.
    pub(crate) fn in_metadata(metadata: &Metadata) -> Result<Option<Self>, crate::Error> {
        match metadata.u64_or(COUNT_KEY, 1)? {
            0 | 1 => Ok(None),
            count => Ok(Some(Place { number: metadata.require_u64(NUMBER_KEY)?, count })),
        }
    }

    /// What a file's name says (`PREFIX-00002-of-00003.gguf`), and the prefix.
    pub(crate) fn in_name(path: &Path) -> Option<(&str, Self)> {
        let rest = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = number_at_end(rest)?;
        let (rest, number) = number_at_end(rest.strip_suffix("-of-")?)?;
        let prefix = rest.strip_suffix('-')?;
        Some((prefix, Place { number: number.checked_sub(1)?, count }))
    }

    /// The name of the file in this place.
    pub(crate) fn file_name(self, prefix: &str) -> String {
        format!("{prefix}-{:05}-of-{:05}.gguf", self.number.saturating_add(1), self.count)
    }
}

/// The five digits that `text` ends with, and what precedes them.
fn number_at_end(text: &str) -> Option<(&str, u64)> {
    let (rest, digits) = text.split_at_checked(text.len().checked_sub(5)?)?;
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((rest, digits.parse().ok().filter(|_| all_digits)?))
}

/// The paths of all parts of the model of which the file at `path` is in `place`; why not, if not.
pub(crate) fn paths_around(path: &Path, place: Place, limits: &Limits) -> Result<Vec<PathBuf>, String> {
    if place.count > limits.parts {
        let most = limits.parts;
        return Err(format!(
            "claims {} parts, where at most {most} are accepted (Limits::parts)",
            place.count
        ));
    }
    if place.number >= place.count {
        return Err(format!("claims to be {place}, which does not exist"));
    }
    let Some((prefix, named)) = Place::in_name(path) else {
        let wanted = place.file_name("");
        return Err(format!(
            "is {place} of a model, but its name does not end in {wanted:?}, so the other parts cannot be found; \
             give all parts the names they had"
        ));
    };
    if named != place {
        return Err(format!(
            "is {place} of a model, but has the name of {named}; give it back the name it had"
        ));
    }
    Ok((0..place.count)
        .map(|number| path.with_file_name(Place { number, ..place }.file_name(prefix)))
        .collect())
}

/// The paths of `count` parts of what would be written to `path` in one file.
pub(crate) fn part_paths(path: &Path, count: u64) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let prefix = name.strip_suffix(".gguf").unwrap_or(&name);
    (0..count).map(|number| path.with_file_name(Place { number, count }.file_name(prefix))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_places() {
        let path = Path::new("dir/a-b-00002-of-00012.gguf");
        let (prefix, place) = Place::in_name(path).unwrap();
        assert_eq!((prefix, place), ("a-b", Place { number: 1, count: 12 }));
        assert_eq!(place.file_name(prefix), "a-b-00002-of-00012.gguf");
        assert_eq!(place.to_string(), "part 2 of 12");
        for other in [
            "a.gguf",
            "a-00001-of-00002.bin",
            "a-1-of-2.gguf",
            "a-00000-of-00002.gguf",
            "é-0001-of-00002.gguf",
        ] {
            assert_eq!(Place::in_name(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn part_paths_replace_the_suffix() {
        let paths = part_paths(Path::new("dir/model.gguf"), 2);
        assert_eq!(paths[1], Path::new("dir/model-00002-of-00002.gguf"));
    }
}
