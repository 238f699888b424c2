//! For tests: bytes that end where a page ends, with a page behind them that must not be read.

use std::ops::{Deref, Range};

/// A copy of some bytes. To read beyond its end kills the process.
pub struct GuardedBytes {
    pages: *mut libc::c_void,
    mapped: usize,
    /// The bytes' place in the pages.
    place: Range<usize>,
}

impl GuardedBytes {
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: new pages are asked for at no particular place; those before the last are written below their end.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let readable = bytes.len().next_multiple_of(page);
            let mapped = readable + page;
            let pages = libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(pages, libc::MAP_FAILED);
            let guard = pages.cast::<u8>().add(readable);
            assert_eq!(libc::mprotect(guard.cast(), page, libc::PROT_NONE), 0);
            guard
                .sub(bytes.len())
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            GuardedBytes {
                pages,
                mapped,
                place: readable - bytes.len()..readable,
            }
        }
    }

    /// The same bytes as numbers.
    pub fn as_f32(&self) -> &[f32] {
        // SAFETY: every pattern of four bytes is an f32.
        let (before, values, after) = unsafe { self.align_to() };
        assert!(before.is_empty() && after.is_empty());
        values
    }
}

impl Deref for GuardedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` has mapped the pages and written these bytes.
        unsafe {
            let first = self.pages.cast::<u8>().add(self.place.start);
            std::slice::from_raw_parts(first, self.place.len())
        }
    }
}

impl Drop for GuardedBytes {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped them, and no reference outlives `self`.
        unsafe { libc::munmap(self.pages, self.mapped) };
    }
}
