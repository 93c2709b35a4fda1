//! Where NVIDIA's libraries are, besides the loader's own search path.

use std::path::{Path, PathBuf};

/// Folders of toolkits and Python environments, those of the user's environment first; `inside` are those that wheels have
/// below a Python environment.
pub(super) fn folders(inside: &[&str]) -> Vec<PathBuf> {
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
