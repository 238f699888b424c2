//! Work in numbered shares, which threads claim until none is left.

use super::{Raised, BUSY};
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub type Panic = Box<dyn Any + Send>;

/// One call's work. The thread that calls may claim all of it: one that comes late, or not at all, leaves its part to others.
pub struct Job<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    next: AtomicUsize,
    count: usize,
    panic: Mutex<Option<Panic>>,
}

impl<'a> Job<'a> {
    /// `work` is called once with each number below `count`.
    pub fn new(count: usize, work: &'a (dyn Fn(usize) + Sync)) -> Self {
        Job {
            work,
            next: AtomicUsize::new(0),
            count,
            panic: Mutex::new(None),
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Works until nothing is left to claim, and returns how many shares that were. `before` runs ahead of each.
    ///
    /// A panic that unwinds through a pool could poison its lock, and with it every later parallel op of the process, Candle's
    /// own too. So it is kept until the work is done, and goes on in the calling thread.
    pub fn claim(&self, mut before: impl FnMut()) -> usize {
        let _busy = Raised::new(&BUSY);
        let mut shares = 0;
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.count {
                return shares;
            }
            before();
            shares += 1;
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.work)(i))) {
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                match *first {
                    None => *first = Some(payload),
                    // Its destructor may panic too, and nothing would catch that here.
                    Some(_) => std::mem::forget(payload),
                }
            }
        }
    }

    /// The first panic, after the work.
    pub fn into_panic(self) -> Option<Panic> {
        self.panic
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long the calling thread took for shared work.
#[derive(Clone, Copy)]
pub struct Times {
    /// For the shares that it claimed itself.
    pub work: Duration,
    pub shares: usize,
    /// Then for the other threads.
    pub wait: Duration,
}

impl Times {
    /// The times of a call that began at `start`, whose thread had worked on `shares` after `work`, and that ends now.
    pub fn until_now(start: Instant, work: Duration, shares: usize) -> Self {
        Times {
            work,
            shares,
            wait: start.elapsed().saturating_sub(work),
        }
    }
}
