//! Host memory that CPU kernels address directly.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

use memmap2::MmapMut;

use crate::buffer::ForeignBytes;

/// Cache line, and the widest vector register, in bytes.
const ALIGNMENT: usize = 64;

/// The large pages that processors know besides those of 4 KiB. Memory of one or more of them is asked for in such pages: a
/// state or a cache is read in many short runs, and each page of 4 KiB that one enters is an address to translate, in
/// a virtual machine through two sets of tables.
const LARGE_PAGE: usize = 2 << 20;

/// From how many bytes on.
const LARGE: usize = LARGE_PAGE;

enum Owner {
    Heap { layout: Layout, base: NonNull<u8> },
    Mapped { _keep: MmapMut },
    Foreign { _keep: ForeignBytes },
}

/// Bytes in host memory.
///
/// Handles to the same memory are shared, so it is never lent as a slice that outlives an operation:
/// kernels get raw pointers inside an operation, and a device runs one operation at a time
/// (`Device::run` holds the stream lock), which is what makes reads and writes through them free of races.
pub(crate) struct CpuMemory {
    pointer: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: the memory is plain bytes; all access goes through operations that hold the device's stream lock,
// and foreign bytes are only read.
unsafe impl Send for CpuMemory {}
// SAFETY: as above.
unsafe impl Sync for CpuMemory {}

impl CpuMemory {
    /// Takes zeroed memory, or `None` when there is none.
    ///
    /// It is asked for with no more than the allocator's own alignment and aligned here: only then does large memory
    /// come from the system as zeros that take no room until they are written, as caches and scratch need not be whole.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        if len >= LARGE {
            return Self::mapped(len);
        }
        let layout = Layout::array::<u128>(len.checked_add(ALIGNMENT)?.div_ceil(size_of::<u128>())).ok()?;
        // SAFETY: the layout has a non-zero size.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        let skip = base.align_offset(ALIGNMENT);
        assert!(skip < ALIGNMENT);
        // SAFETY: there are at least `ALIGNMENT` bytes more than `len`.
        let pointer = unsafe { base.add(skip) };
        Some(Self { pointer, len, owner: Owner::Heap { layout, base } })
    }

    /// Zeroed memory straight from the system, in large pages where it has them to give.
    fn mapped(len: usize) -> Option<Self> {
        let mut map = MmapMut::map_anon(len.checked_add(LARGE_PAGE)?).ok()?;
        let base = NonNull::new(map.as_mut_ptr())?;
        let skip = base.align_offset(LARGE_PAGE);
        assert!(skip < LARGE_PAGE);
        // Whole large pages only, so that memory takes no more room than its own. A system that refuses has small pages.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, skip, len / LARGE_PAGE * LARGE_PAGE);
        // SAFETY: there are at least `LARGE_PAGE` bytes more than `len`.
        let pointer = unsafe { base.add(skip) };
        Some(Self { pointer, len, owner: Owner::Mapped { _keep: map } })
    }

    /// Borrows bytes that `foreign` owns and keeps valid.
    pub(crate) fn foreign(foreign: ForeignBytes) -> Self {
        let bytes = (*foreign).as_ref();
        let len = bytes.len();
        let pointer = NonNull::from(bytes).cast::<u8>();
        Self { pointer, len, owner: Owner::Foreign { _keep: foreign } }
    }

    pub(crate) fn writable(&self) -> bool {
        !matches!(self.owner, Owner::Foreign { .. })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Copies in; the caller has checked the range and that the memory is writable.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(self.writable() && offset + bytes.len() <= self.len);
        // SAFETY: in range (asserted); callers hold the stream lock, so nothing else touches the memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer().add(offset), bytes.len()) }
    }

    /// Copies out; the caller has checked the range.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: in range (asserted); callers hold the stream lock.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer().add(offset), bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        if let Owner::Heap { layout, base } = self.owner {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { alloc::dealloc(base.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_every_size_is_zeroed_aligned_and_writable() {
        for len in [0, 1, ALIGNMENT + 1, LARGE - 1, LARGE, LARGE + 3] {
            let memory = CpuMemory::zeroed(len).unwrap();
            assert!(memory.writable() && memory.len() == len);
            assert_eq!(memory.pointer().align_offset(ALIGNMENT), 0);
            let mut bytes = vec![1; len];
            memory.read(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 0));
            memory.write(0, &vec![7; len]);
            memory.read(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        assert!(CpuMemory::zeroed(usize::MAX).is_none());
        assert!(CpuMemory::zeroed(usize::MAX / 2).is_none());
    }
}
