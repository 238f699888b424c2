//! What a unit's numbers are measured by, and which codes they have.

use super::super::{Grid, Scheme};
use crate::cpu::element::Element;
use crate::cpu::rows::{fold, Fold};
use crate::cpu::simd::Simd;
use std::ops::Range;

/// What a unit, or a part of it, is reduced to: sums of |x| and x, or the largest |x|, or the largest x and −x. What isn't
/// finite makes the first infinite or NaN.
#[derive(Clone, Copy)]
pub(super) struct Stat(pub(super) [f32; 2]);

impl Stat {
    /// # Safety
    /// `x` is valid for reads of `n` elements, one at least.
    #[inline(always)]
    pub(super) unsafe fn of<S: Simd, T: Element>(s: S, grid: Grid, x: *const T, n: usize) -> Self {
        let first = (*x).widen();
        Stat(match grid {
            Grid::Ternary | Grid::Sign { .. } => sums(s, x, n),
            Grid::Int8 => {
                let [max] = fold(s, AbsMax { first }, [x], n);
                [max, 0.0]
            }
            Grid::ZeroPoint { .. } | Grid::Affine { .. } => fold(s, Ends { first }, [x], n),
        })
    }

    /// Of some, one at least; halves by themselves, so that many small ones make a sum.
    pub(super) fn all(stats: &[Self], grid: Grid) -> Self {
        match stats {
            [one] => *one,
            _ => {
                let (a, b) = stats.split_at(stats.len() / 2);
                Self::all(a, grid).join(Self::all(b, grid), grid)
            }
        }
    }

    fn join(self, other: Self, grid: Grid) -> Self {
        let join = |a: f32, b: f32| match grid {
            Grid::Ternary | Grid::Sign { .. } => a + b,
            // None of them is NaN.
            _ => a.max(b),
        };
        Stat([0, 1].map(|i| join(self.0[i], other.0[i])))
    }
}

/// Σ |x| and Σ x, some at a time: a sum of them all, one by one, would lose the small ones.
///
/// # Safety
/// As for [`Stat::of`].
#[inline(always)]
unsafe fn sums<S: Simd, T: Element>(s: S, x: *const T, n: usize) -> [f32; 2] {
    const SOME: usize = 2048;
    let mut totals = [0f64; 2];
    for start in (0..n).step_by(SOME) {
        let some = fold(s, Sums, [x.add(start)], SOME.min(n - start));
        for (total, sum) in totals.iter_mut().zip(some) {
            *total += f64::from(sum);
        }
    }
    totals.map(|total| total as f32)
}

/// Σ |x| and Σ x
#[derive(Clone, Copy)]
pub struct Sums;

impl Fold<1, 2> for Sums {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [abs, sum]: [S::F; 2], [x]: [S::F; 1]) -> [S::F; 2] {
        [s.add(abs, s.abs(x)), s.add(sum, x)]
    }
}

/// `max` over values that are infinite where x isn't finite. `first` is an element, for what fills the last vector.
macro_rules! largest {
    ($name:ident, $n:literal, |$s:ident, $x:ident| $values:expr) => {
        #[derive(Clone, Copy)]
        pub struct $name {
            pub first: f32,
        }

        impl Fold<1, $n> for $name {
            const START: f32 = f32::NEG_INFINITY;
            fn pad(&self) -> [f32; 1] {
                [self.first]
            }
            #[inline(always)]
            fn step<S: Simd>(&self, $s: S, mut acc: [S::F; $n], [$x]: [S::F; 1]) -> [S::F; $n] {
                let infinity = $s.splat(f32::INFINITY);
                let finite = $s.lt($s.abs($x), infinity);
                for (acc, value) in acc.iter_mut().zip($values) {
                    *acc = $s.max($s.select(finite, value, infinity), *acc);
                }
                acc
            }
            #[inline(always)]
            fn join<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
                s.max(a, b)
            }
            #[inline(always)]
            fn finish<S: Simd>(s: S, acc: S::F) -> f32 {
                s.reduce_max(acc)
            }
        }
    };
}

largest!(AbsMax, 1, |s, x| [s.abs(x)]);
largest!(Ends, 2, |s, x| [x, s.neg(x)]);

/// What codes a unit's numbers have: `code = clamp(round((x − bias) · factor) + zero)`. The grids with a bias divide by the
/// scale instead; of signs, it is whether x is above the bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) factor: f32,
    pub(super) zero: f32,
    pub(super) bias: f32,
    /// Of the values, `(code − zero) · scale + bias`.
    pub(super) scale: f32,
}

impl Unit {
    /// Of `n` numbers.
    pub(super) fn new(scheme: &Scheme, Stat([a, b]): Stat, n: usize) -> Self {
        let eps = scheme.eps;
        let max_code = scheme.max_code() as f32;
        let flawed = !a.is_finite() || !b.is_finite();
        match scheme.grid {
            _ if flawed => Unit {
                factor: f32::NAN,
                zero: 0.0,
                bias: 0.0,
                scale: f32::NAN,
            },
            Grid::Ternary => {
                let mean = (a / n as f32).max(eps);
                Unit {
                    factor: 1.0 / mean,
                    zero: 1.0,
                    bias: 0.0,
                    scale: mean,
                }
            }
            Grid::Sign { centred } => Unit {
                factor: 0.0,
                zero: 0.5,
                bias: if centred { b / n as f32 } else { 0.0 },
                scale: 2.0 * (a / n as f32).max(eps),
            },
            Grid::Int8 => {
                let max = a.max(eps);
                Unit {
                    factor: 127.0 / max,
                    zero: 0.0,
                    bias: 0.0,
                    scale: max / 127.0,
                }
            }
            Grid::ZeroPoint { .. } => {
                let (max, min) = (a.max(0.0), (-b).min(0.0));
                let scale = (max - min).max(eps) / max_code;
                Unit {
                    factor: 1.0 / scale,
                    zero: (-min / scale).round_ties_even(),
                    bias: 0.0,
                    scale,
                }
            }
            Grid::Affine { .. } => {
                let (max, min) = (a, -b);
                let step = ((max - min) / max_code).max(eps);
                let (edge, step) = match min.abs() > max.abs() {
                    true => (min, step),
                    false => (max, -step),
                };
                let nearest = (edge / step).round_ties_even();
                let (scale, bias) = match nearest == 0.0 {
                    true => (step, 0.0),
                    false => (edge / nearest, edge),
                };
                Unit {
                    factor: 0.0,
                    zero: 0.0,
                    bias,
                    scale,
                }
            }
        }
    }

    /// As users see it.
    pub(super) fn shown(&self, grid: Grid) -> [f32; 2] {
        match grid {
            Grid::Sign { .. } => [self.scale / 2.0, 0.0],
            Grid::Affine { .. } => [self.scale, self.bias],
            _ => [self.scale, self.zero],
        }
    }
}

/// The units of neighbouring columns.
pub(super) trait Units: Copy {
    /// Lanes of factor, zero, bias and scale from column `i` on, of which `left` follow.
    ///
    /// # Safety
    /// The columns exist.
    unsafe fn at<S: Simd>(&self, s: S, i: usize, left: usize) -> [S::F; 4];
}

impl Units for Unit {
    #[inline(always)]
    unsafe fn at<S: Simd>(&self, s: S, _: usize, _: usize) -> [S::F; 4] {
        [self.factor, self.zero, self.bias, self.scale].map(|v| s.splat(v))
    }
}

/// Those of columns: factors, zeros, biases and scales.
pub(super) struct ColumnUnits([Vec<f32>; 4]);

impl ColumnUnits {
    pub(super) fn new(units: &[Unit]) -> Self {
        let field = |of: fn(&Unit) -> f32| units.iter().map(of).collect();
        ColumnUnits([
            field(|u| u.factor),
            field(|u| u.zero),
            field(|u| u.bias),
            field(|u| u.scale),
        ])
    }

    pub(super) fn of(&self, cols: Range<usize>) -> Columns<'_> {
        let [factors, zeros, biases, scales] = &self.0;
        Columns([factors, zeros, biases, scales].map(|values| &values[cols.clone()]))
    }
}

/// One for each column.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a>([&'a [f32]; 4]);

impl Units for Columns<'_> {
    #[inline(always)]
    unsafe fn at<S: Simd>(&self, s: S, i: usize, left: usize) -> [S::F; 4] {
        let mut lanes = [s.splat(0.0); 4];
        for (lanes, values) in lanes.iter_mut().zip(self.0) {
            *lanes = f32::load_upto(s, values.as_ptr().add(i), left);
        }
        lanes
    }
}
