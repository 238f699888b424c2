//! Splitting work over rayon's global pool; small work stays on the calling thread.

use rayon::prelude::*;
use std::ops::Range;

/// Work below this stays on the calling thread. One unit is a cheap element (a load, an add, a store:
/// 0.1 ns); waking a second thread takes 10 to 20 µs.
const MIN_PARALLEL: usize = 256 * 1024;

/// The smallest share worth handing to another thread, in the same units.
const MIN_SHARE: usize = MIN_PARALLEL / 2;

/// The cost in these units of an element that needs an exponential.
pub const EXP: usize = 8;

/// Covers `0..n` by ranges, in parallel when `n · cost` is worth it. Every range but the last is a
/// multiple of `align` long.
pub fn ranges(n: usize, cost: usize, align: usize, work: impl Fn(Range<usize>) + Sync + Send) {
    if n == 0 {
        return;
    }
    if n.saturating_mul(cost) < MIN_PARALLEL || n <= align {
        return work(0..n);
    }
    let threads = rayon::current_num_threads();
    if threads == 1 {
        return work(0..n);
    }
    // Four shares per thread even out a busy core.
    let share = n.div_ceil(threads * 4).max(MIN_SHARE.div_ceil(cost.max(1)));
    let share = share.next_multiple_of(align);
    (0..n.div_ceil(share))
        .into_par_iter()
        .for_each(|i| work(i * share..n.min((i + 1) * share)));
}

/// A pointer that threads may share because they touch disjoint parts behind it.
#[derive(Clone, Copy)]
pub struct Shared<T>(*mut T);

// SAFETY: users promise disjoint writes (see `Shared::new`).
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The threads that receive a copy must write disjoint elements.
    pub fn new(p: *mut T) -> Self {
        Self(p)
    }
    #[inline(always)]
    pub fn get(self) -> *mut T {
        self.0
    }
}
