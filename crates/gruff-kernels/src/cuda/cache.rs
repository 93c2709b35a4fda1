//! Compiled kernels on disk, so that only the first start ever compiles.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// What a file begins with; behind it come the digest of the machine code and the machine code.
const MAGIC: &[u8; 8] = b"gruffcu1";

/// A folder of compiled kernels. Without one, or with one that cannot be written, kernels are compiled each time.
pub(crate) struct KernelCache {
    folder: Option<PathBuf>,
}

/// A digest over everything that machine code depends on.
pub(crate) struct Key(String);

impl Key {
    pub(crate) fn new<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        Self(hex(&digest.finalize()))
    }
}

impl KernelCache {
    /// The folder that is named, else `GRUFF_KERNEL_CACHE`, else `gruff/kernels` in the user's cache folder. An empty
    /// name means none.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        let folder = folder
            .or_else(|| std::env::var_os("GRUFF_KERNEL_CACHE").map(PathBuf::from))
            .or_else(default_folder)
            .filter(|folder| !folder.as_os_str().is_empty());
        Self { folder }
    }

    /// The folder.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Whether there is anything in the folder.
    pub(crate) fn holds_any(&self) -> bool {
        let entries = self.folder.as_ref().and_then(|folder| fs::read_dir(folder).ok());
        entries.is_some_and(|mut entries| entries.next().is_some())
    }

    /// What was stored under a key; `None` also for a file that was cut short or altered.
    pub(crate) fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(key)?).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (digest, code) = rest.split_at_checked(32)?;
        (Sha256::digest(code).as_slice() == digest).then(|| code.to_vec())
    }

    /// Stores machine code: written beside and renamed, so that readers see all of it or nothing.
    pub(crate) fn store(&self, key: &Key, code: &[u8]) -> std::io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(path) = self.path(key) else { return Ok(()) };
        let Some(folder) = path.parent() else { return Ok(()) };
        fs::create_dir_all(folder)?;
        let part =
            folder.join(format!(".{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let written = fs::File::create(&part).and_then(|mut file| {
            file.write_all(MAGIC)?;
            file.write_all(&Sha256::digest(code))?;
            file.write_all(code)?;
            file.sync_all()
        });
        let renamed = written.and_then(|()| fs::rename(&part, &path));
        if renamed.is_err() {
            let _ = fs::remove_file(&part);
        }
        renamed
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.cubin", key.0)))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn default_folder() -> Option<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None if cfg!(windows) => PathBuf::from(std::env::var_os("LOCALAPPDATA")?),
        None if cfg!(target_os = "macos") => std::env::home_dir()?.join("Library/Caches"),
        None => std::env::home_dir()?.join(".cache"),
    };
    Some(cache.join("gruff").join("kernels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_code_and_refuses_what_was_altered() {
        let folder = std::env::temp_dir().join(format!("gruff-kernel-cache-{}", std::process::id()));
        let cache = KernelCache::new(Some(folder.clone()));
        let (key, other) = (Key::new(["a", "bc"]), Key::new(["ab", "c"]));
        assert_ne!(key.0, other.0);
        assert_eq!(cache.load(&key), None);
        cache.store(&key, b"machine code").unwrap();
        assert_eq!(cache.load(&key).as_deref(), Some(&b"machine code"[..]));
        let path = cache.path(&key).unwrap();
        let whole = fs::read(&path).unwrap();
        for broken in [&whole[..whole.len() - 1], &whole[..20], b""] {
            fs::write(&path, broken).unwrap();
            assert_eq!(cache.load(&key), None);
        }
        cache.store(&key, b"machine code").unwrap();
        assert!(cache.load(&key).is_some());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
        // A file in the folder's place.
        fs::write(&folder, b"").unwrap();
        assert!(cache.store(&key, b"machine code").is_err());
        fs::remove_file(&folder).unwrap();
        assert!(KernelCache::new(Some(PathBuf::new())).store(&key, b"").is_ok());
    }
}
