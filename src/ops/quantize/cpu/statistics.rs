//! The statistics that scales are computed from: sums, maxima and minima.

use crate::cpu::element::Element;
use crate::cpu::fold::{fold, Fold, Join};
use crate::cpu::simd::Simd;
use crate::quant::Levels;

/// Two numbers about the elements that share a scale, or about some of them:
///
/// | levels | first | second |
/// |---|---|---|
/// | `Ternary`, `Sign` | Σ &#124;x&#124; | Σ x |
/// | `Int8` | max &#124;x&#124; | 0 |
/// | `ZeroPoint`, `Affine` | max x | max −x |
///
/// The first is infinite or NaN if one of the elements is.
#[derive(Clone, Copy)]
pub(super) struct Stats(pub(super) [f32; 2]);

impl Stats {
    /// # Safety
    /// `x` is valid for reads of `n` elements, and n is at least 1.
    #[inline(always)]
    pub(super) unsafe fn of<S: Simd, T: Element>(
        s: S,
        levels: Levels,
        x: *const T,
        n: usize,
    ) -> Self {
        // SAFETY: the caller promises n ≥ 1 elements, of which this reads the first, and `fold` and `sums` all.
        Stats(unsafe {
            let first = (*x).widen_in(s);
            match levels {
                Levels::Ternary | Levels::Sign { .. } => sums(s, x, n),
                Levels::Int8 => {
                    let [max] = fold(s, AbsMax { first }, [x], n);
                    [max, 0.0]
                }
                Levels::ZeroPoint { .. } | Levels::Affine { .. } => {
                    fold(s, MinMax { first }, [x], n)
                }
            }
        })
    }

    /// The statistics of the elements of both.
    pub(super) fn join(self, other: Self, levels: Levels) -> Self {
        let join = |a: f32, b: f32| match levels {
            Levels::Ternary | Levels::Sign { .. } => a + b,
            // Maxima are never NaN.
            _ => a.max(b),
        };
        Stats([0, 1].map(|i| join(self.0[i], other.0[i])))
    }
}

/// Σ |x| and Σ x. Sums of 2048 elements are added up in f64: one f32 sum of a long row would lose the small elements.
///
/// # Safety
/// As for [`Stats::of`].
#[inline(always)]
unsafe fn sums<S: Simd, T: Element>(s: S, x: *const T, n: usize) -> [f32; 2] {
    const PART: usize = 2048;
    let mut totals = [0f64; 2];
    for start in (0..n).step_by(PART) {
        // SAFETY: start < n, and the part ends at n at the latest.
        let part = unsafe { fold(s, Sums, [x.add(start)], PART.min(n - start)) };
        for (total, sum) in totals.iter_mut().zip(part) {
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

/// A fold by `max`, in which an x that is not finite counts as infinite. `first` is one of the elements: it fills the lanes
/// behind the last element without changing the result.
macro_rules! max_fold {
    ($(#[$doc:meta])* $name:ident, $n:literal, |$s:ident, $x:ident| $values:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name {
            pub first: f32,
        }

        impl Fold<1, $n> for $name {
            const JOIN: Join = Join::Max;
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
        }
    };
}

max_fold!(
    /// max |x|
    AbsMax, 1, |s, x| [s.abs(x)]
);
max_fold!(
    /// max x and max −x
    MinMax, 2, |s, x| [x, s.neg(x)]
);
