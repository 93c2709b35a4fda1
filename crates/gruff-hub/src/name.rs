//! Names that come from people and servers, and what makes them safe to use as paths.

use std::fmt;
use std::path::{Path, PathBuf};

/// A repository of models: `owner/name`, or the bare `name` of the oldest ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoId(String);

impl RepoId {
    /// Checks a name by the Hub's rules: one or two parts of letters, digits, `-`, `_` and `.`, at most 96
    /// characters, neither `--` nor `..` inside, no `-` or `.` at the ends of a part, no `.git` at the end.
    ///
    /// # Errors
    /// What is wrong, as a phrase.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        if parts.len() > 2 {
            return Err(format!("{text:?} has more than one slash; a repository is owner/name"));
        }
        if text.len() > 96 {
            return Err("a repository name has at most 96 characters".to_string());
        }
        if text.contains("--") || text.contains("..") || text.ends_with(".git") {
            return Err(format!(
                "a repository name has no -- or .. in it and no .git at its end, unlike {text:?}"
            ));
        }
        for part in parts {
            if part.is_empty() {
                return Err("the repository's owner or name is empty".to_string());
            }
            if !part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
                return Err(format!("{part:?} has characters other than letters, digits, '-', '_' and '.'"));
            }
            if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
                return Err(format!("{part:?} starts or ends with '-' or '.'"));
            }
        }
        Ok(RepoId(text.to_string()))
    }

    /// The name as people write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The folder of the cache that holds this repository: `models--owner--name`.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// The reverse of [`RepoId::folder`]; `None` for a folder of something else.
    pub(crate) fn from_folder(folder: &str) -> Option<Self> {
        RepoId::parse(&folder.strip_prefix("models--")?.replace("--", "/")).ok()
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a `/`-separated name from a server or a person stays inside the folder that it is joined to, on any
/// system: no empty, `.` or `..` segment, no backslash, no colon (Windows drives and streams), no control character.
pub(crate) fn is_safe_path(name: &str) -> bool {
    name.len() <= 1024
        && name.split('/').all(|segment| {
            !matches!(segment, "" | "." | "..")
                && !segment.chars().any(|c| c.is_control() || c == '\\' || c == ':')
        })
}

/// Joins a checked name to a folder, segment by segment.
pub(crate) fn join(folder: &Path, name: &str) -> PathBuf {
    debug_assert!(is_safe_path(name));
    let mut path = folder.to_path_buf();
    path.extend(name.split('/'));
    path
}

/// A full commit id: 40 lower-case hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_lower_hex(text)
}

pub(crate) fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a server's entity tag can be the name of a file in `blobs`.
pub(crate) fn is_safe_etag(etag: &str) -> bool {
    (1..=128).contains(&etag.len())
        && etag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && !etag.starts_with('.')
        && !etag.ends_with(".incomplete")
}

/// Whether a file name ends in `.gguf`, in any case.
pub(crate) fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name.as_bytes()[name.len() - 5..].eq_ignore_ascii_case(b".gguf")
}

/// The last segment of a `/`-separated name.
pub(crate) fn base_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// A `-00001-of-00003.gguf` name taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split<'a> {
    /// All that comes before `-00001-of-`, folder included.
    pub(crate) stem: &'a str,
    /// Which part this is, from 1.
    pub(crate) number: u32,
    /// How many there are.
    pub(crate) total: u32,
}

impl<'a> Split<'a> {
    /// The parts of a split name; `None` for a whole file, and for numbers that make no sense.
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let rest = if is_gguf(name) { &name[..name.len() - 5] } else { return None };
        let (rest, total) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let five = |digits: &str| {
            (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()))
                .then(|| digits.parse().ok())
                .flatten()
        };
        let (number, total): (u32, u32) = (five(number)?, five(total)?);
        (number >= 1 && number <= total && !stem.is_empty()).then_some(Split { stem, number, total })
    }

    /// The names of all parts, in order. `name` gives the spelling of the extension.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let extension = &name[name.len() - 5..];
        (1..=self.total).map(|n| format!("{}-{n:05}-of-{:05}{extension}", self.stem, self.total)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn repository_names_follow_the_hub() {
        for good in ["gpt2", "unsloth/Qwen3.5-4B-GGUF", "a_b/c.d-e", "123"] {
            assert_eq!(RepoId::parse(good).as_ref().map(RepoId::as_str), Ok(good));
        }
        for bad in
            ["", "a/", "/b", "a/b/c", "a--b", "a..b", "-a/b", "a/b.", "a/b.git", "a b/c", "a/ü", "a/b:c"]
        {
            assert!(RepoId::parse(bad).is_err(), "{bad}");
        }
        assert!(RepoId::parse(&"x".repeat(97)).is_err());
    }

    #[test]
    fn folders_of_the_cache_go_both_ways() {
        let repo = RepoId::parse("unsloth/Qwen3.5-4B-GGUF").unwrap();
        assert_eq!(repo.folder(), "models--unsloth--Qwen3.5-4B-GGUF");
        assert_eq!(RepoId::from_folder(&repo.folder()), Some(repo));
        assert_eq!(RepoId::from_folder("datasets--a--b"), None);
        assert_eq!(RepoId::from_folder("models--a--b--c"), None);
    }

    #[test]
    fn paths_that_leave_their_folder_are_unsafe() {
        for good in ["model.gguf", "Q4_K_M/model-00001-of-00002.gguf", "a b/ü.gguf", "..a/b.."] {
            assert!(is_safe_path(good), "{good}");
        }
        for bad in
            ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\\b", "C:x", "a\nb", "a\0b", "a/"]
        {
            assert!(!is_safe_path(bad), "{bad:?}");
        }
    }

    #[test]
    fn split_names() {
        let name = "sub/m-Q4_K_M-00002-of-00003.gguf";
        let split = Split::parse(name).unwrap();
        assert_eq!((split.stem, split.number, split.total), ("sub/m-Q4_K_M", 2, 3));
        assert_eq!(split.names(name)[2], "sub/m-Q4_K_M-00003-of-00003.gguf");
        for whole in
            ["m.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-1-of-3.gguf", "m-00001-of-00001"]
        {
            assert_eq!(Split::parse(whole), None, "{whole}");
        }
    }

    proptest! {
        #[test]
        fn a_safe_path_stays_inside(name in "[a-c./\\\\:]{0,12}") {
            if is_safe_path(&name) {
                let joined = join(Path::new("/cache/repo"), &name);
                prop_assert!(joined.starts_with("/cache/repo"));
                let plain = |c| matches!(c, std::path::Component::Normal(_) | std::path::Component::RootDir);
                prop_assert!(joined.components().all(plain));
            }
        }

        #[test]
        fn no_name_panics(name in "\\PC{0,40}") {
            let _ = RepoId::parse(&name);
            if let Some(split) = Split::parse(&name) {
                prop_assert!(split.names(&name).contains(&name));
            }
        }
    }
}
