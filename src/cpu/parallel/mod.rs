//! Splitting work over threads; small work stays on the calling one.
//!
//! Work goes to Candle's own thread pool, whose workers spin for some 300 µs after each op: handing them the next one takes a
//! microsecond or two. A second pool finds the cores taken by that spinning. Beside stock ops of Candle its threads start
//! late or not at all: products with a stock addition behind every third ran at 0.5 to 0.65 of the speed.
//!
//! Candle's pool has one weakness: its caller spins until every worker has come and gone, and on a busy machine a worker
//! may have no core for milliseconds. [`Patience`] measures that wait. While it lasts, work goes to a pool of our own,
//! whose caller waits for nobody who has not begun ([`own_pool`]). `CANDLE_FUSED_POOL=own` chooses that pool for good.
//!
//! In the closure of a user's own `barrier_pool().execute(..)`, on the thread that calls it, an op would wait for its own caller for
//! ever, as stock Candle's ops do there: nothing tells an op where it is. With `own` it works. Nor may such a closure read a
//! tensor that an in-place op of another thread changes meanwhile: that op holds the tensor's lock, and may wait for the pool that
//! the closure holds. An optimiser's steps keep out of Candle's pool for that reason ([`off_candle_pool`]): they alone change what
//! other threads commonly read. The other in-place ops stand among stock ops, beside which the second pool is too slow.
//!
//! Each pool takes one call at a time. Another call finds it taken and works on its own thread alone, and so does one from within
//! shared work: no call waits for another, but on Candle's pool for a stock op of another thread. Who does which share has no
//! influence on the result.

mod candle_pool;
mod job;
mod own_pool;
mod patience;

use candle_core::utils::barrier_pool;
use job::Job;
use own_pool::OwnPool;
use patience::Patience;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::thread::LocalKey;

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
    /// Whether this thread is within [`off_candle_pool`].
    static OFF_CANDLE_POOL: Cell<bool> = const { Cell::new(false) };
}

/// Whether [`ranges`] would share this much work out.
#[inline]
pub fn is_shared(n: usize, cost: usize) -> bool {
    n.saturating_mul(cost) >= MIN_PARALLEL && !BUSY.get()
}

/// Calls `work`, which hands nothing to Candle's pool: it waits for the locks of storages, or holds one for writing.
///
/// Candle's pool takes one call at a time. Another thread may hold such a lock in a stock op that waits for that pool, or wait for
/// the lock in the closure of a user's own call of it: then either would wait for the other for ever.
pub fn off_candle_pool<R>(work: impl FnOnce() -> R) -> R {
    let _off = Raised::new(&OFF_CANDLE_POOL);
    work()
}

/// Calls `work`, which shares nothing out: what it computes must have the same bits.
#[cfg(test)]
pub fn alone<R>(work: impl FnOnce() -> R) -> R {
    let _busy = Raised::new(&BUSY);
    work()
}

/// Covers `0..n` by ranges, in parallel when `n · cost` is worth it. Every range but the last is a
/// multiple of `align` long. A call from within `work` runs on its own thread alone: a pool takes
/// one call at a time.
pub fn ranges(n: usize, cost: usize, align: usize, work: impl Fn(Range<usize>) + Sync + Send) {
    split(n, cost, align, &work)
}

/// Calls `work` with each of `items`, in parallel when `items.len() · cost` is worth it.
pub fn each<T: Send>(items: &mut [T], cost: usize, work: impl Fn(&mut T) + Sync + Send) {
    let first = Shared::new(items.as_mut_ptr());
    split(items.len(), cost, 1, &|range| {
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
    let work_on = |i: usize| work(i * share..n.min((i + 1) * share));
    let job = Job::new(n.div_ceil(share), &work_on);
    if !share_out(&job) {
        return work(0..n);
    }
    if let Some(payload) = job.into_panic() {
        resume_unwind(payload);
    }
}

/// Works on a job with the threads of Candle's pool or of ours. `false`, and nothing done, if they are at work for another call.
fn share_out(job: &Job) -> bool {
    if OFF_CANDLE_POOL.get() {
        return own_pool().run(job).is_some();
    }
    static PATIENCE: Patience = Patience::new();
    if own_pool_alone() || PATIENCE.is_lost() {
        let times = own_pool().run(job);
        times.inspect(|&times| PATIENCE.shared_elsewhere(times));
        return times.is_some();
    }
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Acquire) {
        return false;
    }
    // Candle's pool panics before it begins if a panic in a closure of the user's has poisoned it. Then it is left alone.
    static POISONED: AtomicBool = AtomicBool::new(false);
    if POISONED.load(Ordering::Relaxed) {
        TAKEN.store(false, Ordering::Release);
        return own_pool().run(job).is_some();
    }
    let times = catch_unwind(AssertUnwindSafe(|| candle_pool::run(job)));
    TAKEN.store(false, Ordering::Release);
    match times {
        Ok(times) => {
            PATIENCE.shared(times);
            true
        }
        Err(_) => {
            POISONED.store(true, Ordering::Relaxed);
            finish(job);
            true
        }
    }
}

/// Works on the shares that Candle's pool has left when it panicked. It may have claimed some of them, or all.
fn finish(job: &Job) {
    if own_pool().run(job).is_none() {
        job.claim(|| ());
    }
}

/// Whether the user wants no work to go to Candle's pool.
fn own_pool_alone() -> bool {
    static ALONE: OnceLock<bool> = OnceLock::new();
    *ALONE.get_or_init(|| std::env::var_os("CANDLE_FUSED_POOL").is_some_and(|pool| pool == "own"))
}

/// Started by the first work that it gets. Its threads sleep while it gets none.
fn own_pool() -> &'static OwnPool {
    static POOL: OnceLock<&OwnPool> = OnceLock::new();
    POOL.get_or_init(|| OwnPool::start(threads() - 1))
}

/// While it lives, a flag of this thread is raised.
struct Raised {
    flag: &'static LocalKey<Cell<bool>>,
    before: bool,
}

impl Raised {
    fn new(flag: &'static LocalKey<Cell<bool>>) -> Self {
        Raised {
            flag,
            before: flag.replace(true),
        }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.flag.set(self.before);
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
    use std::sync::atomic::AtomicUsize;

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

    /// Our pool may be at work for another call when Candle's has panicked in the middle of a job.
    #[test]
    fn a_job_is_finished_where_it_was_left() {
        let counts: Vec<_> = (0..9).map(|_| AtomicUsize::new(0)).collect();
        let count = |i: usize| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        };
        let job = Job::new(counts.len(), &count);
        let work = |_: usize| finish(&job);
        // Other tests may have the pool.
        while own_pool().run(&Job::new(1, &work)).is_none() {
            std::thread::yield_now();
        }
        assert!(counts
            .iter()
            .all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn work_keeps_out_of_candle_s_pool_or_on_its_own_thread() {
        let named = || {
            std::thread::current()
                .name()
                .is_some_and(|n| n.starts_with("candle-bp"))
        };
        for _ in 0..100 {
            off_candle_pool(|| ranges(1_000_000, 1, 1, |_| assert!(!named())));
        }
        assert!(!OFF_CANDLE_POOL.get());
        alone(|| {
            let caller = std::thread::current().id();
            ranges(1_000_000, 1, 1, |range| {
                assert_eq!(std::thread::current().id(), caller);
                assert_eq!(range, 0..1_000_000);
            });
        });
    }
}
