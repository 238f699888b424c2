//! Memory of a thread's own that outlives a call: a megabyte from the system anew takes longer to fault in than to use.

use super::simd::MAX_LANES;
use std::cell::Cell;

/// More than this is given back.
const MOST: usize = (8 << 20) / size_of::<f32>();

thread_local! {
    /// One for each user at work at the same time, the outermost one's last.
    static KEPT: Cell<Vec<Vec<f32>>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with room for so many elements each. What they hold is whatever was there.
pub fn with<const N: usize, R>(lens: [usize; N], f: impl FnOnce([*mut f32; N]) -> R) -> R {
    let mut kept = KEPT.take();
    let mut memory = kept.pop().unwrap_or_default();
    KEPT.set(kept);
    let rounded = lens.map(|len| len.next_multiple_of(MAX_LANES));
    memory.reserve_exact(rounded.iter().sum::<usize>() + (N + 1) * MAX_LANES);
    let mut next = memory.as_mut_ptr();
    // SAFETY: that many elements, and those that alignment takes, are in the reserved memory.
    let parts = rounded.map(|len| unsafe {
        let part = next.add(next.align_offset(MAX_LANES * size_of::<f32>()));
        next = part.add(len);
        part
    });
    let result = f(parts);
    if memory.capacity() <= MOST {
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
            // A second user while the first is at work.
            let inner = with([10], |[d]| d as usize);
            assert!(!parts.contains(&inner));
            assert_eq!(with([7], |[d]| d as usize), inner);
        });
        let first = with([50], |[p]| p as usize);
        assert_eq!(with([20], |[p]| p as usize), first);
    }
}
