//! Interleaved samples and their medians.

use candle_core::{Device, Result};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// When calls have been measured enough: after `time` and `fewest` samples of each, and never later than
/// after `limit` and three.
pub struct Budget {
    pub time: Duration,
    pub fewest: usize,
    pub limit: Duration,
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

/// A sample is a batch of calls that takes at least this long, so that the clock's resolution and
/// its own cost don't count.
const SAMPLE: Duration = Duration::from_micros(20);

/// The same call goes untimed before a sample for this long, so that the worker threads, which spin for about
/// a millisecond after each op, and the caches are as that call leaves them.
const LEAD_IN: Duration = Duration::from_micros(1500);

/// A call this long needs neither.
const LONG: Duration = Duration::from_millis(10);

/// What is timed.
pub struct Call<'a> {
    run: Run<'a>,
    /// How often it may run before its input has to be restored, and what does that.
    reset: Option<(usize, Run<'a>)>,
}

type Run<'a> = Box<dyn Fn() -> Result<()> + 'a>;

impl<'a> Call<'a> {
    pub fn new(run: impl Fn() -> Result<()> + 'a) -> Self {
        Call {
            run: Box::new(run),
            reset: None,
        }
    }

    /// For work in place.
    pub fn resetting(self, most: usize, reset: impl Fn() -> Result<()> + 'a) -> Self {
        let reset: Run = Box::new(reset);
        Call {
            reset: Some((most, reset)),
            ..self
        }
    }

    fn most(&self) -> usize {
        self.reset.as_ref().map_or(1000, |(most, _)| *most)
    }
}

/// The median of each call, in µs. Samples a, b, b, a, … so that a slow moment and what one call leaves
/// behind in the heap hit all alike.
pub fn interleaved(calls: Vec<Call>, device: &Device, budget: &Budget) -> Result<Vec<f64>> {
    let sides = calls.into_iter().map(|call| Side::new(call, device));
    let mut sides: Vec<Side> = sides.collect::<Result<_>>()?;
    let start = Instant::now();
    let mut rounds = 0;
    while !budget.is_spent(rounds, start.elapsed()) {
        for side in &mut sides {
            side.sample()?;
        }
        sides.reverse();
        rounds += 1;
    }
    if rounds % 2 == 1 {
        sides.reverse();
    }
    Ok(sides.into_iter().map(Side::median).collect())
}

/// Brings the heap to where any program is that has released a large tensor. From then on glibc
/// keeps blocks of up to that size; before, it gives them back to the system, whose page faults
/// would make a row's times depend on the rows before it.
pub fn settle_heap() {
    drop(black_box(Vec::<u8>::with_capacity(31 << 20)));
}

struct Side<'a> {
    call: Call<'a>,
    device: &'a Device,
    lead_in: Duration,
    batch: usize,
    /// Runs since the input was last restored.
    runs: usize,
    /// Seconds per call.
    samples: Vec<f64>,
}

impl<'a> Side<'a> {
    /// Warms up and chooses the batch.
    fn new(call: Call<'a>, device: &'a Device) -> Result<Self> {
        let mut side = Side {
            call,
            device,
            lead_in: Duration::ZERO,
            batch: 1,
            runs: 0,
            samples: Vec::new(),
        };
        side.sample()?;
        if side.samples[0] < LONG.as_secs_f64() {
            side.lead_in = LEAD_IN;
            side.sample()?;
            let calls = (SAMPLE.as_secs_f64() / side.samples[1]).ceil() as usize;
            side.batch = calls.clamp(1, side.call.most());
        }
        side.samples.clear();
        Ok(side)
    }

    fn sample(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < self.lead_in {
            self.run(1)?;
        }
        let seconds = self.run(self.batch)?.as_secs_f64();
        self.samples.push(seconds / self.batch as f64);
        Ok(())
    }

    /// The time that `times` calls take.
    fn run(&mut self, times: usize) -> Result<Duration> {
        if let Some((most, reset)) = &self.call.reset {
            if self.runs + times > *most {
                reset()?;
                self.runs = 0;
            }
        }
        self.runs += times;
        self.device.synchronize()?;
        let start = Instant::now();
        for _ in 0..times {
            (self.call.run)()?;
        }
        self.device.synchronize()?;
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
