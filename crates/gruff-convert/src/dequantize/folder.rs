use std::fs;
use std::io;
use std::path::Path;

use gruff_gguf::Unfinished;

use crate::{Error, Result};

/// A folder that is made beside its place, and removed unless it is put there.
pub(super) struct NewFolder(Unfinished);

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
        if target.file_name().is_none() {
            return Err(Error::Argument(format!("{} is no name for a new folder", target.display())));
        }
        Unfinished::folder(target).map(NewFolder).map_err(Error::io("created", target))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn put_in_place(self) -> Result<()> {
        let target = self.0.target().to_owned();
        if target.is_dir() {
            // Empty, or this refuses.
            fs::remove_dir(&target).map_err(Error::io("replaced", &target))?;
        }
        self.0.put_in_place().map_err(Error::io("put in place", &target))
    }
}
