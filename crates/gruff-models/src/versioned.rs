//! A value that many read and few change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A value that changes as a whole: who holds what [`get`](Self::get) gave sees no change. Counts the changes.
#[derive(Default)]
pub(crate) struct Versioned<T> {
    value: RwLock<Arc<T>>,
    revision: AtomicU64,
}

impl<T: Clone> Versioned<T> {
    /// The value as it is now.
    pub(crate) fn get(&self) -> Arc<T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the value, unless `change` gives an error.
    pub(crate) fn change<R, E>(&self, change: impl FnOnce(&mut T) -> Result<R, E>) -> Result<R, E> {
        let mut value = self.value.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = T::clone(&value);
        let result = change(&mut changed)?;
        *value = Arc::new(changed);
        self.revision.fetch_add(1, Ordering::Relaxed);
        Ok(result)
    }

    /// How often it has changed.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_what_they_have_and_errors_change_nothing() {
        let value = Versioned::<Vec<u32>>::default();
        let before = value.get();
        value
            .change(|list| {
                list.push(1);
                Ok::<_, ()>(())
            })
            .unwrap();
        assert_eq!((before.len(), value.get().len(), value.revision()), (0, 1, 1));
        let refused = value.change(|list| {
            list.clear();
            Err::<(), _>("no")
        });
        assert_eq!((refused, value.get().len(), value.revision()), (Err("no"), 1, 1));
    }
}
