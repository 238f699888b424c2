//! Blocks of 256 elements, whose pieces of all tensors stay in the nearest cache: what is not f32 in memory is widened to a
//! buffer, the step runs over f32, and the results are rounded from there.

use super::codes::{self, Table, BLOCK};
use super::{Coefficients32, Rounding, Step, Targets, NAME};
use crate::check;
use crate::cpu::element::{convert, Element};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{gather, with_float};
use crate::op::on_cpu::Arg;
use crate::philox;
use candle_core::{CpuStorage, DType, Result};
use half::{bf16, f16};
use std::borrow::Cow;
use std::ops::Range;

/// What an element costs, in units of [`parallel`]: 28 bytes go through memory, and two values through a table.
pub(super) const COST: usize = 12;
const CODES_COST: usize = 30;

/// What a call costs beside its elements: locks and checks, about a microsecond.
pub(super) const CALL_COST: usize = 10_000;

pub fn step(step: &Step, targets: Targets<CpuStorage>, grad: Arg) -> Result<()> {
    let grad = Gradient::new(grad)?;
    let [param, floats, codes @ ..] = targets else {
        return Err(check::error(NAME, "a parameter has a state"));
    };
    let CpuStorage::F32(floats) = &mut *floats.0 else {
        return Err(check::error(NAME, "moments are kept in f32"));
    };
    let codes = match codes {
        [] => None,
        [codes, ..] => match &mut *codes.0 {
            CpuStorage::U8(codes) => Some(codes),
            _ => return Err(check::error(NAME, "codes are bytes")),
        },
    };
    let layout = param.1;
    with_float!(NAME, &mut *param.0, |param: &[T]| {
        let mut fits = true;
        gather::update(param, layout, |param: &mut [T]| {
            let n = param.len();
            let moment = match codes {
                Some(_) => n.div_ceil(BLOCK),
                None => n,
            };
            let has_master = step.rounding == Rounding::Master;
            fits = floats.len() == 2 * moment + if has_master { n } else { 0 }
                && codes.as_ref().is_none_or(|codes| codes.len() == 2 * n)
                && grad.len() == n;
            if fits {
                let blocks = Blocks {
                    c: step.coefficients.into(),
                    rounding: step.rounding,
                    n,
                    moment,
                    param: Shared::new(param.as_mut_ptr()),
                    grad: &grad,
                    floats: Shared::new(floats.as_mut_ptr()),
                    codes: codes.map(|codes| Shared::new(codes.as_mut_ptr())),
                };
                let cost = if blocks.codes.is_some() {
                    CODES_COST
                } else {
                    COST
                };
                parallel::ranges(n, cost, BLOCK, |range| {
                    // SAFETY: ranges are disjoint, and begin at blocks. `fits` has compared the lengths.
                    dispatch(Part {
                        blocks: &blocks,
                        range,
                    })
                });
            }
        });
        check::ensure(fits, NAME, "got a state of another parameter's size")
    })
}

/// A gradient's elements in order.
enum Gradient<'a> {
    F32(Cow<'a, [f32]>),
    F16(Cow<'a, [f16]>),
    Bf16(Cow<'a, [bf16]>),
}

impl<'a> Gradient<'a> {
    fn new((grad, l): Arg<'a>) -> Result<Self> {
        match grad {
            CpuStorage::F32(g) => Ok(Gradient::F32(gather::contiguous(g, l))),
            CpuStorage::F16(g) => Ok(Gradient::F16(gather::contiguous(g, l))),
            CpuStorage::BF16(g) => Ok(Gradient::Bf16(gather::contiguous(g, l))),
            _ => Err(check::error(
                NAME,
                "got a gradient of another dtype, expected f32, f16 or bf16",
            )),
        }
    }

    fn len(&self) -> usize {
        match self {
            Gradient::F32(g) => g.len(),
            Gradient::F16(g) => g.len(),
            Gradient::Bf16(g) => g.len(),
        }
    }

    /// The elements of a range, of at most a block, where they lie or in `buffer`.
    #[inline(always)]
    fn widened<S: Simd>(&self, s: S, range: Range<usize>, buffer: &mut [f32; BLOCK]) -> *const f32 {
        let (n, to) = (range.len().min(BLOCK), buffer.as_mut_ptr());
        // SAFETY: the slices have n elements, and the buffer is at least as long.
        unsafe {
            match self {
                Gradient::F32(g) => return g[range].as_ptr(),
                Gradient::F16(g) => convert(s, g[range].as_ptr(), to, n),
                Gradient::Bf16(g) => convert(s, g[range].as_ptr(), to, n),
            }
        }
        to
    }
}

/// The tensors of a step. `param` has n elements, `floats` two moments' and the master's, `codes`, if there are any, twice n.
struct Blocks<'a, T> {
    c: Coefficients32,
    rounding: Rounding,
    n: usize,
    /// Elements of a moment among the floats.
    moment: usize,
    param: Shared<T>,
    grad: &'a Gradient<'a>,
    floats: Shared<f32>,
    codes: Option<Shared<u8>>,
}

/// A range of elements, which begins at a block, and which no other thread works at.
struct Part<'a, T> {
    blocks: &'a Blocks<'a, T>,
    range: Range<usize>,
}

impl<T: Element> Kernel for Part<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let end = self.range.end;
        for start in self.range.step_by(BLOCK) {
            // SAFETY: the range lies in 0..n, and this thread alone works at it.
            unsafe { self.blocks.block(s, start, BLOCK.min(end - start)) };
        }
    }
}

impl<T: Element> Blocks<'_, T> {
    /// The step of the `n` elements from `start` on.
    ///
    /// # Safety
    /// The elements exist, `start` is a multiple of `BLOCK` and `n` at most one. No other thread touches these elements.
    #[inline(always)]
    unsafe fn block<S: Simd>(&self, s: S, start: usize, n: usize) {
        let (mut g, mut wide, mut ms, mut vs) =
            ([0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
        // SAFETY: the caller answers for the elements start..start + n of param. The floats hold two moments, each with an
        // element for each of param's, or for each block where there are codes, and then the master.
        unsafe {
            let param = self.param.get().add(start);
            let grad = self.grad.widened(s, start..start + n, &mut g);
            let theta = self.theta(s, start, n, &mut wide);
            let moment = self.floats.get().add(if self.codes.is_some() {
                start / BLOCK
            } else {
                start
            });
            let scales = [moment, moment.add(self.moment)];
            match self.codes {
                None => update(s, &self.c, theta, grad, scales, n),
                Some(codes) => {
                    let codes = [codes.get().add(start), codes.get().add(self.n + start)];
                    decode(codes, scales, [&mut ms, &mut vs], n);
                    update(
                        s,
                        &self.c,
                        theta,
                        grad,
                        [ms.as_mut_ptr(), vs.as_mut_ptr()],
                        n,
                    );
                    encode(s, codes, scales, [&ms, &vs], n);
                }
            }
            match (T::DTYPE, self.rounding) {
                (DType::F32, _) => {}
                (_, Rounding::Stochastic { seed }) => round_by_chance(seed, start, theta, param, n),
                (_, Rounding::Nearest | Rounding::Master) => {
                    convert(s, theta.cast_const(), param, n)
                }
            }
        }
    }

    /// The parameter's values in f32: where they lie, from the master, or widened to `wide`.
    ///
    /// # Safety
    /// As [`Blocks::block`].
    #[inline(always)]
    unsafe fn theta<S: Simd>(
        &self,
        s: S,
        start: usize,
        n: usize,
        wide: &mut [f32; BLOCK],
    ) -> *mut f32 {
        // SAFETY: the caller answers for param's elements; the master has as many, behind the two moments.
        unsafe {
            let param = self.param.get().add(start);
            if T::DTYPE == DType::F32 {
                return param.cast();
            }
            convert(s, param.cast_const(), wide.as_mut_ptr(), n);
            if self.rounding != Rounding::Master {
                return wide.as_mut_ptr();
            }
            let master = self.floats.get().add(2 * self.moment + start);
            for (i, &value) in wide.iter().enumerate().take(n) {
                // A parameter that was set by other code since the last step is taken as it is.
                let rounded = T::narrow_in(s, *master.add(i)).widen_in(s);
                if rounded.to_bits() != value.to_bits() {
                    *master.add(i) = value;
                }
            }
            master
        }
    }
}

/// The equations of the op.
///
/// # Safety
/// All pointers are valid for `n` elements, `grad` for reads and the others for writes too.
#[inline(always)]
unsafe fn update<S: Simd>(
    s: S,
    c: &Coefficients32,
    theta: *mut f32,
    grad: *const f32,
    [m, v]: [*mut f32; 2],
    n: usize,
) {
    let [decay, rate, scale_v, eps] = [c.decay, c.rate, c.scale_v, c.eps].map(|x| s.splat(x));
    let [beta1, gain1, beta2, gain2] = [c.beta1, c.gain1, c.beta2, c.gain2].map(|x| s.splat(x));
    for i in (0..n).step_by(S::LANES) {
        let left = n - i;
        // SAFETY: n − i elements are left from i on.
        unsafe {
            let g = f32::load_upto(s, grad.add(i), left);
            let m1 = s.fma(beta1, f32::load_upto(s, m.add(i), left), s.mul(gain1, g));
            let v1 = s.fma(
                beta2,
                f32::load_upto(s, v.add(i), left),
                s.mul(gain2, s.mul(g, g)),
            );
            let denominator = s.add(s.sqrt(s.mul(v1, scale_v)), eps);
            let by = s.div(s.mul(rate, m1), denominator);
            let kept = s.mul(decay, f32::load_upto(s, theta.add(i), left));
            f32::store_upto(s, m.add(i), left, m1);
            f32::store_upto(s, v.add(i), left, v1);
            f32::store_upto(s, theta.add(i), left, s.sub(kept, by));
        }
    }
}

/// The moments of a block from their codes.
///
/// # Safety
/// `codes` are valid for `n` bytes, at most a block, and `scales` for one element each.
#[inline(always)]
unsafe fn decode(
    codes: [*mut u8; 2],
    scales: [*mut f32; 2],
    out: [&mut [f32; BLOCK]; 2],
    n: usize,
) {
    let (signed, unsigned) = (Table::signed(), Table::unsigned());
    let [ms, vs] = out;
    // SAFETY: the caller's contract.
    unsafe {
        for i in 0..n.min(BLOCK) {
            ms[i] = signed.values[usize::from(*codes[0].add(i))] * *scales[0];
            vs[i] = unsigned.values[usize::from(*codes[1].add(i))] * *scales[1];
        }
    }
}

/// The codes and scales of a block's moments.
///
/// # Safety
/// As [`decode`].
#[inline(always)]
unsafe fn encode<S: Simd>(
    s: S,
    codes: [*mut u8; 2],
    scales: [*mut f32; 2],
    moments: [&[f32; BLOCK]; 2],
    n: usize,
) {
    let (signed, unsigned) = (Table::signed(), Table::unsigned());
    let [ms, vs] = moments;
    // The square of a finite gradient may be infinite. An infinite gradient is seen by the first moment.
    let most_squared = largest(s, vs, n).min(f32::MAX);
    let (m_scale, m_factor) = codes::scale(largest(s, ms, n));
    let (v_scale, v_factor) = codes::scale(most_squared);
    // SAFETY: the caller's contract.
    unsafe {
        (*scales[0], *scales[1]) = (m_scale, v_scale);
        for i in 0..n.min(BLOCK) {
            *codes[0].add(i) = codes::encode_signed(signed, ms[i] * m_factor);
            *codes[1].add(i) = codes::encode_unsigned(unsigned, vs[i] * v_factor);
        }
    }
}

/// The largest magnitude of the first `n` values, or infinity if one of them is not finite.
#[inline(always)]
fn largest<S: Simd>(s: S, x: &[f32; BLOCK], n: usize) -> f32 {
    let (mut most, infinity) = (s.splat(0.0), s.splat(f32::INFINITY));
    for i in (0..n.min(BLOCK)).step_by(S::LANES) {
        // SAFETY: a block is a multiple of a vector's lanes, so that a vector begins at i.
        let a = s.abs(unsafe { s.load_f32(x.as_ptr().add(i)) });
        let finite = s.select(s.lt(a, infinity), a, infinity);
        most = s.max(finite, most);
    }
    s.reduce_max(most)
}

/// Rounds to the parameter's dtype, up or down by chance.
///
/// # Safety
/// Both pointers are valid for `n` elements, at most a block, and don't overlap.
#[inline(always)]
unsafe fn round_by_chance<T: Element>(
    seed: u64,
    start: usize,
    from: *const f32,
    to: *mut T,
    n: usize,
) {
    const COUNTERS: usize = 16;
    for block in (0..n).step_by(4 * COUNTERS) {
        let words = philox::words::<COUNTERS>(seed, ((start + block) / 4) as u64);
        for i in 0..(n - block).min(4 * COUNTERS) {
            let word = words[i % 4][i / 4];
            // SAFETY: block + i < n.
            unsafe { *to.add(block + i) = rounded_by_chance(*from.add(block + i), word) };
        }
    }
}

/// x in the dtype T, rounded up with the probability of its distance from the number below.
#[inline(always)]
fn rounded_by_chance<T: Element>(x: f32, word: u32) -> T {
    let bits = x.to_bits();
    let size = f32::from_bits(bits & 0x7FFF_FFFF);
    match T::DTYPE {
        // Numbers of which only an infinity is left are rounded to nearest, and NaNs stay NaNs.
        DType::BF16 if size <= f32::from(bf16::MAX) => {
            T::narrow(f32::from_bits((bits + (word >> 16)) & 0xFFFF_0000))
        }
        // Below the smallest normal number, f16 counts in steps of 2⁻²⁴.
        DType::F16 if size < 2f32.powi(-14) => {
            let steps = size * 2f32.powi(24) + (word >> 19) as f32 * 2f32.powi(-13);
            T::narrow((steps.floor() * 2f32.powi(-24)).copysign(x))
        }
        DType::F16 if size <= f32::from(f16::MAX) => {
            T::narrow(f32::from_bits((bits + (word >> 19)) & 0xFFFF_E000))
        }
        _ => T::narrow(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element>(x: f32, unit: f32) {
        let trials = 1 << 16;
        let (mut sum, mut low, mut high) = (0f64, f32::INFINITY, f32::NEG_INFINITY);
        for trial in 0..trials / 64u64 {
            let words = philox::words::<16>(7, 16 * trial);
            for word in words.into_iter().flatten() {
                let y = rounded_by_chance::<T>(x, word).widen();
                (low, high) = (low.min(y), high.max(y));
                sum += f64::from(y);
            }
        }
        assert!(
            low <= x && x <= high && high - low <= unit,
            "{x}: {low} to {high}"
        );
        let mean = sum / trials as f64;
        // Five standard deviations of at most half a unit each.
        let bound = 2.5 * f64::from(unit) / (trials as f64).sqrt();
        assert!((mean - f64::from(x)).abs() <= bound, "{x}: {mean}");
    }

    #[test]
    fn chance_is_right_on_average() {
        for sign in [1.0, -1.0] {
            for part in [0.0, 0.1, 0.5, 0.93] {
                let normal = 1.0 + part * 2f32.powi(-7);
                check::<bf16>(sign * normal, 2f32.powi(-7));
                check::<bf16>(sign * normal * 1e-30, 2f32.powi(-7) * 2e-30);
                check::<f16>(sign * (1.0 + part * 2f32.powi(-10)), 2f32.powi(-10));
                check::<f16>(sign * (5.0 + part) * 2f32.powi(-24), 2f32.powi(-24));
            }
        }
        for x in [f32::INFINITY, f32::NEG_INFINITY, 7e4] {
            assert_eq!(rounded_by_chance::<f16>(x, u32::MAX), f16::from_f32(x));
        }
        assert_eq!(rounded_by_chance::<f16>(65503.9, u32::MAX), f16::MAX);
        assert!(rounded_by_chance::<bf16>(f32::NAN, u32::MAX).is_nan());
    }
}
