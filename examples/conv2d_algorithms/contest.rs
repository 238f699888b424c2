//! One shape by stock Candle and by every algorithm.

use crate::algorithms::{candidates, Candidate, Way};
use crate::difference::max_error;
use crate::fill::Fill;
use crate::measure::{self, Budget, Call};
use crate::shapes::Shape;
use candle_core::{DType, Device, Result, Tensor};
use std::hint::black_box;

/// Relative to the largest value. Stock and we sum up in other orders, and Winograd by other numbers.
pub const TOLERANCE: f64 = 1e-4;

pub struct Contest {
    pub shape: Shape,
    pub stock: Time,
    pub entries: Vec<Entry>,
}

/// Of an algorithm.
pub struct Entry {
    pub way: Way,
    pub also: Vec<Way>,
    pub time: Time,
    /// The largest difference from stock, relative to the largest value.
    pub error: f64,
}

/// In µs.
#[derive(Clone, Copy)]
pub struct Time(pub f64);

impl Contest {
    /// How many times faster than stock.
    pub fn ratio(&self, entry: &Entry) -> f64 {
        self.stock.0 / entry.time.0
    }

    /// What differs from stock by more than rounding does.
    pub fn disagreements(&self) -> impl Iterator<Item = String> + '_ {
        let wrong = |entry: &&Entry| entry.error > TOLERANCE;
        self.entries.iter().filter(wrong).map(|entry| {
            let Entry { way, error, .. } = entry;
            let shape = self.shape;
            format!("{shape}: {way} differs from stock by {error:.1e}, {TOLERANCE:.0e} accepted")
        })
    }
}

pub fn run(shape: Shape, device: &Device, budget: &Budget) -> Result<Contest> {
    let x = Fill::Signal.tensor(&shape.x_dims(), 0, DType::F32, device)?;
    let w = Fill::Signal.tensor(&shape.w_dims(), 1, DType::F32, device)?;
    let stock = || x.conv2d(&w, shape.padding, shape.stride, 1, shape.groups);
    let candidates = candidates(shape.params(), &x, &w);
    let by = |way: Way| {
        let (x, w, op) = (&x, &w, way.op(shape.params()));
        move || x.apply_op2_no_bwd(w, &op)
    };

    let want = [stock()?];
    let errors = candidates
        .iter()
        .map(|candidate| max_error(&[by(candidate.way)()?], &want))
        .collect::<Result<Vec<f64>>>()?;

    let ours = candidates.iter().map(|candidate| timed(by(candidate.way)));
    let calls = std::iter::once(timed(stock)).chain(ours).collect();
    let mut times = measure::interleaved(calls, device, budget)?
        .into_iter()
        .map(Time);
    let stock = times.next().expect("stock is the first");
    let entry = |((Candidate { way, also }, time), error)| Entry {
        way,
        also,
        time,
        error,
    };
    Ok(Contest {
        shape,
        stock,
        entries: candidates
            .into_iter()
            .zip(times)
            .zip(errors)
            .map(entry)
            .collect(),
    })
}

/// The result is dropped within the time.
fn timed<'a>(convolve: impl Fn() -> Result<Tensor> + 'a) -> Call<'a> {
    Call::new(move || convolve().map(|y| drop(black_box(y))))
}
