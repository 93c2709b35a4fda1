use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A folder that is made beside its place, and removed unless it is put there.
pub(super) struct NewFolder {
    path: PathBuf,
    target: PathBuf,
}

impl NewFolder {
    /// Begins a folder that is to be `target`, which must not exist, or be empty.
    pub(super) fn create(target: &Path) -> Result<Self> {
        match fs::read_dir(target) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(Error::Exists { path: target.to_owned() });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) if target.exists() => return Err(Error::Exists { path: target.to_owned() }),
            Err(error) => return Err(Error::io("created", target)(error)),
        }
        let Some(name) = target.file_name() else {
            return Err(Error::Argument(format!("{} is no name for a new folder", target.display())));
        };
        let own = format!(".{}.{}.part", name.to_string_lossy(), std::process::id());
        let path = target.with_file_name(own);
        fs::create_dir(&path).map_err(Error::io("created", target))?;
        Ok(NewFolder { path, target: target.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn put_in_place(self) -> Result<()> {
        if self.target.is_dir() {
            // Empty, or this refuses.
            fs::remove_dir(&self.target).map_err(Error::io("replaced", &self.target))?;
        }
        fs::rename(&self.path, &self.target).map_err(Error::io("put in place", &self.target))
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        // Gone already when it was put in place.
        let _ = fs::remove_dir_all(&self.path);
    }
}
