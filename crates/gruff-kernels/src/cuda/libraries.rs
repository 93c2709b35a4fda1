//! Where NVIDIA's libraries are found.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A library that is looked for.
pub(super) struct Wanted<'a> {
    /// The variable of the environment that names its file: then it is nowhere else.
    pub(super) variable: &'a str,
    /// Its file's names, best first.
    pub(super) names: &'a [String],
    /// Folders that wheels have it in, below a Python environment's packages.
    pub(super) wheels: &'a [&'a str],
}

impl Wanted<'_> {
    /// The first that `load` takes: the one that the user names, or of the loader's own search path, CUDA toolkits, Python
    /// environments. `load` says what is wrong with one, to stand behind its path: nothing if it cannot be loaded.
    ///
    /// # Errors
    /// Where it was looked for.
    pub(super) fn find<T>(&self, mut load: impl FnMut(&Path) -> Result<T, String>) -> Result<T, String> {
        let mut tried = Vec::new();
        for path in self.candidates(std::env::var_os(self.variable).as_deref()) {
            match load(&path) {
                Ok(found) => return Ok(found),
                Err(fault) => tried.push(format!("{}{fault}", path.display())),
            }
        }
        Err(tried.join(", "))
    }

    fn candidates(&self, named: Option<&OsStr>) -> Vec<PathBuf> {
        if let Some(named) = named {
            return vec![named.into()];
        }
        // By name alone: the loader's own search path.
        let mut found: Vec<PathBuf> = self.names.iter().map(PathBuf::from).collect();
        for folder in folders(self.wheels) {
            found.extend(self.names.iter().map(|name| folder.join(name)).filter(|path| path.is_file()));
        }
        found
    }
}

/// Folders of toolkits and Python environments, those of the user's environment first; `inside` are those that wheels have
/// below a Python environment.
fn folders(inside: &[&str]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = std::env::var_os(variable) {
            folders.extend(["lib64", "bin"].map(|folder| Path::new(&home).join(folder)));
        }
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(home) = std::env::var_os(variable) {
            folders.push(Path::new(&home).join("lib"));
            folders.extend(wheels(Path::new(&home), inside));
        }
    }
    if let Some(home) = std::env::home_dir() {
        folders.extend(wheels(&home.join(".local"), inside));
    }
    folders.push("/usr/local/cuda/lib64".into());
    let toolkits = std::fs::read_dir("/usr/local").into_iter().flatten().flatten();
    let mut toolkits: Vec<PathBuf> = toolkits
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("cuda-"))
        .map(|entry| entry.path().join("lib64"))
        .collect();
    toolkits.sort();
    folders.extend(toolkits.into_iter().rev());
    folders.extend(["/usr/local", "/usr"].into_iter().flat_map(|root| wheels(Path::new(root), inside)));
    folders
}

/// Where PyPI's wheels put it below a Python environment.
fn wheels(root: &Path, inside: &[&str]) -> Vec<PathBuf> {
    let mut sites = vec![root.join("Lib/site-packages")];
    let versions = std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
    for python in versions.filter(|entry| entry.file_name().to_string_lossy().starts_with("python3")) {
        sites.extend(["site-packages", "dist-packages"].map(|site| python.path().join(site)));
    }
    sites
        .iter()
        .flat_map(|site| inside.iter().map(move |folder| site.join(folder)))
        .filter(|path| path.is_dir())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_loads_is_taken_and_the_others_are_told() {
        let names = ["newer".to_owned(), "older".to_owned()];
        let wanted = Wanted { variable: "GRUFF_LIBRARY_OF_NO_NAME", names: &names, wheels: &[] };
        let load = |path: &Path| match path == Path::new("older") {
            true => Ok("taken"),
            false => Err(", which is too new".to_owned()),
        };
        assert_eq!(wanted.find(load), Ok("taken"));
        let nothing = wanted.find(|_| Err::<(), _>(String::new()));
        assert_eq!(nothing, Err("newer, older".to_owned()));
        assert_eq!(wanted.candidates(Some(OsStr::new("/own/library"))), [Path::new("/own/library")]);
    }
}
