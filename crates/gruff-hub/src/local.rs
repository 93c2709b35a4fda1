//! Models that are files of this machine.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::cache::walk;
use crate::choose::{RepoFile, choose, near, part_names};
use crate::name::{is_gguf, join};
use crate::{Error, GENERATION_CONFIG, ModelFiles, Select};

/// How deep folders are searched.
const DEPTH: u32 = 3;

/// The files of a model at `path`, which is a file, a part of a split one, or a folder.
pub(crate) fn resolve(path: &Path, select: &Select) -> Result<ModelFiles, Error> {
    let data = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            Error::NoSuchPath { path: path.to_path_buf(), hint: hint(path) }
        }
        _ => Error::Unreadable { path: path.to_path_buf(), source: error },
    })?;
    match (data.is_dir(), data.is_file()) {
        (true, _) => folder(path, select),
        (_, true) => file(path),
        // A pipe, a device: a model is mapped into memory, which they cannot be.
        _ => Err(Error::NoFile { path: path.to_path_buf() }),
    }
}

fn folder(path: &Path, select: &Select) -> Result<ModelFiles, Error> {
    // Reading it once more tells apart a folder without models and one that may not be read.
    fs::read_dir(path).map_err(|source| Error::Unreadable { path: path.to_path_buf(), source })?;
    let chosen = choose(&path.display().to_string(), &listing(path), select)?;
    let parts: Vec<PathBuf> = chosen.parts.iter().map(|name| join(path, name)).collect();
    Ok(found(parts, Some(path)))
}

fn file(path: &Path) -> Result<ModelFiles, Error> {
    let place = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Ok(found(vec![path.to_path_buf()], None));
    };
    let names = part_names(name);
    let missing: Vec<String> = names.iter().filter(|name| !place.join(name).is_file()).cloned().collect();
    if !missing.is_empty() {
        let shown = if place.as_os_str().is_empty() { ".".to_string() } else { place.display().to_string() };
        return Err(Error::MissingParts { place: shown, name: name.to_string(), missing });
    }
    Ok(found(names.iter().map(|name| place.join(name)).collect(), None))
}

fn found(parts: Vec<PathBuf>, folder: Option<&Path>) -> ModelFiles {
    let beside = parts.first().and_then(|first| first.parent()).map(|place| place.join(GENERATION_CONFIG));
    let above = folder.map(|folder| folder.join(GENERATION_CONFIG));
    ModelFiles {
        id: parts.first().map_or(String::new(), |first| first.display().to_string()),
        generation_config: beside.into_iter().chain(above).find(|path| path.is_file()),
        parts,
        repo: None,
        commit: None,
    }
}

fn listing(folder: &Path) -> Vec<RepoFile> {
    let mut names = Vec::new();
    walk(folder, "", DEPTH, &mut names);
    names
        .into_iter()
        .filter_map(|name| {
            let data = fs::metadata(join(folder, &name)).ok().filter(fs::Metadata::is_file)?;
            Some(RepoFile { size: Some(data.len()), path: name })
        })
        .collect()
}

/// What may have been meant by a path that leads nowhere.
fn hint(path: &Path) -> String {
    let text = path.to_string_lossy();
    let segments: Vec<&str> = text.split('/').collect();
    if let [owner, name, file @ ..] = segments.as_slice()
        && !file.is_empty()
        && is_gguf(&text)
        && crate::RepoId::parse(&format!("{owner}/{name}")).is_ok()
    {
        return format!("; for a file on the Hub write {owner}/{name}:{}", file.join("/"));
    }
    let place = path.parent().filter(|place| !place.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut names = Vec::new();
    walk(place, "", 0, &mut names);
    let files: Vec<RepoFile> = names.into_iter().map(|path| RepoFile { path, size: None }).collect();
    let wanted = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match near(&wanted, &files).as_slice() {
        [] => String::new(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        folder
    }

    #[test]
    fn files_parts_and_folders() {
        let names = [
            "a-Q4_K_M.gguf",
            "b/b-Q8_0-00001-of-00002.gguf",
            "b/b-Q8_0-00002-of-00002.gguf",
            GENERATION_CONFIG,
        ];
        let folder = folder_of(&names);
        let at = |name: &str| folder.path().join(name);
        let one = resolve(&at("a-Q4_K_M.gguf"), &Select::Default).unwrap();
        assert_eq!(one.parts, [at("a-Q4_K_M.gguf")]);
        assert_eq!(one.generation_config, Some(at(GENERATION_CONFIG)));
        let split = [at(names[1]), at(names[2])];
        let by_part = resolve(&at(names[2]), &Select::Default).unwrap();
        assert_eq!((by_part.parts.as_slice(), by_part.generation_config), (split.as_slice(), None));
        let by_quant = resolve(folder.path(), &Select::Quant("q8_0".into())).unwrap();
        assert_eq!((by_quant.parts.as_slice(), by_quant.path()), (split.as_slice(), split[0].as_path()));
        assert_eq!(by_quant.generation_config, Some(at(GENERATION_CONFIG)));
        assert_eq!(resolve(folder.path(), &Select::Default).unwrap().parts, [at(names[0])]);
        let by_name = resolve(folder.path(), &Select::File(names[0].into())).unwrap();
        assert_eq!(by_name.parts, [at(names[0])]);
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_no_models() {
        let message = resolve(Path::new("/dev/null"), &Select::Default).unwrap_err().to_string();
        assert!(message.starts_with("/dev/null is no ordinary file"), "{message}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = folder_of(&["m-Q4_0.gguf", "n-00001-of-00002.gguf", "README.md"]);
        let message =
            |name: &str| resolve(&folder.path().join(name), &Select::Default).unwrap_err().to_string();
        assert!(message("m-Q4_1.gguf").contains("no such file or folder; did you mean m-Q4_0.gguf"));
        assert!(message("n-00001-of-00002.gguf").contains("n-00002-of-00002.gguf is missing"));
        let empty = tempfile::tempdir().unwrap();
        assert!(resolve(empty.path(), &Select::Default).unwrap_err().to_string().contains("holds no .gguf"));
        let on_hub = resolve(Path::new("no-such/repo/m.gguf"), &Select::Default).unwrap_err().to_string();
        assert!(on_hub.contains("write no-such/repo:m.gguf"), "{on_hub}");
    }
}
