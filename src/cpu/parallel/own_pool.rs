//! A pool whose caller waits only for threads that are in the middle of its work.
//!
//! ```text
//! state:  epoch of the job (32 bits) | open (1 bit) | threads inside (31 bits)
//!
//! caller: publishes a job, works, closes it, waits until no thread is inside
//! thread: enters while the job is open, works, leaves; the last to leave a closed job wakes the caller
//! ```
//!
//! A thread that has no core while a job is open finds it closed when it comes, and was waited for by nobody. One that loses
//! its core inside is waited for; then the caller sleeps, which leaves its core to other programs, and has it back at once when
//! the work is done: the scheduler favours who has slept. A caller that spins would use up its time slice, and lose its
//! core when the other thread gets one.

use super::job::{Job, Times};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::OnceLock;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread waits for the next job before it sleeps: the serial work between two ops is a few microseconds, and to be
/// woken up takes 5 to 50. On a busy machine whatever spins longer loses its core to other programs when there is work.
const SPIN: Duration = Duration::from_micros(50);
/// How long the caller waits for the last shares before it sleeps.
const CALLER_SPIN: Duration = Duration::from_micros(10);

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

fn epoch(state: u64) -> u32 {
    (state >> 32) as u32
}

pub struct OwnPool {
    state: AtomicU64,
    /// The job of this epoch, in its caller's stack frame: valid while it is open or a thread is inside.
    job: AtomicPtr<Published>,
    /// Whether a caller is in [`OwnPool::run`].
    taken: AtomicBool,
    sleepers: Box<[Sleeper]>,
}

/// A job, whom to wake up for it, and whom at its end.
struct Published {
    job: *const Job<'static>,
    caller: Thread,
    /// The sleepers before this one have been looked after.
    next: AtomicUsize,
    /// As many sleepers as there are shares for other threads.
    sleepers: &'static [Sleeper],
}

impl Published {
    /// Wakes up the next thread that sleeps. Each thread that works on the job calls this, so that many are soon awake where each
    /// takes long to wake up; and few, where the work is soon done.
    fn wake_one(&self) {
        loop {
            match self.sleepers.get(self.next.fetch_add(1, Relaxed)) {
                Some(sleeper) if !sleeper.wake() => (),
                _ => return,
            }
        }
    }
}

/// Each on cache lines of its own: a thread that falls asleep slows down no other.
#[repr(align(128))]
#[derive(Default)]
struct Sleeper {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Sleeper {
    /// Whether it slept.
    fn wake(&self) -> bool {
        let sleeping = self.thread.get().filter(|_| self.asleep.load(SeqCst));
        sleeping.inspect(|thread| thread.unpark()).is_some()
    }
}

/// A job that is published and open. To drop it closes the job, even if the caller unwinds: the job is on its stack.
struct Open<'a>(&'a OwnPool);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.close();
        self.0.taken.store(false, SeqCst);
    }
}

impl OwnPool {
    /// A pool of `threads` beside the callers, which lives as long as the process. Threads that the system refuses are missing.
    pub fn start(threads: usize) -> &'static Self {
        let pool: &'static Self = Box::leak(Box::new(OwnPool {
            state: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            taken: AtomicBool::new(false),
            sleepers: (0..threads).map(|_| Sleeper::default()).collect(),
        }));
        for (i, sleeper) in pool.sleepers.iter().enumerate() {
            let named = thread::Builder::new().name(format!("candle-fused-{i}"));
            if let Ok(handle) = named.spawn(move || pool.serve(sleeper)) {
                // Set once, here alone.
                let _ = sleeper.thread.set(handle.thread().clone());
            }
        }
        pool
    }

    /// Works on the job with the pool's threads. `None`, and nothing done, while another call has the pool.
    pub fn run(&'static self, job: &Job) -> Option<Times> {
        if self.taken.swap(true, Acquire) {
            return None;
        }
        let start = Instant::now();
        let others = job.count().saturating_sub(1).min(self.sleepers.len());
        let published = Published {
            job: std::ptr::from_ref(job).cast(),
            caller: thread::current(),
            next: AtomicUsize::new(0),
            sleepers: &self.sleepers[..others],
        };
        let open = self.publish(&published);
        // One before each share, so that many threads are not all woken up for work that is soon done.
        let shares = job.claim(|| published.wake_one());
        let work = start.elapsed();
        drop(open);
        Some(Times::until_now(start, work, shares))
    }

    /// Lets threads into the job. The caller has taken the pool.
    fn publish(&self, published: &Published) -> Open<'_> {
        // `taken` keeps the epoch and the job ours, and nobody is inside: whoever closes a job waits for that.
        let next = epoch(self.state.load(Relaxed)).wrapping_add(1);
        self.job
            .store(std::ptr::from_ref(published).cast_mut(), Relaxed);
        self.state.store(u64::from(next) << 32 | OPEN, SeqCst);
        Open(self)
    }

    /// Lets no further thread into the job, and waits for those inside.
    fn close(&self) {
        self.state.fetch_and(!OPEN, SeqCst);
        let (mut start, mut parked) = (None, false);
        while self.state.load(Acquire) & INSIDE > 0 {
            if start.get_or_insert_with(Instant::now).elapsed() < CALLER_SPIN {
                std::hint::spin_loop();
            } else {
                // Returns at once if the last thread has left since, and early for another's `unpark`.
                thread::park();
                parked = true;
            }
        }
        // That may have been an `unpark` which the user's own code is going to wait for. One too many does no harm: whoever
        // parks must expect to wake up for no reason.
        if parked {
            thread::current().unpark();
        }
    }

    /// The life of a thread.
    fn serve(&self, sleeper: &Sleeper) {
        candle_core::utils::set_thread_affinity();
        let mut done = 0;
        let mut idle_since = Instant::now();
        loop {
            let state = self.state.load(Acquire);
            if state & OPEN > 0 && epoch(state) != done {
                // It fails if the job was closed, or if another thread entered in the meantime.
                if self
                    .state
                    .compare_exchange(state, state + 1, SeqCst, Relaxed)
                    .is_ok()
                {
                    done = epoch(state);
                    self.work_inside();
                    idle_since = Instant::now();
                }
            } else if idle_since.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                // A caller that publishes a job now either is seen here, or sees `asleep` and wakes us.
                sleeper.asleep.store(true, SeqCst);
                let state = self.state.load(SeqCst);
                if state & OPEN == 0 || epoch(state) == done {
                    thread::park();
                }
                sleeper.asleep.store(false, SeqCst);
                idle_since = Instant::now();
            }
        }
    }

    /// Works on the job that this thread has entered, and leaves it.
    fn work_inside(&self) {
        // SAFETY: the pointer was stored before the state in which we entered, and the caller stays in `close` until we leave. It
        // keeps `published` and the job, with all that the job borrows, alive until then. The lifetime of `Job<'static>` is not
        // true, but the reference is gone before we leave.
        let caller = unsafe {
            let published = &*self.job.load(Acquire);
            let mut first = true;
            (*published.job).claim(|| {
                if std::mem::take(&mut first) {
                    published.wake_one();
                }
            });
            published.caller.clone()
        };
        let before = self.state.fetch_sub(1, SeqCst);
        if before & OPEN == 0 && before & INSIDE == 1 {
            caller.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::sync::mpsc::{channel, RecvTimeoutError};

    const PATIENT: Duration = Duration::from_secs(60);

    /// Fails if `work` has not come back after a minute, instead of hanging.
    fn ends(work: impl FnOnce() + Send + 'static) {
        let (done, end) = channel();
        let worker = thread::spawn(move || {
            work();
            // The receiver has given up if this fails.
            let _ = done.send(());
        });
        if end.recv_timeout(PATIENT) == Err(RecvTimeoutError::Timeout) {
            panic!("deadlock");
        }
        worker.join().expect("no panic");
    }

    /// Each share is done once, by as many threads as there may be, with and without sleeping in between.
    #[test]
    fn every_share_is_done_once() {
        for threads in [0, 1, 3, 8] {
            ends(move || {
                let pool = OwnPool::start(threads);
                for round in 0..2000 {
                    let counts: Vec<_> = (0..round % 40).map(|_| AtomicUsize::new(0)).collect();
                    let work = |i: usize| {
                        counts[i].fetch_add(1, Relaxed);
                    };
                    let job = Job::new(counts.len(), &work);
                    assert!(pool.run(&job).is_some());
                    assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
                    if round % 100 == 0 {
                        thread::sleep(3 * SPIN);
                    }
                }
            });
        }
    }

    /// Jobs shorter than it takes to wake up: the threads come when the stack frame of their caller has been overwritten.
    #[test]
    fn a_thread_that_comes_late_finds_the_job_closed() {
        ends(|| {
            let pool = OwnPool::start(4);
            for round in 0..300 {
                let own = Box::new(round);
                let work = |_: usize| assert_eq!(*own, round);
                let job = Job::new(2, &work);
                assert!(pool.run(&job).is_some());
                assert!(job.into_panic().is_none());
                thread::sleep(2 * SPIN);
            }
        });
    }

    #[test]
    fn the_caller_sleeps_until_a_slow_thread_is_done() {
        ends(|| {
            let pool = OwnPool::start(1);
            let done = AtomicUsize::new(0);
            let caller = thread::current().id();
            let work = |_: usize| {
                if thread::current().id() != caller {
                    thread::sleep(Duration::from_millis(5));
                }
                thread::sleep(Duration::from_millis(1));
                done.fetch_add(1, Relaxed);
            };
            for round in 1..=20 {
                assert!(pool.run(&Job::new(4, &work)).is_some());
                assert_eq!(done.load(Relaxed), 4 * round);
            }
        });
    }

    #[test]
    fn one_call_has_the_pool_and_a_panic_leaves_it_usable() {
        ends(|| {
            let pool = OwnPool::start(2);
            let inner = |_: usize| ();
            let work = |i: usize| {
                assert!(pool.run(&Job::new(3, &inner)).is_none());
                assert!(i != 5, "the bad one");
            };
            let job = Job::new(9, &work);
            assert!(pool.run(&job).is_some());
            let payload = job.into_panic().expect("the panic is lost");
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"the bad one"));
            let job = Job::new(3, &inner);
            assert!(pool.run(&job).is_some());
            assert!(job.into_panic().is_none());
        });
    }

    /// An executor that blocks a thread parks it until its waker unparks it, which may happen in the middle of our work.
    #[test]
    fn the_caller_keeps_an_unpark_of_its_own() {
        ends(|| {
            let pool = OwnPool::start(1);
            let caller = thread::current();
            let (entered, done) = (AtomicBool::new(false), AtomicBool::new(false));
            let work = |_: usize| {
                if thread::current().id() == caller.id() {
                    // The other thread must be inside when we are done.
                    while !entered.load(Relaxed) {
                        thread::yield_now();
                    }
                    caller.unpark();
                } else {
                    entered.store(true, Relaxed);
                    thread::sleep(Duration::from_millis(5));
                    done.store(true, Relaxed);
                }
            };
            assert!(pool.run(&Job::new(2, &work)).is_some());
            assert!(done.load(Relaxed));
            // As long as this would wait if the token were lost: far longer than the test has.
            thread::park_timeout(2 * PATIENT);
        });
    }

    /// As long as every thread waits in its first share for all others, the caller cannot wake them all up itself.
    #[test]
    fn every_thread_wakes_up_another() {
        const THREADS: usize = 8;
        ends(|| {
            let pool = OwnPool::start(THREADS);
            for _ in 0..3 {
                while !pool.sleepers.iter().all(|s| s.asleep.load(SeqCst)) {
                    thread::yield_now();
                }
                let arrived = AtomicUsize::new(0);
                let work = |_: usize| {
                    arrived.fetch_add(1, SeqCst);
                    while arrived.load(SeqCst) <= THREADS {
                        thread::yield_now();
                    }
                };
                assert!(pool.run(&Job::new(THREADS + 1, &work)).is_some());
            }
        });
    }

    /// Nothing that is called between opening and closing a job panics today. If it did, the job would be gone.
    #[test]
    fn an_unwinding_caller_closes_its_job() {
        ends(|| {
            let pool = OwnPool::start(2);
            let work = |_: usize| thread::sleep(Duration::from_millis(1));
            let job = Job::new(100, &work);
            assert!(!pool.taken.swap(true, Acquire));
            let published = Published {
                job: std::ptr::from_ref(&job).cast(),
                caller: thread::current(),
                next: AtomicUsize::new(0),
                sleepers: &pool.sleepers,
            };
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                let _open = pool.publish(&published);
                published.wake_one();
                panic!("the caller's");
            }));
            assert!(unwound.is_err());
            assert_eq!(pool.state.load(SeqCst) & (OPEN | INSIDE), 0);
            assert!(pool.run(&Job::new(3, &work)).is_some());
        });
    }
}
