//! Splitting work over Candle's own thread pool; small work stays on the calling thread.
//!
//! Candle's workers spin for a moment after each op, so that handing them the next one takes a microsecond or two. A second
//! pool would find the cores taken by that spinning: beside stock ops, its threads start some 20 µs late or not at all.
//!
//! Candle's pool has one weakness: its caller spins until every worker has come and gone, and on a busy machine a worker
//! may have no core for milliseconds. [`Patience`] measures that wait, and keeps work on the calling thread while it lasts.

mod patience;

use candle_core::utils::barrier_pool;
use patience::Patience;
use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    static PATIENCE: Patience = Patience::new();
    // Eight shares per thread even out a busy core.
    let share = n
        .div_ceil(8 * threads())
        .max(MIN_SHARE.div_ceil(cost.max(1)));
    let share = share.next_multiple_of(align);
    // Candle's pool takes one call at a time: who finds it taken would only wait for it.
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if PATIENCE.is_lost() || TAKEN.swap(true, Ordering::Acquire) {
        let start = Instant::now();
        work(0..n);
        return PATIENCE.worked_alone(start.elapsed());
    }
    let shared = shared(n.div_ceil(share), &|i| {
        work(i * share..n.min((i + 1) * share));
    });
    TAKEN.store(false, Ordering::Release);
    match shared {
        Ok(times) => PATIENCE.shared(times),
        Err(payload) => resume_unwind(payload),
    }
}

/// How long the calling thread took for shared work.
struct Times {
    /// For the shares that it claimed itself.
    work: Duration,
    shares: usize,
    /// Then for the other threads.
    wait: Duration,
}

/// Calls `work` with each number below `count`, on the threads of the pool. They claim numbers until none is left, and the
/// calling thread claims them too: one that comes late or not at all leaves its part to the others.
///
/// A panic that unwinds through the pool would poison its lock, and with it every later parallel op of the process, Candle's own
/// too. So it is caught on its thread and returned.
fn shared(count: usize, work: &(dyn Fn(usize) + Sync)) -> Result<Times, Box<dyn Any + Send>> {
    let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let next = AtomicUsize::new(0);
    let claimed = Mutex::new((Duration::ZERO, 0));
    let start = Instant::now();
    let caller = std::thread::current().id();
    // As many items as threads; one that comes first takes several, and finds nothing left in the later ones.
    barrier_pool().execute_chunked(threads(), |_| {
        let _busy = Busy::new();
        let mut shares = 0;
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                break;
            }
            shares += 1;
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(i))) {
                *panicked.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
        }
        if shares > 0 && std::thread::current().id() == caller {
            *claimed.lock().unwrap_or_else(PoisonError::into_inner) = (start.elapsed(), shares);
        }
    });
    let all = start.elapsed();
    let (work, shares) = claimed.into_inner().unwrap_or_else(PoisonError::into_inner);
    match panicked
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
    {
        Some(payload) => Err(payload),
        None => Ok(Times {
            work,
            shares,
            wait: all - work,
        }),
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
