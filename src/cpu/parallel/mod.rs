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
//! ever, as stock Candle's ops do there: nothing tells an op where it is. With `own` it works.
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
/// multiple of `align` long. A call from within `work` runs on its own thread alone: a pool takes
/// one call at a time.
pub fn ranges(n: usize, cost: usize, align: usize, work: impl Fn(Range<usize>) + Sync + Send) {
    split(n, cost, align, share_out, &work)
}

/// Calls `work` with each of `items`, in parallel when `items.len() · cost` is worth it.
pub fn each<T: Send>(items: &mut [T], cost: usize, work: impl Fn(&mut T) + Sync + Send) {
    each_by(share_out, items, cost, &work)
}

/// As [`each`], for work that waits for the locks of storages. Candle's pool must have none of it: another thread may hold such a
/// lock in a stock op that waits for that pool, which takes one call at a time.
pub fn each_locking<T: Send>(items: &mut [T], cost: usize, work: impl Fn(&mut T) + Sync + Send) {
    each_by(share_out_off_candle, items, cost, &work)
}

/// As [`ranges`], for a caller that holds the lock of a storage which other threads read: another thread may wait for it in the
/// closure of a user's own call of Candle's pool, for which we would wait.
pub fn ranges_locking(n: usize, cost: usize, align: usize, work: impl Fn(Range<usize>) + Sync) {
    split(n, cost, align, share_out_off_candle, &work)
}

fn share_out_off_candle(job: &Job) -> bool {
    own_pool().run(job).is_some()
}

fn each_by<T: Send>(
    share_out: fn(&Job) -> bool,
    items: &mut [T],
    cost: usize,
    work: &(dyn Fn(&mut T) + Sync),
) {
    let first = Shared::new(items.as_mut_ptr());
    split(items.len(), cost, 1, share_out, &|range| {
        for i in range {
            // SAFETY: the ranges cover `0..items.len()` without overlap, so that each item is borrowed once.
            work(unsafe { &mut *first.get().add(i) });
        }
    })
}

/// Apart from [`ranges`], so that it is compiled once. `share_out` works on a job with other threads, or returns `false` with
/// nothing done.
fn split(
    n: usize,
    cost: usize,
    align: usize,
    share_out: fn(&Job) -> bool,
    work: &(dyn Fn(Range<usize>) + Sync),
) {
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

/// The usual way to share out: Candle's pool or ours. `false` if its threads are at work for another call.
fn share_out(job: &Job) -> bool {
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

/// While it lives, this thread shares nothing out.
struct Busy {
    before: bool,
}

impl Busy {
    fn new() -> Self {
        Busy {
            before: BUSY.replace(true),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.set(self.before);
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
}
