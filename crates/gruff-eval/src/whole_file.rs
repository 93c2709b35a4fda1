//! Files that take their names only when they are whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file under another name beside its own, until [`WholeFile::put_in_place`]; dropped before, it is removed.
#[derive(Debug)]
pub struct WholeFile {
    out: BufWriter<File>,
    part: Part,
    target: PathBuf,
}

/// The other name.
#[derive(Debug)]
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        // Gone already when it was put in place; a file that cannot be removed is harmless.
        let _ = fs::remove_file(&self.0);
    }
}

impl WholeFile {
    /// Bytes that are collected before they are written.
    const BUFFER: usize = 1 << 20;

    /// Begins the file that is to be at `target`, with the permissions of any new file.
    ///
    /// # Errors
    /// When its folder is not there or cannot be written.
    pub fn create(target: &Path) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_string_lossy();
        let unique = format!("{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let part = target.with_file_name(format!(".{name}.{unique}.part"));
        let out = BufWriter::with_capacity(Self::BUFFER, File::create_new(&part)?);
        Ok(Self { out, part: Part(part), target: target.to_owned() })
    }

    /// Brings the bytes to the disk and gives the file its name, replacing what has it.
    ///
    /// # Errors
    /// When a byte cannot be written; nothing is put in place then.
    pub fn put_in_place(mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs::rename(&self.part.0, &self.target)
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!((path.exists(), names()), (false, 1));
        drop(file);
        assert_eq!(names(), 0);
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"whole").unwrap();
        file.put_in_place().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names()), (b"whole".to_vec(), 1));
        assert!(WholeFile::create(&folder.path().join("no/a.npy")).is_err());
        assert!(WholeFile::create(Path::new("/")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        fs::write(folder.path().join("plain"), "").unwrap();
        WholeFile::create(&folder.path().join("whole")).unwrap().put_in_place().unwrap();
        assert_eq!(mode("whole"), mode("plain"));
    }
}
