//! Anonymous memory from the operating system, between pages that nobody may touch.

use std::ptr::{null_mut, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What lies untouchable on each side of a mapping: a wild access hits nothing else.
const GUARD: usize = 64 * 1024;
const PAGE: usize = 4096;

/// Mappings of few pages are kept, cleared, for the next of the same size: to make one takes the system longer than most
/// kernels run.
const SPARE_PAGES: usize = 4;
const MOST_SPARE: usize = 4096;
static SPARE: [Mutex<Vec<Spare>>; SPARE_PAGES] = [const { Mutex::new(Vec::new()) }; SPARE_PAGES];

/// The start of a mapping that nobody has.
struct Spare(NonNull<u8>);

// SAFETY: nobody else has it.
unsafe impl Send for Spare {}

/// Where mappings of so many bytes wait.
fn spare(len: usize) -> Option<MutexGuard<'static, Vec<Spare>>> {
    let shelf = SPARE.get(len / PAGE - 1)?;
    Some(shelf.lock().unwrap_or_else(PoisonError::into_inner))
}

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
        if let Some(Spare(data)) = spare(inner).and_then(|mut shelf| shelf.pop()) {
            return Self { data, len: inner };
        }
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
        if let Some(mut shelf) = spare(self.len).filter(|shelf| shelf.len() < MOST_SPARE) {
            // SAFETY: the range is ours.
            unsafe { self.data.write_bytes(0, self.len) };
            shelf.push(Spare(self.data));
            return;
        }
        // SAFETY: exactly what `new` mapped.
        unsafe { libc::munmap(self.data().sub(GUARD).cast(), self.len + 2 * GUARD) };
    }
}
