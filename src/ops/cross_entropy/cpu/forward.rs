//! The losses of all rows, in one pass over the logits.

use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::fold::{fold, Fold};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::ops::cross_entropy::{CrossEntropy, LossReduction, FACTORS};
use crate::ops::softmax::{finite_max, MaxSum, Plain, ScoreRow};
use crate::ops::targets::IGNORED;
use std::ops::Range;

/// The factors of a loss's terms, the same for all rows.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// 1 − ε
    hit: f32,
    /// ε / classes
    spread: f32,
    z_loss: f32,
    /// Σ w over all classes.
    weights: f32,
    /// What the sum of the losses is multiplied by: 1 / Σ w[t] for a mean, times the sign.
    unit: f32,
}

impl Terms {
    pub(crate) fn new<T: Element>(
        op: &CrossEntropy,
        sign: f32,
        targets: &[u32],
        weight: Option<&[T]>,
        classes: usize,
    ) -> Self {
        let of = |&t: &u32| weight.map_or(1.0, |w| f64::from(w[t as usize].widen()));
        let total: f64 = match op.reduction {
            LossReduction::Mean => targets.iter().filter(|&&t| t != IGNORED).map(of).sum(),
            _ => 1.0,
        };
        let sum = |w: &[T]| w.iter().map(|w| f64::from(w.widen())).sum::<f64>() as f32;
        Terms {
            hit: 1.0 - op.label_smoothing,
            spread: op.label_smoothing / classes as f32,
            z_loss: op.z_loss,
            weights: weight.map_or(classes as f32, sum),
            unit: (f64::from(sign) / total) as f32,
        }
    }

    /// The loss of a row whose target has logit `x` and weight `w`, and its [`FACTORS`] but for the target.
    fn row(&self, stat: Stat, x: f32, w: f32) -> (f32, [f32; FACTORS - 1]) {
        let MaxSum { max, sum } = stat.exponentials;
        let log_sum = sum.ln();
        let mut loss = self.hit * w * ((max - x) + log_sum);
        let mut scale = self.hit * w;
        if self.spread > 0.0 {
            loss += self.spread * (self.weights * log_sum - stat.logits);
            scale += self.spread * self.weights;
        }
        if self.z_loss > 0.0 {
            let lse = max + log_sum;
            loss += self.z_loss * w * lse * lse;
            scale += 2.0 * self.z_loss * w * lse;
        }
        let unit = self.unit;
        let factors = [
            max,
            scale * unit / sum,
            self.hit * w * unit,
            self.spread * unit,
        ];
        (loss, factors)
    }

    /// The result, from the losses of all rows.
    pub(crate) fn reduce<T: Element>(&self, losses: Vec<f32>, reduction: LossReduction) -> Vec<T> {
        match reduction {
            LossReduction::None => losses
                .iter()
                .map(|loss| T::narrow(loss * self.unit))
                .collect(),
            LossReduction::Mean | LossReduction::Sum => vec![T::narrow(self.total(&losses))],
        }
    }

    /// What each loss counts for in the result.
    pub(crate) fn unit(&self) -> f32 {
        self.unit
    }

    pub(crate) fn total(&self, losses: &[f32]) -> f32 {
        let sum: f64 = losses.iter().map(|&loss| f64::from(loss)).sum();
        (sum * f64::from(self.unit)) as f32
    }
}

/// Rows of logits whose losses are asked for.
pub(crate) struct RowLosses<'a, T> {
    pub(crate) x: &'a RowView<'a, T>,
    /// For each row, below its number of columns.
    pub(crate) targets: &'a [u32],
    /// For each column.
    pub(crate) weight: Option<&'a [T]>,
    pub(crate) terms: Terms,
}

impl<T: Element> RowLosses<'_, T> {
    /// The loss of each row, times nothing, and the factors of its gradient.
    pub(crate) fn run(&self, [rows, cols]: [usize; 2]) -> (Vec<f32>, Vec<u32>) {
        assert_eq!(self.targets.len(), rows);
        assert!(self
            .targets
            .iter()
            .all(|&t| t == IGNORED || (t as usize) < cols));
        assert!(self.weight.is_none_or(|w| w.len() == cols));
        let mut factors = Vec::new();
        // SAFETY: every row's loss and factors are written. x has rows of `cols` elements, and a target for each.
        let losses = unsafe {
            alloc::build(rows, |losses| {
                factors = alloc::build(rows * FACTORS, |factors| {
                    let op = Measured {
                        rows: self,
                        cols,
                        losses: Shared::new(losses),
                        factors: Shared::new(factors),
                    };
                    two_pass::run(op, rows, cols);
                });
            })
        };
        (losses, factors)
    }
}

/// The rows, and where their results go.
struct Measured<'a, T> {
    rows: &'a RowLosses<'a, T>,
    cols: usize,
    losses: Shared<f32>,
    factors: Shared<u32>,
}

impl<T> Clone for Measured<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Measured<'_, T> {}

/// What a row's loss has to know of its logits.
#[derive(Clone, Copy)]
struct Stat {
    exponentials: MaxSum,
    /// Σ w · (x − max), where labels are smoothed.
    logits: f32,
    /// Σ w of the columns that were measured, where labels are smoothed.
    weights: f32,
}

impl Stat {
    const NONE: Stat = Stat {
        exponentials: MaxSum {
            max: f32::NEG_INFINITY,
            sum: 0.0,
        },
        logits: 0.0,
        weights: 0.0,
    };

    fn join(self, other: Stat) -> Stat {
        let exponentials = self.exponentials.join(other.exponentials);
        let max = finite_max(exponentials.max);
        // Weights may cancel, and a part without columns has no weights: 0 times the distance to its maximum is 0.
        let moved = |part: Stat| match part.weights {
            0.0 => 0.0,
            weights => weights * (finite_max(part.exponentials.max) - max),
        };
        let about_max = |part: Stat| part.logits + moved(part);
        Stat {
            exponentials,
            logits: about_max(self) + about_max(other),
            weights: self.weights + other.weights,
        }
    }
}

impl<T: Element> TwoPassRow for Measured<'_, T> {
    type Stat = Stat;
    const APPLIES_PARTS: bool = false;

    fn cost(cols: usize) -> usize {
        cols * parallel::EXP
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> Stat {
        /// Columns that stay in the L1 cache between the maximum and the exponentials: 16 KB of f32.
        const CHUNK: usize = 4096;
        let rows = self.rows;
        if rows.targets[row] == IGNORED {
            return Stat::NONE;
        }
        let scores = ScoreRow::new(Plain, rows.x, row, self.cols);
        let mut all = Stat::NONE;
        let mut start = cols.start;
        while start < cols.end {
            let chunk = start..cols.end.min(start + CHUNK);
            start = chunk.end;
            // SAFETY: x has this row of `cols` elements, in which the chunk lies, and so have the weights.
            let stat = unsafe {
                let exponentials = MaxSum::measure(s, scores, chunk.clone());
                let mut stat = Stat {
                    exponentials,
                    ..Stat::NONE
                };
                if rows.terms.spread > 0.0 {
                    let about = finite_max(exponentials.max);
                    let x = rows.x.row(row).add(chunk.start);
                    [stat.logits, stat.weights] = match rows.weight {
                        Some(weight) => {
                            let weight = weight.as_ptr().add(chunk.start);
                            fold(s, Weighted { about }, [x, weight], chunk.len())
                        }
                        None => {
                            let [logits] = fold(s, Centred { about }, [x], chunk.len());
                            [logits, chunk.len() as f32]
                        }
                    };
                }
                stat
            };
            all = all.join(stat);
        }
        all
    }

    fn join(&self, a: Stat, b: Stat) -> Stat {
        a.join(b)
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, _: Range<usize>, stat: Stat) {
        // SAFETY: x has this row, and its target is one of its columns, as `RowLosses::run` asserts. There is room for the
        // row's results, which no other thread writes.
        unsafe {
            let (target, rows) = (self.rows.targets[row], self.rows);
            let (mut loss, mut factors) = (0.0, [0.0; FACTORS - 1]);
            if target != IGNORED {
                let x = (*rows.x.row(row).add(target as usize)).widen_in(s);
                let w = rows.weight.map_or(1.0, |w| w[target as usize].widen_in(s));
                (loss, factors) = rows.terms.row(stat, x, w);
            }
            self.losses.get().add(row).write(loss);
            let to = self.factors.get().add(row * FACTORS);
            for (i, factor) in factors.iter().enumerate() {
                to.add(i).write(factor.to_bits());
            }
            to.add(FACTORS - 1).write(target);
        }
    }
}

/// Σ (x − about)
#[derive(Clone, Copy)]
struct Centred {
    about: f32,
}

impl Fold<1, 1> for Centred {
    fn pad(&self) -> [f32; 1] {
        [self.about]
    }
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [acc]: [S::F; 1], [x]: [S::F; 1]) -> [S::F; 1] {
        [s.add(acc, s.sub(x, s.splat(self.about)))]
    }
}

/// Σ w · (x − about) and Σ w
#[derive(Clone, Copy)]
struct Weighted {
    about: f32,
}

impl Fold<2, 2> for Weighted {
    fn pad(&self) -> [f32; 2] {
        [self.about, 0.0]
    }
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [logits, weights]: [S::F; 2], [x, w]: [S::F; 2]) -> [S::F; 2] {
        let x = s.sub(x, s.splat(self.about));
        [s.fma(w, x, logits), s.add(weights, w)]
    }
}
