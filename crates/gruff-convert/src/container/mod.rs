//! GGUF files cut into parts, put together, and given other metadata.

mod assignment;
mod copy;

use std::path::{Path, PathBuf};

use gruff_gguf::{Gguf, Metadata, Split};

use crate::{Error, Progress, Result};
pub use assignment::Assignment;
pub use gruff_gguf::Replaced;

/// The key of the chat template.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Cuts the model in `gguf` into files `NAME-00001-of-0000N.gguf` beside each other, named after `out`, whose folder is
/// made if only that is missing. Gives their paths; one that is `out` itself, if the model fits into one file.
///
/// # Errors
/// [`Error::Exists`] when one of them is there already and `overwrite` does not say to replace it;
/// [`Error::Gguf`] when there would be too many, or one cannot be written. Nothing is put in place then.
pub fn split(
    gguf: &Gguf,
    out: &Path,
    split: Split,
    overwrite: bool,
    progress: &dyn Progress,
) -> Result<Vec<PathBuf>> {
    if out.file_name().is_none() || out.is_dir() {
        return Err(Error::Argument(format!(
            "{} names no file; give a name for the files, such as {}",
            out.display(),
            out.join("model.gguf").display()
        )));
    }
    let made = make_folder(out)?;
    let paths = copy::copy(gguf, out, Some(split), overwrite, progress);
    if let (Err(_), Some(folder)) = (&paths, made) {
        // Empty again; if not, it is somebody else's by now.
        let _ = std::fs::remove_dir(folder);
    }
    paths
}

/// Makes the folder that a file is to be in, if it is not there; gives it then.
fn make_folder(out: &Path) -> Result<Option<&Path>> {
    match out.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
        Some(folder) => {
            std::fs::create_dir(folder).map_err(Error::io("created", folder))?;
            Ok(Some(folder))
        }
        None => Ok(None),
    }
}

/// Puts the parts of the model in `gguf`, which [`Gguf::open`] finds from any of them, together in one file.
///
/// # Errors
/// [`Error::Argument`] for a model that is in one file already; otherwise as [`split`].
pub fn merge(gguf: &Gguf, out: &Path, overwrite: bool, progress: &dyn Progress) -> Result<PathBuf> {
    if gguf.paths().len() < 2 {
        let name =
            gguf.paths().first().map_or_else(|| "the model".to_owned(), |path| path.display().to_string());
        return Err(Error::Argument(format!("{name} is a whole model already; there is nothing to merge")));
    }
    copy::copy(gguf, out, None, overwrite, progress)?;
    Ok(out.to_owned())
}

/// What to change about a file's metadata.
#[derive(Clone, Debug, Default)]
pub struct Edit {
    /// Keys to set, in this order.
    pub set: Vec<Assignment>,
    /// Keys to take away, before others are set.
    pub remove: Vec<String>,
    /// The chat template, as Jinja.
    pub chat_template: Option<String>,
}

/// Changes the metadata of the model at `path`; of a split one, in its first part. Tensors stay where they are if the
/// new metadata have room before them, otherwise the file is written anew beside the old one and takes its place.
/// With `out`, the changed model is written there instead.
///
/// # Errors
/// [`Error::Key`] for a key to remove that is not there, or a value that does not suit the key's type;
/// [`Error::Gguf`] when the file is not sound or cannot be written.
pub fn edit(path: &Path, out: Option<&Path>, edit: &Edit) -> Result<Replaced> {
    let gguf = Gguf::open(path)?;
    let path = real(gguf.paths().first().map_or(path, PathBuf::as_path));
    let mut metadata = gguf.metadata().clone();
    drop(gguf);
    apply(edit, &path, &mut metadata)?;
    Ok(gruff_gguf::replace_metadata(&path, out, &metadata)?)
}

/// Finishes an edit of the file at `path` that was interrupted while it wrote; tells whether there was one.
///
/// # Errors
/// [`Error::Gguf`] when the file cannot be made whole, read or written.
pub fn finish_edit(path: &Path) -> Result<bool> {
    Ok(gruff_gguf::finish_edit(&real(path))?)
}

/// The file itself, where `path` is a link to it: the link is to lead to the changed file, not to be replaced by it.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn apply(edit: &Edit, path: &Path, metadata: &mut Metadata) -> Result<()> {
    let fixed = |key: &str| key.starts_with("split.");
    for key in edit.remove.iter().map(String::as_str).chain(edit.set.iter().map(Assignment::key)) {
        if fixed(key) {
            return Err(Error::key(
                path,
                key,
                "tells how the model is split; use `gruff split` or `gruff merge`",
            ));
        }
    }
    for key in &edit.remove {
        if metadata.remove(key).is_none() {
            return Err(Error::key(path, key, "is not in the file"));
        }
    }
    for assignment in &edit.set {
        let value = assignment
            .value(metadata.get(assignment.key()))
            .map_err(|fault| Error::key(path, assignment.key(), fault))?;
        metadata.insert(assignment.key(), value);
    }
    if let Some(template) = &edit.chat_template {
        metadata.insert(CHAT_TEMPLATE, template.as_str());
    }
    Ok(())
}
