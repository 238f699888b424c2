//! The mean and scale of a row, for the norms.

use super::element::Element;
use super::rows::{fold, Deviations, Sum, SumSquares};
use super::simd::Simd;

/// What sets one norm apart. Methods must be `inline(always)`.
pub trait Norm: Copy + Send + Sync {
    const CENTRED: bool;
    /// From Σ(x − mean)² of `n` elements: the factor of x, and that of x̂·Σ(h·x̂) in the backward.
    fn scale(squares: f32, n: f32, eps: f32) -> (f32, f32);
}

#[derive(Clone, Copy)]
pub struct Rms;

impl Norm for Rms {
    const CENTRED: bool = false;
    #[inline(always)]
    fn scale(squares: f32, n: f32, eps: f32) -> (f32, f32) {
        (1.0 / (squares / n + eps).sqrt(), 1.0 / n)
    }
}

#[derive(Clone, Copy)]
pub struct Layer;

impl Norm for Layer {
    const CENTRED: bool = true;
    #[inline(always)]
    fn scale(squares: f32, n: f32, eps: f32) -> (f32, f32) {
        Rms::scale(squares, n, eps)
    }
}

#[derive(Clone, Copy)]
pub struct L2;

impl Norm for L2 {
    const CENTRED: bool = false;
    #[inline(always)]
    fn scale(squares: f32, _: f32, eps: f32) -> (f32, f32) {
        let norm = squares.sqrt();
        // A NaN is not below eps, and stays.
        if norm < eps {
            (1.0 / eps, 0.0)
        } else {
            (1.0 / norm, 1.0)
        }
    }
}

/// x̂ = (x − mean)·scale + shift. The shift holds what the mean lost by rounding, so that rows far from 0 keep their
/// digits.
#[derive(Clone, Copy)]
pub struct Moments {
    pub mean: f32,
    pub scale: f32,
    pub shift: f32,
    pub pull: f32,
}

impl Moments {
    /// # Safety
    /// `x` is valid for reads of `n` elements.
    #[inline(always)]
    pub unsafe fn of<S: Simd, T: Element, K: Norm>(s: S, x: *const T, n: usize, eps: f32) -> Self {
        let count = n as f32;
        if !K::CENTRED {
            let [squares] = fold(s, SumSquares, [x], n);
            let (scale, pull) = K::scale(squares, count, eps);
            return Moments {
                mean: 0.0,
                scale,
                shift: 0.0,
                pull,
            };
        }
        let [sum] = fold(s, Sum, [x], n);
        let mean = sum / count;
        let [rest, squares] = fold(s, Deviations { mean }, [x], n);
        let rest_mean = rest / count;
        let squares = squares - rest * rest_mean;
        // Rounding may leave less than nothing; a NaN stays.
        let squares = if squares < 0.0 { 0.0 } else { squares };
        let (scale, pull) = K::scale(squares, count, eps);
        Moments {
            mean,
            scale,
            shift: -rest_mean * scale,
            pull,
        }
    }

    #[inline(always)]
    pub fn apply<S: Simd, K: Norm>(&self, s: S, x: S::F) -> S::F {
        if K::CENTRED {
            let d = s.sub(x, s.splat(self.mean));
            s.fma(d, s.splat(self.scale), s.splat(self.shift))
        } else {
            s.mul(x, s.splat(self.scale))
        }
    }
}
