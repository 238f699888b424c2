//! Output buffers: allocated uninitialised, written once.

use std::sync::OnceLock;

/// A vector of `n` elements that `fill` writes.
///
/// # Safety
/// `fill` initialises all `n` elements behind the pointer it is given.
#[inline]
pub unsafe fn build<T: Copy>(n: usize, fill: impl FnOnce(*mut T)) -> Vec<T> {
    let mut data: Vec<T> = Vec::with_capacity(n);
    prefer_huge_pages(data.as_mut_ptr().cast(), n * size_of::<T>());
    fill(data.as_mut_ptr());
    // SAFETY: the capacity is n or more, and `fill` has initialised n elements.
    unsafe { data.set_len(n) };
    data
}

/// Faulting 64 MB in as 4 KB pages takes ten times a copy into warm memory; 2 MB pages cut the number
/// of faults by 512 where the system offers them on request.
#[cfg(target_os = "linux")]
#[inline]
fn prefer_huge_pages(p: *mut u8, bytes: usize) {
    const HUGE: usize = 2 << 20;
    /// Allocations from this size on always come fresh from the kernel: glibc's largest mmap threshold.
    const FRESH_FROM: usize = 32 << 20;
    if bytes < FRESH_FROM {
        return;
    }
    let start = (p as usize).next_multiple_of(HUGE);
    let len = (p as usize + bytes).saturating_sub(start) / HUGE * HUGE;
    // SAFETY: the range lies inside the allocation; the advice changes no content. A refusal is fine.
    unsafe { libc::madvise(start as *mut _, len, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn prefer_huge_pages(_: *mut u8, _: usize) {}

/// The bytes of this machine's memory, or `usize::MAX` where the system does not say. An allocation of more than that may
/// succeed, because systems hand out memory when it is first written, and then take the process down.
pub fn physical_memory() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(ask_for_physical_memory)
}

fn ask_for_physical_memory() -> usize {
    #[cfg(unix)]
    {
        // SAFETY: `sysconf` reads constants of the system.
        let [pages, page] =
            [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
        if let (Ok(pages), Ok(page)) = (usize::try_from(pages), usize::try_from(page)) {
            return pages.saturating_mul(page);
        }
    }
    usize::MAX
}
