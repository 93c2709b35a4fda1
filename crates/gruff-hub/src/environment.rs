//! The environment variables of huggingface_hub, read once.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Error;

/// The Hub that is asked where `HF_ENDPOINT` names no other.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Everything that is read from the environment.
const NAMES: [&str; 15] = [
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "XDG_CACHE_HOME",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HF_HUB_ETAG_TIMEOUT",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "SSL_CERT_FILE",
    "HOME",
];

/// A copy of the variables that gruff-hub reads: the process's own, or a set made for a test.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: HashMap<String, OsString>,
    home: Option<PathBuf>,
}

impl Environment {
    /// The variables of this process. An empty variable counts as unset.
    pub fn from_process() -> Self {
        let set = NAMES.iter().filter_map(|name| Some((name.to_string(), std::env::var_os(name)?)));
        let mut environment = Self::from_variables(set);
        environment.home = std::env::home_dir();
        environment
    }

    /// Exactly these variables; the home directory is `HOME`.
    pub fn from_variables<K: Into<String>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables: HashMap<String, OsString> = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let home = variables.get("HOME").map(PathBuf::from);
        Environment { variables, home }
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(name).map(OsString::as_os_str)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.get(name)
            .map(|value| value.to_string_lossy().trim().to_string())
            .filter(|value| !value.is_empty())
    }

    /// `1`, `ON`, `YES` and `TRUE`, in any case, as huggingface_hub reads them.
    fn flag(&self, name: &str) -> bool {
        self.text(name).is_some_and(|v| ["1", "ON", "YES", "TRUE"].contains(&v.to_ascii_uppercase().as_str()))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(|value| self.expand(Path::new(value)))
    }

    /// Replaces a leading `~` by the home directory.
    pub(crate) fn expand(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path.to_path_buf(),
        }
    }

    /// `HF_HOME`, else `$XDG_CACHE_HOME/huggingface`, else `~/.cache/huggingface`.
    pub(crate) fn hf_home(&self) -> Result<PathBuf, Error> {
        if let Some(home) = self.path("HF_HOME") {
            return Ok(home);
        }
        match self.path("XDG_CACHE_HOME") {
            Some(cache) => Ok(cache.join("huggingface")),
            None => Ok(self.home.as_ref().ok_or(Error::NoHome)?.join(".cache").join("huggingface")),
        }
    }

    /// `HF_HUB_CACHE`, else the older `HUGGINGFACE_HUB_CACHE`, else `hub` in [`Environment::hf_home`].
    pub(crate) fn hub_cache(&self) -> Result<PathBuf, Error> {
        match self.path("HF_HUB_CACHE").or_else(|| self.path("HUGGINGFACE_HUB_CACHE")) {
            Some(cache) => Ok(cache),
            None => Ok(self.hf_home()?.join("hub")),
        }
    }

    /// `HF_TOKEN`, else the older `HUGGING_FACE_HUB_TOKEN`, else what `hf auth login` has stored, and where it was
    /// found. `HF_HUB_DISABLE_IMPLICIT_TOKEN` turns all of them off.
    pub(crate) fn token(&self) -> Option<(String, String)> {
        if self.flag("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            return None;
        }
        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let Some(token) = self.text(name) {
                return Some((token, format!("from {name}")));
            }
        }
        let path = self.path("HF_TOKEN_PATH").or_else(|| Some(self.hf_home().ok()?.join("token")))?;
        let token = std::fs::read_to_string(&path).ok()?.trim().to_string();
        (!token.is_empty()).then(|| (token, format!("from {}", path.display())))
    }

    /// `HF_ENDPOINT` without the slash at its end.
    pub(crate) fn endpoint(&self) -> String {
        self.text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_string())
    }

    /// The variable that says to stay off the network, if one does.
    pub(crate) fn offline(&self) -> Option<&'static str> {
        ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(|name| self.flag(name))
    }

    /// How long to wait for an answer about a file (`HF_HUB_ETAG_TIMEOUT`) and for the next bytes of one
    /// (`HF_HUB_DOWNLOAD_TIMEOUT`), both in seconds, 10 where unset.
    pub(crate) fn timeouts(&self) -> Result<(Duration, Duration), Error> {
        let read = |name: &'static str| match self.text(name) {
            None => Ok(Duration::from_secs(10)),
            Some(value) => match value.parse::<u64>() {
                Ok(seconds) if (1..=86_400).contains(&seconds) => Ok(Duration::from_secs(seconds)),
                _ => Err(Error::Setting {
                    name,
                    value,
                    reason: "it is not a whole number of seconds from 1 to 86400".to_string(),
                }),
            },
        };
        Ok((read("HF_HUB_ETAG_TIMEOUT")?, read("HF_HUB_DOWNLOAD_TIMEOUT")?))
    }

    /// `SSL_CERT_FILE`: a PEM file of certificates to trust instead of the built-in ones.
    pub(crate) fn certificates(&self) -> Option<PathBuf> {
        self.path("SSL_CERT_FILE")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::from_variables(variables.iter().map(|(name, value)| (*name, *value)))
    }

    #[test]
    fn the_cache_is_found_in_the_order_of_huggingface_hub() {
        let table: [(&[(&str, &str)], &str); 6] = [
            (&[("HOME", "/u")], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/h")], "/u/h/hub"),
            (&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "")], "/h/hub"),
        ];
        for (variables, expected) in table {
            assert_eq!(environment(variables).hub_cache().unwrap(), Path::new(expected), "{variables:?}");
        }
        assert!(matches!(environment(&[]).hub_cache(), Err(Error::NoHome)));
    }

    #[test]
    fn the_token_comes_from_a_variable_or_the_file_of_hf_login() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().to_str().unwrap();
        assert_eq!(environment(&[("HF_HOME", place)]).token(), None);
        std::fs::write(home.path().join("token"), " hf_file\n").unwrap();
        let (token, origin) = environment(&[("HF_HOME", place)]).token().unwrap();
        assert_eq!(token, "hf_file");
        assert!(origin.contains(place));
        let both = [("HF_HOME", place), ("HF_TOKEN", "hf_variable\n")];
        assert_eq!(environment(&both).token().unwrap().0, "hf_variable");
        let path = home.path().join("other");
        std::fs::write(&path, "hf_other").unwrap();
        assert_eq!(environment(&[("HF_TOKEN_PATH", path.to_str().unwrap())]).token().unwrap().0, "hf_other");
        let off = [("HF_TOKEN", "hf_variable"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "yes")];
        assert_eq!(environment(&off).token(), None);
    }

    #[test]
    fn switches_and_times() {
        assert_eq!(environment(&[("HF_HUB_OFFLINE", "1")]).offline(), Some("HF_HUB_OFFLINE"));
        assert_eq!(environment(&[("TRANSFORMERS_OFFLINE", "true")]).offline(), Some("TRANSFORMERS_OFFLINE"));
        assert_eq!(environment(&[("HF_HUB_OFFLINE", "0")]).offline(), None);
        let (etag, download) = environment(&[("HF_HUB_DOWNLOAD_TIMEOUT", "30")]).timeouts().unwrap();
        assert_eq!((etag.as_secs(), download.as_secs()), (10, 30));
        let message = environment(&[("HF_HUB_ETAG_TIMEOUT", "soon")]).timeouts().unwrap_err().to_string();
        assert!(message.contains("HF_HUB_ETAG_TIMEOUT is \"soon\""), "{message}");
    }
}
