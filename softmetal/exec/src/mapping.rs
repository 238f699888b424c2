//! Anonymous memory from the operating system, between pages that nobody may touch.

use std::ptr::{null_mut, NonNull};

/// What lies untouchable on each side of a mapping: a wild access hits nothing else.
const GUARD: usize = 64 * 1024;
const PAGE: usize = 4096;

/// Zeroed memory. Pages that are never touched cost nothing.
pub(crate) struct Mapping {
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory that belongs to whoever holds it.
unsafe impl Send for Mapping {}
// SAFETY: as above; who shares it takes care of ordering.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `len` bytes at the start of a page.
    ///
    /// # Panics
    /// When the system refuses the memory.
    pub fn new(len: usize) -> Self {
        let inner = len.max(1).next_multiple_of(PAGE);
        // SAFETY: a fresh private mapping, and a change of protection inside it.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let start = libc::mmap(null_mut(), inner + 2 * GUARD, libc::PROT_NONE, flags, -1, 0);
            assert!(
                start != libc::MAP_FAILED,
                "no address space for {len} bytes"
            );
            let data = start.cast::<u8>().add(GUARD);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let refused = libc::mprotect(data.cast(), inner, access);
            assert!(refused == 0, "no memory for {len} bytes");
            Self {
                data: NonNull::new_unchecked(data),
                len: inner,
            }
        }
    }

    pub fn data(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    pub fn address(&self) -> usize {
        self.data.as_ptr() as usize
    }

    /// Usable bytes, a whole number of pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes everything zero again and gives the pages back.
    pub fn clear(&self) {
        // SAFETY: the range is ours; private anonymous pages read as zero afterwards.
        unsafe { libc::madvise(self.data.as_ptr().cast(), self.len, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped.
        unsafe { libc::munmap(self.data().sub(GUARD).cast(), self.len + 2 * GUARD) };
    }
}
