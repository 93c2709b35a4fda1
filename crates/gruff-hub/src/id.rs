//! Model ids: what people write to name a model.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::name::{RepoId, is_commit, is_gguf, is_safe_path};

/// Which of the files of a repository or folder is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// None named: the `Q4_K_M` file if there is one, else the only model there is.
    Default,
    /// The file with this `/`-separated path.
    File(String),
    /// The file of this quantization, such as `Q4_K_M` or `UD-IQ2_XXS`.
    Quant(String),
}

/// A model id, taken apart.
///
/// ```
/// use gruff_hub::{ModelId, Select};
/// let id = ModelId::parse("unsloth/Qwen3.5-4B-GGUF@main:Q4_K_M")?;
/// let ModelId::Hub { repo, revision, select } = &id else { panic!() };
/// assert_eq!(repo.as_str(), "unsloth/Qwen3.5-4B-GGUF");
/// assert_eq!(revision.as_deref(), Some("main"));
/// assert_eq!(*select, Select::Quant("Q4_K_M".into()));
/// assert_eq!(id.to_string(), "unsloth/Qwen3.5-4B-GGUF@main:Q4_K_M");
/// # Ok::<(), gruff_hub::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelId {
    /// A file or folder of this machine.
    Local {
        /// The file or folder.
        path: PathBuf,
        /// Which file, where `path` is a folder.
        select: Select,
    },
    /// A file of a repository on the Hub.
    Hub {
        /// The repository.
        repo: RepoId,
        /// A branch, tag or commit; the Hub's `main` where none is named.
        revision: Option<String>,
        /// Which file.
        select: Select,
    },
}

/// Hosts whose web addresses are read as repositories.
const HUB_HOSTS: [&str; 3] = ["huggingface.co/", "hf.co/", "www.huggingface.co/"];

impl ModelId {
    /// Reads an id. In order of precedence:
    ///
    /// | written | meant |
    /// | --- | --- |
    /// | anything that exists on disk | that file or folder |
    /// | `folder:file.gguf`, `folder:Q4_K_M`, the folder existing | that file of the folder |
    /// | starts with `/`, `./`, `../`, `~`, a drive; or ends in `.gguf` without a colon | a path, existing or not |
    /// | `owner/repo` | the repository's `Q4_K_M` file, or its only one |
    /// | `owner/repo:file.gguf`, `owner/repo:folder/file.gguf` | that file |
    /// | `owner/repo:Q4_K_M` | the file of that quantization |
    /// | `owner/repo@revision…` | the same at a branch, tag or commit |
    ///
    /// `hf.co/`, `huggingface.co/` (with or without `https://`) and `hf://` may stand before a repository, and
    /// addresses of files and folders copied from the Hub's pages (`…/blob/main/file.gguf`) work too.
    ///
    /// # Errors
    /// [`Error::BadId`] with the reason. A path need not exist: [`crate::Hub::resolve`] tells.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadId { id: text.to_string(), reason };
        let id = text.trim();
        if id.is_empty() {
            return Err(bad("it is empty".to_string()));
        }
        if id.chars().any(char::is_control) {
            return Err(bad("it has control characters in it".to_string()));
        }
        if Path::new(id).exists() {
            return Ok(ModelId::Local { path: PathBuf::from(id), select: Select::Default });
        }
        if let Some((folder, rest)) = id.rsplit_once(':')
            && Path::new(folder).is_dir()
        {
            return Ok(ModelId::Local {
                path: PathBuf::from(folder),
                select: Select::parse(rest).map_err(bad)?,
            });
        }
        if let Some(address) = web_address(id).map_err(bad)? {
            return Self::from_web(&address).map_err(bad);
        }
        if looks_like_a_path(id) {
            return Ok(ModelId::Local { path: PathBuf::from(id), select: Select::Default });
        }
        Self::from_short(id).map_err(bad)
    }

    /// Reads `owner/repo[@revision][:what]`, and nothing else: no file of this machine is looked at, so that the id may
    /// come from anybody.
    ///
    /// # Errors
    /// [`Error::BadId`] with the reason.
    pub fn parse_hub(text: &str) -> Result<Self, Error> {
        Self::from_short(text).map_err(|reason| Error::BadId { id: text.to_string(), reason })
    }

    /// `owner/repo[@revision][:what]`.
    fn from_short(id: &str) -> Result<Self, String> {
        let (place, what) = match id.split_once(':') {
            Some((place, what)) => (place, Some(what)),
            None => (id, None),
        };
        let (repo, revision) = match place.split_once('@') {
            Some((repo, revision)) => (repo, Some(check_revision(revision)?)),
            None => (place, None),
        };
        let select = what.map_or(Ok(Select::Default), Select::parse)?;
        Ok(ModelId::Hub { repo: RepoId::parse(repo)?, revision, select })
    }

    /// What follows the host in an address of the Hub.
    fn from_web(address: &str) -> Result<Self, String> {
        let path = address.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let segments: Vec<&str> = path.split('/').collect();
        match segments.as_slice() {
            ["datasets" | "spaces", ..] => {
                Err("this is the address of a data set or a space, not of a model".into())
            }
            [owner, name, "blob" | "resolve" | "raw", revision, file @ ..] if !file.is_empty() => {
                let file = decode_percent(&file.join("/"))?;
                if !is_gguf(&file) {
                    return Err(format!("{file:?} is not a .gguf file"));
                }
                Ok(ModelId::Hub {
                    repo: RepoId::parse(&format!("{owner}/{name}"))?,
                    revision: Some(check_revision(&decode_percent(revision)?)?),
                    select: Select::parse(&file)?,
                })
            }
            [owner, name, "tree", revision] => Ok(ModelId::Hub {
                repo: RepoId::parse(&format!("{owner}/{name}"))?,
                revision: Some(check_revision(&decode_percent(revision)?)?),
                select: Select::Default,
            }),
            _ => Self::from_short(path),
        }
    }

    /// The same place with one file of it named, as `gguf_file=` does in transformers.
    ///
    /// # Errors
    /// [`Error::BadId`] if `file` is not a plain relative path to a `.gguf` file, or if the id is a file already.
    pub fn with_file(self, file: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadId { id: file.to_string(), reason };
        let named = match Select::parse(file).map_err(bad)? {
            named @ Select::File(_) => named,
            _ => return Err(bad("a file name ends in .gguf".to_string())),
        };
        match self {
            ModelId::Local { path, .. } if is_gguf(&path.to_string_lossy()) && !path.is_dir() => {
                Err(bad(format!("{} names a file already", path.display())))
            }
            ModelId::Local { path, .. } => Ok(ModelId::Local { path, select: named }),
            ModelId::Hub { repo, revision, .. } => Ok(ModelId::Hub { repo, revision, select: named }),
        }
    }

    /// The same model at another revision. Local ids have none and stay as they are.
    ///
    /// # Errors
    /// [`Error::BadId`] if `revision` cannot be one.
    pub fn with_revision(self, revision: &str) -> Result<Self, Error> {
        let checked =
            check_revision(revision).map_err(|reason| Error::BadId { id: revision.to_string(), reason })?;
        Ok(match self {
            ModelId::Hub { repo, select, .. } => ModelId::Hub { repo, revision: Some(checked), select },
            local => local,
        })
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let select = match self {
            ModelId::Local { path, select } => {
                write!(f, "{}", path.display())?;
                select
            }
            ModelId::Hub { repo, revision, select } => {
                write!(f, "{repo}")?;
                if let Some(revision) = revision {
                    write!(f, "@{revision}")?;
                }
                select
            }
        };
        match select {
            Select::Default => Ok(()),
            Select::File(what) | Select::Quant(what) => write!(f, ":{what}"),
        }
    }
}

impl std::str::FromStr for ModelId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        ModelId::parse(text)
    }
}

impl Select {
    /// What stands after the colon.
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("nothing follows the colon".to_string());
        }
        if is_gguf(text) {
            return if is_safe_path(text) {
                Ok(Select::File(text.to_string()))
            } else {
                Err(format!("{text:?} is not a plain relative path"))
            };
        }
        if text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')) {
            return Ok(Select::Quant(text.to_string()));
        }
        Err(format!("{text:?} is neither a .gguf file nor a quantization such as Q4_K_M"))
    }
}

/// A branch (which may have slashes), a tag or a commit; also a safe name for a file under `refs`.
fn check_revision(revision: &str) -> Result<String, String> {
    let lower = revision.to_ascii_lowercase();
    if is_commit(&lower) {
        return Ok(lower);
    }
    if is_safe_path(revision) && !revision.contains([' ', '?', '*', '[', '^', '~', '@']) {
        Ok(revision.to_string())
    } else {
        Err(format!("{revision:?} cannot be a branch, tag or commit"))
    }
}

/// What follows the host where the id is written as an address of the Hub.
fn web_address(id: &str) -> Result<Option<String>, String> {
    if let Some(rest) = id.strip_prefix("hf://") {
        return Ok(Some(rest.strip_prefix("models/").unwrap_or(rest).to_string()));
    }
    let plain = id.strip_prefix("https://").or_else(|| id.strip_prefix("http://"));
    let rest = plain.unwrap_or(id);
    for host in HUB_HOSTS {
        if let Some(path) = rest.strip_prefix(host) {
            return Ok(Some(path.to_string()));
        }
    }
    match plain {
        Some(_) => Err(
            "only addresses on huggingface.co and hf.co are understood; for another Hub, set HF_ENDPOINT \
                        and write owner/repo:file.gguf"
                .to_string(),
        ),
        None => Ok(None),
    }
}

fn looks_like_a_path(id: &str) -> bool {
    let bytes = id.as_bytes();
    let drive = bytes.len() > 2
        && bytes[0].is_ascii_alphabetic()
        && bytes[1] == b':'
        && matches!(bytes[2], b'\\' | b'/');
    drive
        || id.starts_with(['/', '\\', '~'])
        || id.starts_with("./")
        || id.starts_with("../")
        || matches!(id, "." | "..")
        || id.contains('\\')
        || (is_gguf(id) && !id.contains(':'))
}

/// `%20` and its like in an address copied from a browser.
fn decode_percent(text: &str) -> Result<String, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex =
            (byte == b'%').then(|| text.get(at + 1..at + 3).and_then(|h| u8::from_str_radix(h, 16).ok()));
        match hex {
            Some(Some(value)) => {
                out.push(value);
                at += 3;
            }
            Some(None) => return Err(format!("{text:?} has a % that no two hexadecimal digits follow")),
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).map_err(|_| format!("{text:?} does not decode to UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hub(repo: &str, revision: Option<&str>, select: Select) -> ModelId {
        ModelId::Hub { repo: RepoId::parse(repo).unwrap(), revision: revision.map(str::to_string), select }
    }

    #[test]
    fn forms_of_a_repository() {
        let file = |name: &str| Select::File(name.to_string());
        let quant = |tag: &str| Select::Quant(tag.to_string());
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let table = [
            ("a/b", hub("a/b", None, Select::Default)),
            (" a/b ", hub("a/b", None, Select::Default)),
            ("gpt2", hub("gpt2", None, Select::Default)),
            ("a/b:m.gguf", hub("a/b", None, file("m.gguf"))),
            ("a/b:sub/m.GGUF", hub("a/b", None, file("sub/m.GGUF"))),
            ("a/b:Q4_K_M", hub("a/b", None, quant("Q4_K_M"))),
            ("a/b:UD-IQ2_XXS", hub("a/b", None, quant("UD-IQ2_XXS"))),
            ("a/b@main", hub("a/b", Some("main"), Select::Default)),
            ("a/b@refs/pr/1:m.gguf", hub("a/b", Some("refs/pr/1"), file("m.gguf"))),
            (&format!("a/b@{}:Q8_0", commit.to_uppercase()), hub("a/b", Some(commit), quant("Q8_0"))),
            ("hf.co/a/b:Q4_K_M", hub("a/b", None, quant("Q4_K_M"))),
            ("https://huggingface.co/a/b", hub("a/b", None, Select::Default)),
            ("https://hf.co/a/b/", hub("a/b", None, Select::Default)),
            ("hf://a/b/m.gguf", hub("a/b", None, Select::Default)),
            ("hf://models/a/b:m.gguf", hub("a/b", None, file("m.gguf"))),
            ("https://huggingface.co/a/b/tree/v1.0", hub("a/b", Some("v1.0"), Select::Default)),
            (
                "https://huggingface.co/a/b/blob/main/s/my%20m.gguf?download=true",
                hub("a/b", Some("main"), file("s/my m.gguf")),
            ),
            (
                "https://huggingface.co/a/b/resolve/refs%2Fpr%2F2/m.gguf",
                hub("a/b", Some("refs/pr/2"), file("m.gguf")),
            ),
        ];
        for (text, expected) in table {
            if text == "hf://a/b/m.gguf" {
                assert!(ModelId::parse(text).is_err());
                continue;
            }
            assert_eq!(ModelId::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn refused_with_the_reason() {
        let table = [
            ("", "empty"),
            ("a/b:", "nothing follows the colon"),
            ("a/b@:Q4_0", "cannot be a branch"),
            ("a/b@../x", "cannot be a branch"),
            ("a/b:../m.gguf", "not a plain relative path"),
            ("a/b:/m.gguf", "not a plain relative path"),
            ("a/b:sub/dir", "neither a .gguf file nor a quantization"),
            ("a/b/c", "more than one slash"),
            ("a/b c", "characters other than"),
            ("a/b\u{7}", "control characters"),
            ("https://example.com/a/b", "only addresses on huggingface.co"),
            ("https://huggingface.co/datasets/a/b", "data set"),
            ("https://huggingface.co/a/b/blob/main/README.md", "not a .gguf file"),
            ("https://huggingface.co/a/b/blob/main/..%2f..%2fm.gguf", "not a plain relative path"),
        ];
        for (text, reason) in table {
            let message = ModelId::parse(text).expect_err(text).to_string();
            assert!(message.contains(reason), "{text}: {message}");
            assert!(message.contains("owner/repo:file.gguf"), "{message}");
        }
    }

    #[test]
    fn paths() {
        for text in [
            "/no/such.gguf",
            "./m.gguf",
            "../m",
            "~/m.gguf",
            "C:\\models\\m.gguf",
            "C:/m.gguf",
            "no/such/m.gguf",
        ] {
            let expected = ModelId::Local { path: PathBuf::from(text), select: Select::Default };
            assert_eq!(ModelId::parse(text).unwrap(), expected);
        }
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().to_str().unwrap();
        assert!(matches!(ModelId::parse(place).unwrap(), ModelId::Local { .. }));
        let id = ModelId::parse(&format!("{place}:Q4_0")).unwrap();
        assert_eq!(id, ModelId::Local { path: folder.path().into(), select: Select::Quant("Q4_0".into()) });
        assert_eq!(id.to_string(), format!("{place}:Q4_0"));
    }

    #[test]
    fn file_and_revision_can_be_given_apart() {
        let id = ModelId::parse("a/b").unwrap().with_file("m.gguf").unwrap().with_revision("v1").unwrap();
        assert_eq!(id.to_string(), "a/b@v1:m.gguf");
        assert!(ModelId::parse("a/b").unwrap().with_file("Q4_K_M").is_err());
        assert!(ModelId::parse("a/b").unwrap().with_revision("a b").is_err());
        assert!(ModelId::parse("x.gguf").unwrap().with_file("m.gguf").is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics_and_hub_ids_round_trip(text in "[a-b/@:.%~ hfg\\\\\\PC]{0,24}") {
            if let Ok(id @ ModelId::Hub { .. }) = ModelId::parse(&text) {
                prop_assert_eq!(ModelId::parse(&id.to_string()).unwrap(), id);
            }
        }
    }
}
