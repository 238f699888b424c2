//! Quantisation parameters: scale, zero point and bias, computed from statistics or read from stored scales.

use super::statistics::Stats;
use crate::cpu::element::Element;
use crate::cpu::simd::Simd;
use crate::quant::{Levels, Scheme};

/// What the elements that share a scale are encoded and decoded with:
/// `code = clamp(round((x − bias) · inverse_scale) + zero)` and `value = (code − zero) · scale + bias`.
///
/// `Affine` levels divide by the scale instead. The code of `Sign` levels is whether x is above the bias, which is not part
/// of the value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Params<V> {
    pub(super) inverse_scale: V,
    pub(super) zero: V,
    pub(super) bias: V,
    pub(super) scale: V,
}

/// The parameters of one scale.
pub(super) type ScaleParams = Params<f32>;
/// The parameters of each lane of a vector.
pub(super) type ParamLanes<S> = Params<<S as Simd>::F>;
/// The parameters of every column.
pub(super) type ColumnParams = Params<Vec<f32>>;

impl ScaleParams {
    /// From the statistics of all `n` elements that share the scale.
    pub(super) fn new(scheme: &Scheme, Stats([a, b]): Stats, n: usize) -> Self {
        let eps = scheme.eps;
        let max_code = scheme.max_code() as f32;
        let finite = a.is_finite() && b.is_finite();
        let (inverse_scale, zero, bias, scale) = match scheme.levels {
            _ if !finite => (f32::NAN, 0.0, 0.0, f32::NAN),
            Levels::Ternary => {
                let mean = (a / n as f32).max(eps);
                (1.0 / mean, 1.0, 0.0, mean)
            }
            Levels::Sign { centred } => {
                let threshold = if centred { b / n as f32 } else { 0.0 };
                (0.0, 0.5, threshold, 2.0 * (a / n as f32).max(eps))
            }
            Levels::Int8 => {
                let max = a.max(eps);
                (127.0 / max, 0.0, 0.0, max / 127.0)
            }
            Levels::ZeroPoint { .. } => {
                let (max, min) = (a.max(0.0), (-b).min(0.0));
                let scale = (max - min).max(eps) / max_code;
                let zero = (-min / scale).round_ties_even();
                (1.0 / scale, zero, 0.0, scale)
            }
            Levels::Affine { .. } => {
                let (max, min) = (a, -b);
                let step = ((max - min) / max_code).max(eps);
                // Codes count from the end of the range that is farther from 0.
                let (edge, step) = match min.abs() > max.abs() {
                    true => (min, step),
                    false => (max, -step),
                };
                // The step is adjusted so that 0 is a whole number of steps from the edge.
                let steps_to_0 = (edge / step).round_ties_even();
                let (scale, bias) = match steps_to_0 == 0.0 {
                    true => (step, 0.0),
                    false => (edge / steps_to_0, edge),
                };
                (0.0, 0.0, bias, scale)
            }
        };
        Params {
            inverse_scale,
            zero,
            bias,
            scale,
        }
    }

    /// From a stored scale and offset, for decoding alone.
    pub(super) fn of_stored(levels: Levels, scale: f32, offset: f32) -> Self {
        let (zero, bias, scale) = match levels {
            Levels::Ternary => (1.0, 0.0, scale),
            Levels::Sign { .. } => (0.5, 0.0, 2.0 * scale),
            Levels::Int8 => (0.0, 0.0, scale),
            Levels::ZeroPoint { .. } => (offset, 0.0, scale),
            Levels::Affine { .. } => (0.0, offset, scale),
        };
        Params {
            inverse_scale: 0.0,
            zero,
            bias,
            scale,
        }
    }

    /// The scale and the offset that are stored.
    pub(super) fn stored(&self, levels: Levels) -> [f32; 2] {
        match levels {
            Levels::Sign { .. } => [self.scale / 2.0, 0.0],
            Levels::Affine { .. } => [self.scale, self.bias],
            _ => [self.scale, self.zero],
        }
    }
}

impl<V: Copy> Params<V> {
    /// `(code − zero) · scale + bias`
    #[inline(always)]
    pub(super) fn value<S: Simd<F = V>>(&self, s: S, codes: V) -> V {
        s.add(s.mul(s.sub(codes, self.zero), self.scale), self.bias)
    }
}

/// The parameters of neighbouring columns of a row.
pub(super) trait RowParams: Copy {
    /// The parameters of `count` columns from `col` on, or of LANES columns if `count` is more.
    ///
    /// # Safety
    /// The row has these columns.
    unsafe fn lanes<S: Simd>(&self, s: S, col: usize, count: usize) -> ParamLanes<S>;
}

/// One set of parameters for all columns.
impl RowParams for ScaleParams {
    #[inline(always)]
    unsafe fn lanes<S: Simd>(&self, s: S, _: usize, _: usize) -> ParamLanes<S> {
        Params {
            inverse_scale: s.splat(self.inverse_scale),
            zero: s.splat(self.zero),
            bias: s.splat(self.bias),
            scale: s.splat(self.scale),
        }
    }
}

impl ColumnParams {
    pub(super) fn new(columns: &[ScaleParams]) -> Self {
        let field = |of: fn(&ScaleParams) -> f32| columns.iter().map(of).collect();
        Params {
            inverse_scale: field(|p| p.inverse_scale),
            zero: field(|p| p.zero),
            bias: field(|p| p.bias),
            scale: field(|p| p.scale),
        }
    }
}

impl RowParams for &ColumnParams {
    #[inline(always)]
    unsafe fn lanes<S: Simd>(&self, s: S, col: usize, count: usize) -> ParamLanes<S> {
        debug_assert!(col + count.min(S::LANES) <= self.scale.len());
        // SAFETY: the row has `count` columns from `col` on, or LANES if `count` is more, and `new` filled every field for
        // each column.
        let field =
            |values: &Vec<f32>| unsafe { f32::load_upto(s, values.as_ptr().add(col), count) };
        Params {
            inverse_scale: field(&self.inverse_scale),
            zero: field(&self.zero),
            bias: field(&self.bias),
            scale: field(&self.scale),
        }
    }
}
