//! Interleaved samples and their medians.

use crate::plan::Kind;
use crate::workload::{Workload, MOST_IN_PLACE};
use candle_core::Result;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// When a row has been measured enough: after `time` and `fewest` samples of each side, and never
/// later than after `limit` and three.
pub struct Budget {
    time: Duration,
    fewest: usize,
    limit: Duration,
}

impl Budget {
    pub const FULL: Budget = Budget {
        time: Duration::from_millis(160),
        fewest: 9,
        limit: Duration::from_millis(800),
    };
    pub const QUICK: Budget = Budget {
        time: Duration::from_millis(30),
        fewest: 5,
        limit: Duration::from_millis(150),
    };

    fn is_spent(&self, samples: usize, elapsed: Duration) -> bool {
        (samples >= self.fewest && elapsed >= self.time)
            || (samples >= 3 && elapsed >= self.limit)
            || samples >= 1000
    }
}

/// Medians, in µs per call.
pub struct Timing {
    pub stock: Option<f64>,
    pub fused: f64,
}

/// A sample is a batch of calls that takes at least this long, so that the clock's resolution and
/// its own cost don't count.
const SAMPLE: Duration = Duration::from_micros(20);

/// Calls of the same side go untimed before a sample for this long, so that the worker threads, which spin
/// for about a millisecond after each op, and the caches are as that side leaves them.
const LEAD_IN: Duration = Duration::from_micros(1500);

/// A call this long needs neither.
const LONG: Duration = Duration::from_millis(10);

/// Samples stock, ours, ours, stock, … so that a slow moment and what one side leaves behind in
/// the heap hit both alike.
pub fn interleaved(work: &Workload, budget: &Budget, stock_runs: bool) -> Result<Timing> {
    let mut fused = Side::new(work, Workload::fused)?;
    let mut stock = match stock_runs {
        true => Some(Side::new(work, Workload::stock)?),
        false => None,
    };
    let start = Instant::now();
    while !budget.is_spent(fused.samples.len(), start.elapsed()) {
        let ours_first = fused.samples.len() % 2 == 1;
        if ours_first {
            fused.sample()?;
        }
        if let Some(stock) = &mut stock {
            stock.sample()?;
        }
        if !ours_first {
            fused.sample()?;
        }
    }
    Ok(Timing {
        stock: stock.map(Side::median),
        fused: fused.median(),
    })
}

/// Brings the heap to where any program is that has released a large tensor. From then on glibc
/// keeps blocks of up to that size; before, it gives them back to the system, whose page faults
/// would make a row's times depend on the rows before it.
pub fn settle_heap() {
    drop(black_box(Vec::<u8>::with_capacity(31 << 20)));
}

struct Side<'a> {
    work: &'a Workload<'a>,
    run: fn(&Workload<'a>) -> Result<()>,
    lead_in: Duration,
    batch: usize,
    /// Calls since the input was last restored.
    calls: usize,
    /// Seconds per call.
    samples: Vec<f64>,
}

impl<'a> Side<'a> {
    /// Warms up and chooses the batch.
    fn new(work: &'a Workload<'a>, run: fn(&Workload<'a>) -> Result<()>) -> Result<Self> {
        let mut side = Side {
            work,
            run,
            lead_in: Duration::ZERO,
            batch: 1,
            calls: 0,
            samples: Vec::new(),
        };
        side.sample()?;
        if side.samples[0] < LONG.as_secs_f64() {
            side.lead_in = LEAD_IN;
            side.sample()?;
            side.batch = batch(work.row.kind, side.samples[1]);
        }
        side.samples.clear();
        Ok(side)
    }

    fn sample(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < self.lead_in {
            self.call(1)?;
        }
        let seconds = self.call(self.batch)?.as_secs_f64();
        self.samples.push(seconds / self.batch as f64);
        Ok(())
    }

    /// The time that `times` calls take.
    fn call(&mut self, times: usize) -> Result<Duration> {
        if self.calls + times > MOST_IN_PLACE {
            self.work.reset()?;
            self.calls = 0;
        }
        self.calls += times;
        self.work.device.synchronize()?;
        let start = Instant::now();
        for _ in 0..times {
            (self.run)(self.work)?;
        }
        self.work.device.synchronize()?;
        Ok(start.elapsed())
    }

    fn median(mut self) -> f64 {
        self.samples.sort_by(f64::total_cmp);
        let middle = self.samples.len() / 2;
        let median = match self.samples.len() % 2 {
            0 => (self.samples[middle - 1] + self.samples[middle]) / 2.0,
            _ => self.samples[middle],
        };
        median * 1e6
    }
}

/// How many calls of `once` seconds make a sample.
fn batch(kind: Kind, once: f64) -> usize {
    let most = match kind {
        Kind::InPlace => MOST_IN_PLACE,
        _ => 1000,
    };
    ((SAMPLE.as_secs_f64() / once).ceil() as usize).clamp(1, most)
}
