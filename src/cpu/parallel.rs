//! Splitting work over Candle's own thread pool; small work stays on the calling thread.
//!
//! Candle's workers spin for a moment after each op, so that handing them the next one takes a
//! microsecond or two. A second pool would take ten times that, and find the cores taken by the spinning.

use candle_core::utils::barrier_pool;
use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

/// Work below this stays on the calling thread. One unit is a cheap element: a load, an add, a store, 0.1 ns. So this is
/// 13 µs, several times what it takes to hand work to the pool.
const MIN_PARALLEL: usize = 128 * 1024;

/// The smallest share worth handing to another thread, in the same units: 1.6 µs.
const MIN_SHARE: usize = 16 * 1024;

/// The cost in these units of an element that needs an exponential.
pub const EXP: usize = 8;

/// Threads that work is shared out to, the calling one among them.
pub fn threads() -> usize {
    barrier_pool().n_workers() + 1
}

thread_local! {
    /// Whether this thread is at work for a call of [`ranges`].
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Whether [`ranges`] would share this much work out.
#[inline]
pub fn is_shared(n: usize, cost: usize) -> bool {
    n.saturating_mul(cost) >= MIN_PARALLEL && !BUSY.get()
}

/// Covers `0..n` by ranges, in parallel when `n · cost` is worth it. Every range but the last is a
/// multiple of `align` long. A call from within `work` runs on its own thread alone: the pool takes
/// one call at a time.
pub fn ranges(n: usize, cost: usize, align: usize, work: impl Fn(Range<usize>) + Sync + Send) {
    split(n, cost, align, &work)
}

/// Calls `work` with each of `items`, in parallel when `items.len() · cost` is worth it.
pub fn each<T: Send>(items: &mut [T], cost: usize, work: impl Fn(&mut T) + Sync + Send) {
    let first = Shared::new(items.as_mut_ptr());
    ranges(items.len(), cost, 1, |range| {
        for i in range {
            // SAFETY: the ranges cover `0..items.len()` without overlap, so that each item is borrowed once.
            work(unsafe { &mut *first.get().add(i) });
        }
    })
}

/// Apart from [`ranges`], so that it is compiled once.
fn split(n: usize, cost: usize, align: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    if n == 0 {
        return;
    }
    if !is_shared(n, cost) || n <= align {
        return work(0..n);
    }
    // Eight shares per thread even out a busy core.
    let share = n
        .div_ceil(8 * threads())
        .max(MIN_SHARE.div_ceil(cost.max(1)));
    let share = share.next_multiple_of(align);
    // A panic that unwinds through the pool would poison its lock, and with it every later parallel op of the process,
    // Candle's own too. So it is caught on its thread and goes on in the caller once the pool is free again.
    let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    barrier_pool().execute_chunked(n.div_ceil(share), |shares| {
        let _busy = Busy::new();
        let range = shares.start * share..n.min(shares.end * share);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(range))) {
            *panicked.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        }
    });
    if let Some(payload) = panicked
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
    {
        resume_unwind(payload);
    }
}

/// While it lives, this thread shares nothing out.
struct Busy;

impl Busy {
    fn new() -> Self {
        BUSY.set(true);
        Busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.set(false);
    }
}

/// A pointer that threads may share because they touch disjoint parts behind it.
pub struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: the pointer alone gives no access. Whoever dereferences it does so in an `unsafe` block, and argues there that
// no other thread touches the same elements.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as for Send.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Work that is shared out, one panic in it, then work of ours and of stock Candle's.
    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        for bad in [0, 500_000, 999_999] {
            let result = catch_unwind(|| {
                ranges(1_000_000, 1, 1, |range| {
                    assert!(!range.contains(&bad), "the bad one");
                })
            });
            let payload = result.expect_err("the panic is lost");
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"the bad one"));
            let done = AtomicUsize::new(0);
            ranges(1_000_000, 1, 1, |range| {
                done.fetch_add(range.len(), Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 1_000_000);
            barrier_pool().execute_chunked(100, |_| {});
        }
    }
}
