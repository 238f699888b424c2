//! When to stop handing work to Candle's pool.
//!
//! A thread without a core makes the caller wait for a time slice of the scheduler, some 3 ms, at the end of work that takes
//! 20 µs alone. The next call often meets the same wait, because the waiting caller itself occupies the core that the other thread
//! stands in line for. So after each such wait, work of the same duration is done elsewhere; twice as much if it happens again
//! before [`CALM`] times as much work was shared without one, up to [`MOST`].

use super::job::Times;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A wait that is not worth a notice, beside the one for two shares of work: what a sleeping thread takes to wake up.
const USUAL: Duration = Duration::from_micros(100);
/// The most work that is done elsewhere before the pool is tried again.
const MOST: Duration = Duration::from_millis(100);

/// How much longer than the last stretch elsewhere work must have been shared before that stretch is forgotten. A thread that takes
/// turns with another program's comes and goes every 3 ms: with less than this, every second turn would be waited for.
const CALM: u64 = 4;

/// Durations in nanoseconds. Calls that overlap may overwrite one another's; then work is shared a little sooner or later.
pub struct Patience {
    /// Work still to be done elsewhere.
    elsewhere: AtomicU64,
    /// Work that was to be done elsewhere the last time.
    stretch: AtomicU64,
    /// Work shared without a long wait since.
    calm: AtomicU64,
}

impl Patience {
    pub const fn new() -> Self {
        Patience {
            elsewhere: AtomicU64::new(0),
            stretch: AtomicU64::new(0),
            calm: AtomicU64::new(0),
        }
    }

    /// Whether work goes elsewhere.
    pub fn is_lost(&self) -> bool {
        self.elsewhere.load(Relaxed) > 0
    }

    /// Counts work that was shared elsewhere. A long wait for a thread that was in the middle of it says that the machine is busy
    /// still: the stretch begins anew.
    pub fn shared_elsewhere(&self, times: Times) {
        let left = match is_long(times) {
            true => self.stretch.load(Relaxed),
            false => {
                let left = self.elsewhere.load(Relaxed);
                left.saturating_sub(nanos(times.work + times.wait))
            }
        };
        self.elsewhere.store(left, Relaxed);
    }

    /// Draws the conclusion from work that Candle's pool has done.
    pub fn shared(&self, times: Times) {
        let stretch = self.stretch.load(Relaxed);
        if is_long(times) {
            let stretch = (2 * stretch).max(nanos(times.wait)).min(nanos(MOST));
            self.stretch.store(stretch, Relaxed);
            self.elsewhere.store(stretch, Relaxed);
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

/// Whether the caller waited for a thread without a core.
fn is_long(times: Times) -> bool {
    // Without a share of the caller's there is nothing to compare the wait with.
    times.shares > 0 && times.wait > USUAL + 2 * (times.work / times.shares as u32)
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

    fn elsewhere(patience: &Patience, work: Duration) {
        assert!(patience.is_lost());
        patience.shared_elsewhere(times(work, 8, Duration::ZERO));
    }

    #[test]
    fn after_a_long_wait_as_much_work_goes_elsewhere() {
        let patience = Patience::new();
        assert!(!patience.is_lost());
        patience.shared(times(MS, 8, 3 * MS));
        for _ in 0..3 {
            elsewhere(&patience, MS);
        }
        assert!(!patience.is_lost());
    }

    #[test]
    fn a_long_wait_elsewhere_begins_the_stretch_anew() {
        let patience = Patience::new();
        patience.shared(times(MS, 8, 5 * MS));
        elsewhere(&patience, 4 * MS);
        patience.shared_elsewhere(times(MS, 8, 3 * MS));
        elsewhere(&patience, 4 * MS);
        elsewhere(&patience, MS);
        assert!(!patience.is_lost());
    }

    #[test]
    fn the_next_long_wait_counts_twice_until_there_was_calm() {
        let patience = Patience::new();
        let stretch = |ms: u32| {
            elsewhere(&patience, ms * MS - MS / 2);
            elsewhere(&patience, MS / 2);
            assert!(!patience.is_lost());
        };
        patience.shared(times(MS, 8, 3 * MS));
        stretch(3);
        patience.shared(times(MS, 8, 3 * MS));
        stretch(6);
        patience.shared(times(20 * MS, 8, MS / 8));
        patience.shared(times(MS, 8, 3 * MS));
        stretch(12);
        patience.shared(times(30 * MS, 8, MS / 8));
        patience.shared(times(30 * MS, 8, MS / 8));
        patience.shared(times(MS, 8, 3 * MS));
        stretch(3);
        for _ in 0..10 {
            patience.shared(times(MS, 8, 3 * MS));
        }
        stretch(100);
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
