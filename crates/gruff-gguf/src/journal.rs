//! Writing over a file's header so that a crash at any point leaves a file that can be made whole.
//!
//! 1. The new header goes to `NAME.journal` beside the file.
//! 2. The file's first four bytes become a mark that no reader takes for GGUF.
//! 3. The rest of the header is written.
//! 4. The first four bytes are written.
//! 5. The journal is removed.
//!
//! Each step is on the disk before the next begins. Before step 2 the file is the old one, behind step 4 the new one,
//! and a journal that is left means nothing. Between them the mark keeps every program from reading half a header, and
//! [`finish_edit`] writes the rest from the journal.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::header::MAGIC;
use crate::unfinished::{Unfinished, beside, uninterrupted};
use crate::{Error, Limits};

/// What a file begins with while its header is written over.
pub(crate) const MARK: &[u8; 4] = b"EDIT";

/// What a journal begins with; the file's size, the header's checksum and the header follow, numbers as u64,
/// little-endian.
const JOURNAL_MAGIC: &[u8; 8] = b"GRUFFJNL";
const SUFFIX: &str = ".journal";
const PREFIX: usize = 24;

/// Writes `header` over the beginning of the file at `path`, which is at least as long.
pub(crate) fn write_over(path: &Path, header: &[u8]) -> io::Result<()> {
    steps(path, header, |_| Ok(()))
}

/// The steps; `done` hears of each that is on the disk, and may end the work there.
fn steps(path: &Path, header: &[u8], mut done: impl FnMut(u32) -> io::Result<()>) -> io::Result<()> {
    let mut file = lock(path)?;
    let size = file.metadata()?.len();
    let journal = journal_of(path);
    if journal.exists() && !is_journal(&journal) {
        let fault =
            format!("{} is in the way; move it, or write to another file with --out", journal.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, fault));
    }
    let (unfinished, mut out) = Unfinished::file(&journal)?;
    out.write_all(
        &[JOURNAL_MAGIC, &size.to_le_bytes()[..], &checksum(header).to_le_bytes(), header].concat(),
    )?;
    out.sync_all()?;
    unfinished.put_in_place()?;
    sync_folder(&journal)?;
    done(1)?;
    uninterrupted(|| {
        write_at(&mut file, 0, MARK)?;
        done(2)?;
        write_header(&mut file, header, &mut done)?;
        remove_journal(&journal)
    })
}

/// Steps 3 and 4.
fn write_header(
    file: &mut File,
    header: &[u8],
    done: &mut impl FnMut(u32) -> io::Result<()>,
) -> io::Result<()> {
    let (magic, rest) = header.split_at(MARK.len().min(header.len()));
    write_at(file, magic.len() as u64, rest)?;
    done(3)?;
    write_at(file, 0, magic)?;
    done(4)
}

/// Finishes an edit of the file at `path` that was interrupted while its header was written over. Tells whether there
/// was one; a file that is whole stays as it is, and a journal left beside it is removed.
///
/// # Errors
/// [`Error::Journal`] when the file cannot be made whole, because its journal is missing or another file's;
/// [`Error::Io`] when it cannot be read or written.
pub fn finish_edit(path: &Path) -> Result<bool, Error> {
    let file: Arc<str> = path.display().to_string().into();
    let refused = |action| {
        let file = file.clone();
        move |source| Error::Io { action, file, source }
    };
    let journal = journal_of(path);
    if !is_marked(path).map_err(refused("open"))? {
        if is_journal(&journal) {
            // Another program may be at work: what it holds the lock of is not to be touched.
            let _locked = lock(path).map_err(refused("edit"))?;
            if !is_marked(path).map_err(refused("open"))? {
                remove_journal(&journal).map_err(refused("edit"))?;
            }
        }
        return Ok(false);
    }
    let mut out = lock(path).map_err(refused("edit"))?;
    let size = out.metadata().map_err(refused("read"))?.len();
    let header = read(&journal, size).map_err(|fault| Error::Journal {
        file: file.clone(),
        journal: journal.display().to_string(),
        fault,
    })?;
    uninterrupted(|| {
        write_header(&mut out, &header, &mut |_| Ok(()))?;
        remove_journal(&journal)
    })
    .map_err(refused("write"))?;
    Ok(true)
}

/// The header in a journal for a file of `size` bytes; what is wrong with it.
fn read(journal: &Path, size: u64) -> Result<Vec<u8>, String> {
    let bytes = match fs::metadata(journal) {
        Err(error) => return Err(error.to_string()),
        Ok(found) if found.len() > Limits::default().header_bytes + PREFIX as u64 => {
            return Err("it is longer than a header can be".to_owned());
        }
        Ok(_) => fs::read(journal).map_err(|error| error.to_string())?,
    };
    let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let header = bytes.get(PREFIX..).unwrap_or_default();
    match (number(8), number(16)) {
        _ if !bytes.starts_with(JOURNAL_MAGIC) => Err("it is another file".to_owned()),
        (Some(of), _) if of != size => Err(format!("it belongs to a file of {of} bytes, not of {size}")),
        (_, Some(sum)) if sum == checksum(header) && header.starts_with(MAGIC) => Ok(header.to_vec()),
        _ => Err("it is damaged".to_owned()),
    }
}

fn journal_of(path: &Path) -> PathBuf {
    beside(path, SUFFIX)
}

fn is_marked(path: &Path) -> io::Result<bool> {
    begins_with(path, MARK)
}

fn is_journal(path: &Path) -> bool {
    begins_with(path, JOURNAL_MAGIC).unwrap_or(false)
}

fn begins_with(path: &Path, magic: &[u8]) -> io::Result<bool> {
    // Opening a pipe would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut found = Vec::new();
    File::open(path)?.take(magic.len() as u64).read_to_end(&mut found)?;
    Ok(found == magic)
}

/// Opens the file for changing it, which one program at a time may do.
fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "another program is editing it; try again when it is done",
        )),
        // A file system without locks does not forbid editing.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn write_at(file: &mut File, at: u64, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn remove_journal(journal: &Path) -> io::Result<()> {
    fs::remove_file(journal)?;
    sync_folder(journal)
}

/// Brings a name to the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = b"GGUF old header, and then data";
    const NEW: &[u8] = b"GGUF new header";
    const WHOLE: &[u8] = b"GGUF new header, and then data";

    /// A file whose edit was ended behind a step.
    fn interrupted(folder: &Path, last: u32) -> PathBuf {
        let path = folder.join("model.gguf");
        fs::write(&path, OLD).unwrap();
        let ended =
            steps(&path, NEW, |step| if step == last { Err(io::Error::other("end")) } else { Ok(()) });
        assert_eq!(ended.is_err(), (1..=4).contains(&last));
        path
    }

    #[test]
    fn an_edit_that_ends_anywhere_is_finished_or_never_began() {
        for last in 0..=4 {
            let folder = tempfile::tempdir().unwrap();
            let path = interrupted(folder.path(), last);
            let marked = matches!(last, 2 | 3);
            assert_eq!(fs::read(&path).unwrap().starts_with(MARK), marked, "step {last}");
            assert_eq!(finish_edit(&path).unwrap(), marked, "step {last}");
            assert_eq!(fs::read(&path).unwrap(), if last == 1 { OLD } else { WHOLE }, "step {last}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "step {last}");
            assert!(!finish_edit(&path).unwrap());
        }
    }

    #[test]
    fn a_header_that_is_half_on_the_disk_is_made_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = interrupted(folder.path(), 2);
        for torn in [&b"GGUF"[..], b"EDIT new hea", b"EDIT\0\0\0\0\0\0\0"] {
            let mut file = OpenOptions::new().write(true).open(&path).unwrap();
            write_at(&mut file, 4, &torn[4..]).unwrap();
            write_at(&mut file, 0, MARK).unwrap();
            // An edit that is finished and interrupted again.
            let journal = fs::read(journal_of(&path)).unwrap();
            assert!(finish_edit(&path).unwrap());
            assert_eq!(fs::read(&path).unwrap(), WHOLE);
            fs::write(journal_of(&path), journal).unwrap();
        }
    }

    #[test]
    fn a_journal_that_does_not_belong_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = interrupted(folder.path(), 2);
        let journal = journal_of(&path);
        let whole = fs::read(&journal).unwrap();
        let message = |bytes: &[u8]| {
            fs::write(&journal, bytes).unwrap();
            finish_edit(&path).unwrap_err().to_string()
        };
        assert!(message(&whole[..whole.len() - 1]).contains("it is damaged"));
        assert!(message(&whole[..20]).contains("it is damaged"));
        assert!(message(b"notes of mine").contains("it is another file"));
        let mut other = whole.clone();
        other[8] += 1;
        assert!(message(&other).contains("belongs to a file of 31 bytes"));
        fs::remove_file(&journal).unwrap();
        let absent = finish_edit(&path).unwrap_err().to_string();
        assert!(absent.contains("model.gguf.journal"), "{absent}");
        assert!(fs::read(&path).unwrap().starts_with(MARK));
    }

    #[test]
    fn files_in_the_way_and_other_editors_are_respected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, OLD).unwrap();
        fs::write(journal_of(&path), "notes of mine").unwrap();
        assert!(write_over(&path, NEW).unwrap_err().to_string().contains("in the way"));
        assert!(!finish_edit(&path).unwrap());
        assert_eq!(fs::read(journal_of(&path)).unwrap(), b"notes of mine");
        fs::remove_file(journal_of(&path)).unwrap();
        let other = lock(&path).unwrap();
        assert!(write_over(&path, NEW).unwrap_err().to_string().contains("another program"));
        assert_eq!(fs::read(&path).unwrap(), OLD);
        drop(other);
        write_over(&path, NEW).unwrap();
        assert_eq!(fs::read(&path).unwrap(), WHOLE);
    }
}
