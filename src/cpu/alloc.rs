//! Output buffers: allocated uninitialised, written once.

/// Allocations from this size on always come fresh from the kernel (glibc's largest mmap threshold).
const FRESH_FROM: usize = 32 << 20;

/// A vector of `n` elements that `fill` writes.
///
/// # Safety
/// `fill` initialises all `n` elements behind the pointer it is given.
pub unsafe fn build<T: Copy>(n: usize, fill: impl FnOnce(*mut T)) -> Vec<T> {
    let mut data: Vec<T> = Vec::with_capacity(n);
    prefer_huge_pages(data.as_mut_ptr().cast(), n * size_of::<T>());
    fill(data.as_mut_ptr());
    data.set_len(n);
    data
}

/// Faulting 64 MB in as 4 KB pages takes ten times a copy into warm memory; 2 MB pages cut the number
/// of faults by 512 where the system offers them on request.
#[cfg(target_os = "linux")]
fn prefer_huge_pages(p: *mut u8, bytes: usize) {
    const HUGE: usize = 2 << 20;
    if bytes < FRESH_FROM {
        return;
    }
    let start = (p as usize).next_multiple_of(HUGE);
    let len = (p as usize + bytes).saturating_sub(start) / HUGE * HUGE;
    // SAFETY: the range lies inside the allocation; the advice changes no content. A refusal is fine.
    unsafe { libc::madvise(start as *mut _, len, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn prefer_huge_pages(_: *mut u8, bytes: usize) {
    let _ = bytes < FRESH_FROM;
}
