//! When to stop waiting for the pool's threads.
//!
//! A thread without a core makes the caller wait for a time slice of the scheduler, some 3 ms, at the end of work that takes
//! 20 µs alone. The next call often meets the same wait, because the waiting caller itself occupies the core that the other thread
//! stands in line for. So after each such wait, work of the same duration is done by the calling thread alone; twice as much
//! if it happens again before [`CALM`] times as much work was shared without one, up to [`MOST`].
//!
//! Measured on two cores with two other processes that never rest, means of work that takes 90 µs on one core of a quiet machine:
//! 310 µs with Candle's pool alone, 120 µs with patience (and stretches counted by the clock). With nothing else on the machine
//! both take 45 µs.

use super::Times;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A wait that is not worth a notice, beside the one for two shares of work: what a sleeping thread takes to wake up.
const USUAL: Duration = Duration::from_micros(100);
/// The most work that is done alone before the pool is tried again.
const MOST: Duration = Duration::from_millis(100);

/// How much longer than the last stretch alone work must have been shared before that stretch is forgotten. A thread that takes
/// turns with another program's comes and goes every 3 ms: with less than this, every second turn would be waited for.
const CALM: u64 = 4;

/// Durations in nanoseconds. Calls that overlap may overwrite one another's; then work is shared a little sooner or later.
pub struct Patience {
    /// Work still to be done alone.
    alone: AtomicU64,
    /// Work that was to be done alone the last time.
    stretch: AtomicU64,
    /// Work shared without a long wait since.
    calm: AtomicU64,
}

impl Patience {
    pub const fn new() -> Self {
        Patience {
            alone: AtomicU64::new(0),
            stretch: AtomicU64::new(0),
            calm: AtomicU64::new(0),
        }
    }

    /// Whether work stays on the calling thread.
    pub fn is_lost(&self) -> bool {
        self.alone.load(Relaxed) > 0
    }

    pub fn worked_alone(&self, work: Duration) {
        let left = self.alone.load(Relaxed).saturating_sub(nanos(work));
        self.alone.store(left, Relaxed);
    }

    /// Draws the conclusion from work that was shared.
    pub fn shared(&self, times: Times) {
        // Without a share of the caller's there is nothing to compare the wait with.
        if times.shares == 0 {
            return;
        }
        let share = times.work / times.shares as u32;
        let stretch = self.stretch.load(Relaxed);
        if times.wait > USUAL + 2 * share {
            let stretch = (2 * stretch).max(nanos(times.wait)).min(nanos(MOST));
            self.stretch.store(stretch, Relaxed);
            self.alone.store(stretch, Relaxed);
            self.calm.store(0, Relaxed);
        } else if stretch > 0 {
            let calm = self.calm.load(Relaxed) + nanos(times.work);
            self.calm.store(calm, Relaxed);
            if calm > CALM * stretch {
                self.stretch.store(0, Relaxed);
            }
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn times(work: Duration, shares: usize, wait: Duration) -> Times {
        Times { work, shares, wait }
    }

    #[test]
    fn a_long_wait_keeps_as_much_work_alone() {
        let patience = Patience::new();
        assert!(!patience.is_lost());
        patience.shared(times(MS, 8, 3 * MS));
        for _ in 0..3 {
            assert!(patience.is_lost());
            patience.worked_alone(MS);
        }
        assert!(!patience.is_lost());
    }

    #[test]
    fn the_next_long_wait_counts_twice_until_there_was_calm() {
        let patience = Patience::new();
        let alone = |ms: u32| {
            assert!(patience.is_lost());
            patience.worked_alone(ms * MS - MS / 2);
            assert!(patience.is_lost());
            patience.worked_alone(MS / 2);
            assert!(!patience.is_lost());
        };
        patience.shared(times(MS, 8, 3 * MS));
        alone(3);
        patience.shared(times(MS, 8, 3 * MS));
        alone(6);
        patience.shared(times(20 * MS, 8, MS / 8));
        patience.shared(times(MS, 8, 3 * MS));
        alone(12);
        patience.shared(times(30 * MS, 8, MS / 8));
        patience.shared(times(30 * MS, 8, MS / 8));
        patience.shared(times(MS, 8, 3 * MS));
        alone(3);
        for _ in 0..10 {
            patience.shared(times(MS, 8, 3 * MS));
        }
        alone(100);
    }

    /// The last share of another thread, a thread that wakes up, and work that others did all of.
    #[test]
    fn usual_waits_are_no_reason() {
        let patience = Patience::new();
        patience.shared(times(8 * MS, 8, 2 * MS));
        patience.shared(times(MS / 100, 8, MS / 10));
        patience.shared(times(Duration::ZERO, 0, 5 * MS));
        assert!(!patience.is_lost());
    }
}
