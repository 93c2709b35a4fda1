//! Files and folders on their way to their places.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What exists under another name than it is to have. Who holds the lock keeps all of it from changing.
static UNDER_WAY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Characters of the final name in the other name: with the rest, below the 255 bytes that a name may have.
const NAME_CHARACTERS: usize = 50;

/// A file or folder under another name, `.NAME.PROCESS-NUMBER.part` beside its place, until [`put_in_place`].
/// Dropped before, it is removed; [`abandon_unfinished`] removes it when a signal ends the program.
///
/// [`put_in_place`]: Self::put_in_place
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
    target: PathBuf,
}

impl Unfinished {
    /// Begins the file that is to be at `target`, with the permissions of any new file.
    ///
    /// # Errors
    /// When `target` names no file, is a folder or a device, or its folder is not there or cannot be written.
    pub fn file(target: &Path) -> io::Result<(Self, File)> {
        if let Ok(found) = fs::metadata(target)
            && !found.is_file()
        {
            let kind = if found.is_dir() { "a folder" } else { "no ordinary file" };
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("it is {kind}; choose another name"),
            ));
        }
        Self::begin(target, |path| File::create_new(path))
    }

    /// Begins the folder that is to be at `target`.
    ///
    /// # Errors
    /// When `target` names no folder, or the one around it is not there or cannot be written.
    pub fn folder(target: &Path) -> io::Result<Self> {
        Self::begin(target, |path| fs::create_dir(path)).map(|(folder, ())| folder)
    }

    /// A file or folder that is removed in any case: `put_in_place` would leave it where it is.
    pub fn scratch(path: PathBuf) -> Self {
        under_way().push(path.clone());
        Self { target: path.clone(), path }
    }

    fn begin<T>(target: &Path, create: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<(Self, T)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Some(name) = target.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file; choose a name"));
        };
        if target.is_symlink() && !target.exists() {
            let fault = "it is a link that leads nowhere; remove it, or choose another name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, fault));
        }
        let name: String = name.to_string_lossy().chars().take(NAME_CHARACTERS).collect();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = target.with_file_name(format!(".{name}.{}-{number}.part", std::process::id()));
        let mut under_way = under_way();
        let created = create(&path)?;
        under_way.push(path.clone());
        Ok((Self { path, target: target.to_owned() }, created))
    }

    /// Where it is until then.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is to be.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Gives it its name, replacing a file that has it.
    ///
    /// # Errors
    /// When the system refuses; it is removed then.
    pub fn put_in_place(self) -> io::Result<()> {
        Self::put_all_in_place(vec![self]).map_err(|(_, error)| error)
    }

    /// Gives all their names, without an interruption between them.
    ///
    /// # Errors
    /// The target of the first one that the system refuses; those before it are in place then.
    pub fn put_all_in_place(all: Vec<Self>) -> Result<(), (PathBuf, io::Error)> {
        let under_way = under_way();
        let refused = all.iter().find_map(|one| {
            fs::rename(&one.path, &one.target).err().map(|error| (one.target.clone(), error))
        });
        // What is dropped below is taken off the list, for which it needs the lock.
        drop(under_way);
        refused.map_or(Ok(()), Err)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut under_way = under_way();
        // Gone already when it was put in place; what cannot be removed is harmless.
        remove(&self.path);
        under_way.retain(|path| *path != self.path);
    }
}

/// Removes what is under way, before a program ends by a signal. From then on nothing is begun or put in place:
/// whoever tries waits for the end. What must not be interrupted is waited for.
pub fn abandon_unfinished() {
    let mut under_way = under_way();
    under_way.drain(..).for_each(|path| remove(&path));
    std::mem::forget(under_way);
}

/// Does what [`abandon_unfinished`] must not interrupt. Within, nothing can be begun or put in place.
pub(crate) fn uninterrupted<T>(work: impl FnOnce() -> T) -> T {
    let _until_the_end = under_way();
    work()
}

/// The place of a file's companion: its name with `suffix` behind it.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

fn under_way() -> MutexGuard<'static, Vec<PathBuf>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_dropped_is_gone_and_what_is_put_in_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a");
        let (file, mut out) = Unfinished::file(&place).unwrap();
        out.write_all(b"half").unwrap();
        assert!(names(folder.path())[0].starts_with(".a."));
        drop(file);
        assert!(names(folder.path()).is_empty());
        let (file, _) = Unfinished::file(&place).unwrap();
        file.put_in_place().unwrap();
        let inner = Unfinished::folder(&folder.path().join("b")).unwrap();
        fs::write(inner.path().join("x"), "").unwrap();
        inner.put_in_place().unwrap();
        let dropped = Unfinished::folder(&folder.path().join("c")).unwrap();
        fs::write(dropped.path().join("x"), "").unwrap();
        drop(dropped);
        assert_eq!(names(folder.path()), ["a", "b"]);
    }

    #[test]
    fn names_may_be_as_long_as_the_system_has_them() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["n".repeat(255), "é".repeat(127)] {
            Unfinished::file(&folder.path().join(&name)).unwrap().0.put_in_place().unwrap();
            assert_eq!(names(folder.path()).iter().filter(|found| **found == name).count(), 1);
        }
    }

    #[test]
    fn folders_devices_and_what_names_nothing_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| Unfinished::file(path).unwrap_err().to_string();
        assert!(message(folder.path()).contains("it is a folder"));
        assert!(message(Path::new("..")).contains("it is a folder"));
        assert!(message(Path::new("")).contains("names no file"));
        if cfg!(unix) {
            assert!(message(Path::new("/dev/null")).contains("no ordinary file"));
        }
        assert!(Unfinished::file(&folder.path().join("no/a")).is_err());
        assert!(names(folder.path()).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_nowhere_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("absent", &link).unwrap();
        assert!(Unfinished::file(&link).unwrap_err().to_string().contains("leads nowhere"));
        assert!(Unfinished::folder(&link).unwrap_err().to_string().contains("leads nowhere"));
        assert_eq!(names(folder.path()), ["link"]);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        fs::write(folder.path().join("plain"), "").unwrap();
        Unfinished::file(&folder.path().join("whole")).unwrap().0.put_in_place().unwrap();
        assert_eq!(mode("whole"), mode("plain"));
    }
}
