//! Rounding rules: a vector of elements to codes.

use super::params::{ParamLanes, Params};
use crate::cpu::simd::{Simd, MAX_LANES};
use crate::philox;
use crate::quant::{Levels, Rounding, Scheme};

/// 1.5 · 2²³: adding it to an f32 below 2²² rounds away the fraction, halves to even, and leaves the integer in the lowest
/// bits.
pub(super) const ROUNDER: f32 = 12_582_912.0;

/// The codes of a vector of elements.
pub(super) struct Encoded<S: Simd> {
    /// Codes as numbers.
    pub(super) codes: S::F,
    /// The codes before they were rounded and clamped.
    pub(super) positions: S::F,
    /// The parameters to decode them with.
    pub(super) params: ParamLanes<S>,
}

/// How codes follow from elements and their parameters.
pub(super) trait RoundingRule: Copy {
    /// `index` is that of the first element in the whole tensor, for random numbers.
    fn encode<S: Simd>(self, s: S, x: S::F, index: usize, params: ParamLanes<S>) -> Encoded<S>;
}

/// The fast rule for the most common schemes: multiples of the scale, rounded to the nearest.
#[derive(Clone, Copy)]
pub(super) struct NearestMultiple {
    min_code: f32,
    max_code: f32,
}

impl NearestMultiple {
    /// None for a scheme that needs [`AnyScheme`].
    pub(super) fn new(scheme: &Scheme) -> Option<Self> {
        let scaled = !matches!(scheme.levels, Levels::Sign { .. } | Levels::Affine { .. });
        let serves = scaled && scheme.rounding == Rounding::Nearest;
        serves.then(|| NearestMultiple {
            min_code: scheme.min_code() as f32,
            max_code: scheme.max_code() as f32,
        })
    }
}

impl RoundingRule for NearestMultiple {
    #[inline(always)]
    fn encode<S: Simd>(self, s: S, x: S::F, _: usize, params: ParamLanes<S>) -> Encoded<S> {
        let zero = params.zero;
        let v = s.mul(x, params.inverse_scale);
        let low = s.sub(s.splat(self.min_code), zero);
        let high = s.sub(s.splat(self.max_code), zero);
        // The bounds are integers, so clamping before rounding gives what clamping after it would.
        let clamped = s.min(s.max(v, low), high);
        let rounded = s.sub(s.add(clamped, s.splat(ROUNDER)), s.splat(ROUNDER));
        Encoded {
            codes: s.add(rounded, zero),
            positions: s.add(v, zero),
            params,
        }
    }
}

/// The rule for every scheme.
#[derive(Clone, Copy)]
pub(super) struct AnyScheme(pub(super) Scheme);

impl RoundingRule for AnyScheme {
    #[inline(always)]
    fn encode<S: Simd>(self, s: S, x: S::F, index: usize, params: ParamLanes<S>) -> Encoded<S> {
        let Params {
            inverse_scale,
            zero,
            bias,
            scale,
        } = params;
        let v = match self.0.levels {
            Levels::Sign { .. } => {
                let (one, none) = (s.splat(1.0), s.splat(0.0));
                return Encoded {
                    codes: s.select(s.lt(bias, x), one, none),
                    positions: s.add(s.div(x, scale), zero),
                    // The bias was the threshold of the sign; it is not part of the value.
                    params: Params {
                        bias: none,
                        ..params
                    },
                };
            }
            Levels::Affine { .. } => s.div(s.sub(x, bias), scale),
            _ => s.mul(x, inverse_scale),
        };
        let rounded = match self.0.rounding {
            Rounding::Nearest => round(s, v),
            Rounding::Stochastic { seed } => {
                let mut uniform = [0.0; MAX_LANES];
                for (i, u) in uniform[..S::LANES].iter_mut().enumerate() {
                    *u = philox::uniform(seed, index + i);
                }
                // SAFETY: `uniform` has MAX_LANES elements, and LANES ≤ MAX_LANES are read.
                let uniform = unsafe { s.load_f32(uniform.as_ptr()) };
                floor(s, s.add(v, uniform))
            }
        };
        let low = s.splat(self.0.min_code() as f32);
        let high = s.splat(self.0.max_code() as f32);
        Encoded {
            codes: s.min(s.max(s.add(rounded, zero), low), high),
            positions: s.add(v, zero),
            params,
        }
    }
}

/// To the nearest integer, halves to even. Beyond ±2²², and for NaN, the result is some number of that size, which no code
/// reaches.
#[inline(always)]
fn round<S: Simd>(s: S, v: S::F) -> S::F {
    const LIMIT: f32 = 4_194_304.0;
    let v = s.min(s.max(v, s.splat(-LIMIT)), s.splat(LIMIT));
    s.sub(s.add(v, s.splat(ROUNDER)), s.splat(ROUNDER))
}

/// To the next integer below.
#[inline(always)]
fn floor<S: Simd>(s: S, v: S::F) -> S::F {
    let rounded = round(s, v);
    s.sub(
        rounded,
        s.select(s.lt(v, rounded), s.splat(1.0), s.splat(0.0)),
    )
}
