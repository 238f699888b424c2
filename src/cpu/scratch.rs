//! Scratch memory that each thread keeps from call to call: a fresh megabyte takes the system longer to fault in than most
//! kernels take to use it.

use super::simd::MAX_LANES;
use std::cell::Cell;

/// A thread keeps blocks of at most this many elements, 8 MB, and frees larger ones.
const MAX_KEPT: usize = (8 << 20) / size_of::<f32>();

thread_local! {
    /// The blocks that no call uses at the moment. Nested calls of [`with`] take one each.
    static KEPT: Cell<Vec<Vec<f32>>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with pointers to uninitialised memory for `lens` elements each, aligned to a vector. They are valid until `f`
/// returns.
pub fn with<const N: usize, R>(lens: [usize; N], f: impl FnOnce([*mut f32; N]) -> R) -> R {
    let mut kept = KEPT.take();
    let mut memory = kept.pop().unwrap_or_default();
    KEPT.set(kept);
    let rounded = lens.map(|len| len.next_multiple_of(MAX_LANES));
    memory.reserve_exact(rounded.iter().sum::<usize>() + (N + 1) * MAX_LANES);
    let mut next = memory.as_mut_ptr();
    // SAFETY: the memory has the rounded lengths and, for each of the N parts and once more, up to a vector that aligning
    // the part skips.
    let parts = rounded.map(|len| unsafe {
        let part = next.add(next.align_offset(MAX_LANES * size_of::<f32>()));
        next = part.add(len);
        part
    });
    let result = f(parts);
    if memory.capacity() <= MAX_KEPT {
        let mut kept = KEPT.take();
        kept.push(memory);
        KEPT.set(kept);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_apart_and_aligned() {
        with([1, 100, 16], |[a, b, c]| {
            let parts = [a, b, c].map(|p| p as usize);
            assert!(parts.iter().all(|p| p % 64 == 0));
            assert!(parts[1] >= parts[0] + 4 && parts[2] >= parts[1] + 400);
            // A nested call gets memory of its own.
            let inner = with([10], |[d]| d as usize);
            assert!(!parts.contains(&inner));
            assert_eq!(with([7], |[d]| d as usize), inner);
        });
        let first = with([50], |[p]| p as usize);
        assert_eq!(with([20], |[p]| p as usize), first);
    }
}
