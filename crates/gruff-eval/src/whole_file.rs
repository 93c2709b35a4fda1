//! Files that take their names only when they are whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use gruff_gguf::Unfinished;

/// A file under another name beside its own, until [`WholeFile::put_in_place`]; dropped before, it is removed, as by
/// [`gruff_gguf::abandon_unfinished`].
#[derive(Debug)]
pub struct WholeFile {
    out: BufWriter<File>,
    place: Unfinished,
}

impl WholeFile {
    /// Bytes that are collected before they are written.
    const BUFFER: usize = 1 << 20;

    /// Begins the file that is to be at `target`, with the permissions of any new file.
    ///
    /// # Errors
    /// When its folder is not there or cannot be written, or `target` is a folder or a device.
    pub fn create(target: &Path) -> io::Result<Self> {
        let (place, file) = Unfinished::file(target)?;
        Ok(Self { out: BufWriter::with_capacity(Self::BUFFER, file), place })
    }

    /// Brings the bytes to the disk and gives the file its name, replacing what has it.
    ///
    /// # Errors
    /// When a byte cannot be written; nothing is put in place then.
    pub fn put_in_place(mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        self.place.put_in_place()
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
    use std::fs;

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
}
