//! Work on the threads of Candle's pool.

use super::job::{Job, Times};
use candle_core::utils::barrier_pool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Returns when every thread of the pool has come and gone, whether it found a share to claim or not.
///
/// The times begin where the caller comes to its first share: until then it may have waited for another caller of the pool.
pub fn run(job: &Job) -> Times {
    let claimed = Mutex::new(None);
    let caller = std::thread::current().id();
    // As many items as threads; one that comes first takes several, and finds nothing left in the later ones.
    barrier_pool().execute_chunked(super::threads(), |_| {
        let start = Instant::now();
        let shares = job.claim(|| ());
        if shares > 0 && std::thread::current().id() == caller {
            let work = start.elapsed();
            *claimed.lock().unwrap_or_else(PoisonError::into_inner) = Some((start, work, shares));
        }
    });
    match claimed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((start, work, shares)) => Times::until_now(start, work, shares),
        // The others had done all of it when the caller came.
        None => Times::until_now(Instant::now(), Duration::ZERO, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::mpsc::channel;
    use std::thread;

    /// The wait for another caller is no work, by which a wait for threads would be measured, and no wait for threads.
    #[test]
    fn times_leave_out_the_wait_for_another_caller() {
        let pool = barrier_pool();
        if pool.n_workers() == 0 {
            return;
        }
        let (held, hold) = channel();
        let holder = thread::spawn(move || {
            let released = Mutex::new(None);
            pool.execute(|thread| {
                if thread == pool.n_workers() {
                    held.send(()).expect("someone listens");
                    thread::sleep(Duration::from_millis(50));
                    *released.lock().expect("no panic") = Some(Instant::now());
                }
            });
            released.into_inner().expect("no panic")
        });
        hold.recv().expect("the pool is held");
        // The other threads leave at least one share to the caller.
        let (caller, came) = (thread::current().id(), AtomicBool::new(false));
        let work = |_: usize| {
            if thread::current().id() == caller {
                came.store(true, Relaxed);
            }
            while !came.load(Relaxed) {
                thread::yield_now();
            }
        };
        let times = run(&Job::new(2 * super::super::threads(), &work));
        let since = Instant::now();
        let released = holder.join().expect("no panic").expect("a caller");
        assert!(times.shares > 0);
        let most = since.duration_since(released);
        assert!(times.work + times.wait <= most, "{:?} {most:?}", times.work);
    }
}
