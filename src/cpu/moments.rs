//! The mean and the scale of a row, for the norms: `x̂ = (x − mean) · scale`, in the forward and in the gradient.

use super::element::Element;
use super::fold::{fold, Deviations, Fold, Sum, SumSquares};
use super::simd::Simd;

/// What a norm divides a row by, after the mean was subtracted if the norm is centred.
#[derive(Clone, Copy, Debug)]
pub enum Divisor {
    /// √(mean square + eps)
    RootMeanSquare,
    /// The Euclidean norm, or eps where that is larger.
    Euclidean,
}

/// Σ(x − mean) and Σ(x − mean)² over some columns of a row. `mean` is the columns' mean as rounded to f32, or 0 if the
/// norm is not centred.
#[derive(Clone, Copy, Debug)]
pub struct MomentSums {
    count: usize,
    mean: f32,
    residual: f32,
    squares: f32,
}

impl MomentSums {
    /// # Safety
    /// `x` is valid for reads of `n` elements.
    #[inline(always)]
    pub unsafe fn measure<S: Simd, T: Element, const CENTRED: bool>(
        s: S,
        x: *const T,
        n: usize,
    ) -> Self {
        if !CENTRED {
            // SAFETY: x has n elements.
            let [squares] = unsafe { fold(s, SumSquares, [x], n) };
            return MomentSums {
                count: n,
                mean: 0.0,
                residual: 0.0,
                squares,
            };
        }
        // SAFETY: x has n elements.
        let [sum] = unsafe { fold(s, Sum, [x], n) };
        let mean = sum / n as f32;
        // SAFETY: x has n elements.
        let [residual, squares] = unsafe { fold(s, Deviations { mean }, [x], n) };
        MomentSums {
            count: n,
            mean,
            residual,
            squares,
        }
    }

    /// Of the sums Σ(x − mean) and Σ(x − mean)² of a centred norm over `count` elements.
    #[inline(always)]
    pub fn new(count: usize, mean: f32, residual: f32, squares: f32) -> Self {
        MomentSums {
            count,
            mean,
            residual,
            squares,
        }
    }

    /// The sums over the columns of both, by the formula of Chan, Golub and LeVeque.
    pub fn join<const CENTRED: bool>(self, other: Self) -> Self {
        let count = self.count + other.count;
        if !CENTRED {
            let squares = self.squares + other.squares;
            return MomentSums {
                count,
                squares,
                ..self
            };
        }
        let [a, b] = [self, other].map(MomentSums::about_exact_mean);
        let distance = b.mean - a.mean;
        let mean = a.mean + distance * b.count / (a.count + b.count);
        let squares =
            a.squares + b.squares + distance * distance * a.count * b.count / (a.count + b.count);
        let residual = (mean - f64::from(mean as f32)) * count as f64;
        MomentSums {
            count,
            mean: mean as f32,
            residual: residual as f32,
            squares: (squares + residual * residual / count as f64) as f32,
        }
    }

    fn about_exact_mean(self) -> ExactMoments {
        let (count, residual) = (self.count as f64, f64::from(self.residual));
        ExactMoments {
            count,
            mean: f64::from(self.mean) + residual / count,
            squares: f64::from(self.squares) - residual * residual / count,
        }
    }

    /// The mean that the sums are taken about.
    #[inline(always)]
    pub fn mean(&self) -> f32 {
        self.mean
    }

    /// What is left of the elements' mean where `mean` is subtracted.
    #[inline(always)]
    pub fn mean_residual(&self) -> f32 {
        self.residual / self.count as f32
    }

    /// The elements' own mean. The residual of infinities is NaN.
    #[inline(always)]
    pub fn whole_mean(&self) -> f32 {
        match self.mean.is_infinite() {
            true => self.mean,
            false => self.mean + self.mean_residual(),
        }
    }

    /// The mean square, about the elements' own mean if the norm is centred: then it is their variance.
    #[inline(always)]
    pub fn mean_square<const CENTRED: bool>(&self) -> f32 {
        self.squares_about::<CENTRED>() / self.count as f32
    }

    #[inline(always)]
    fn squares_about<const CENTRED: bool>(&self) -> f32 {
        if !CENTRED {
            return self.squares;
        }
        let squares = self.squares - self.residual * self.mean_residual();
        // Rounding may leave less than 0. A NaN stays.
        if squares < 0.0 {
            0.0
        } else {
            squares
        }
    }
}

/// A mean that has not been rounded to f32, and the sum of squares about it.
struct ExactMoments {
    count: f64,
    mean: f64,
    squares: f64,
}

/// `x̂ = (x − mean) · scale + shift`. The shift is what the mean lost by rounding to f32, so that rows far from 0 keep
/// their digits.
#[derive(Clone, Copy)]
pub struct Moments {
    pub mean: f32,
    pub scale: f32,
    pub shift: f32,
    /// The factor of `x̂ · Σ(h · x̂)` in the gradient of a row.
    pub grad_factor: f32,
}

impl Moments {
    #[inline(always)]
    pub fn new<const CENTRED: bool>(sums: MomentSums, divisor: Divisor, eps: f32) -> Self {
        let count = sums.count as f32;
        let squares = sums.squares_about::<CENTRED>();
        let (scale, grad_factor) = match divisor {
            Divisor::RootMeanSquare => (1.0 / (squares / count + eps).sqrt(), 1.0 / count),
            // The comparison is false for a NaN, which stays.
            Divisor::Euclidean if squares.sqrt() < eps => (1.0 / eps, 0.0),
            Divisor::Euclidean => (1.0 / squares.sqrt(), 1.0),
        };
        Moments {
            mean: sums.mean,
            scale,
            shift: if CENTRED {
                -sums.mean_residual() * scale
            } else {
                0.0
            },
            grad_factor,
        }
    }

    #[inline(always)]
    fn apply<S: Simd, const CENTRED: bool>(&self, s: S, x: S::F) -> S::F {
        if CENTRED {
            let d = s.sub(x, s.splat(self.mean));
            s.fma(d, s.splat(self.scale), s.splat(self.shift))
        } else {
            s.mul(x, s.splat(self.scale))
        }
    }

    /// x̂ of a single element, of a centred norm.
    #[inline(always)]
    pub fn apply_one(&self, x: f32) -> f32 {
        (x - self.mean) * self.scale + self.shift
    }
}

/// x̂ of a piece (see [`Pieces`](super::pieces::Pieces)) that begins at `x`.
///
/// # Safety
/// The elements of the piece exist.
#[inline(always)]
pub unsafe fn normed<S: Simd, T: Element, const CENTRED: bool, const FULL: bool>(
    s: S,
    m: Moments,
    x: *const T,
    left: usize,
) -> S::F {
    // SAFETY: the caller's promise.
    let x = unsafe { T::load_piece::<S, FULL>(s, x, left) };
    m.apply::<S, CENTRED>(s, x)
}

/// Σh and Σ h·(x − mean) over some columns of a row, where h is the gradient of x̂: g, or g · weight.
#[derive(Clone, Copy)]
pub struct RowGradSums {
    pub mean: f32,
}

impl Fold<2, 2> for RowGradSums {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [sum, dot]: [S::F; 2], [x, h]: [S::F; 2]) -> [S::F; 2] {
        let d = s.sub(x, s.splat(self.mean));
        [s.add(sum, h), s.fma(h, d, dot)]
    }
}

impl Fold<3, 2> for RowGradSums {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, acc: [S::F; 2], [x, g, weight]: [S::F; 3]) -> [S::F; 2] {
        Fold::<2, 2>::step(self, s, acc, [x, s.mul(g, weight)])
    }
}
