//! Work on the threads of Candle's pool.

use super::job::{Job, Times};
use candle_core::utils::barrier_pool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Returns when every thread of the pool has come and gone, whether it found a share to claim or not.
pub fn run(job: &Job) -> Times {
    let claimed = Mutex::new((Duration::ZERO, 0));
    let start = Instant::now();
    let caller = std::thread::current().id();
    // As many items as threads; one that comes first takes several, and finds nothing left in the later ones.
    barrier_pool().execute_chunked(super::threads(), |_| {
        let shares = job.claim(|| ());
        if shares > 0 && std::thread::current().id() == caller {
            *claimed.lock().unwrap_or_else(PoisonError::into_inner) = (start.elapsed(), shares);
        }
    });
    let (work, shares) = claimed.into_inner().unwrap_or_else(PoisonError::into_inner);
    Times::until_now(start, work, shares)
}
