//! What happens to a row of scores: scale, cap, mask, softmax, dropout.

use super::call::{Call, Mask, Query};
use super::KEY_BLOCK;
use crate::cpu::element::Element;
use crate::cpu::math;
use crate::cpu::simd::{Kernel, Simd, MAX_LANES};
use crate::philox;

const IDS: [f32; MAX_LANES] = [
    0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.,
];

/// x in the first `left` lanes, `pad` in those beyond.
#[inline(always)]
pub fn first<S: Simd>(s: S, left: usize, x: S::F, pad: f32) -> S::F {
    if left >= S::LANES {
        return x;
    }
    // SAFETY: no vector has more lanes than `IDS`.
    let ids = unsafe { s.load_f32(IDS.as_ptr()) };
    s.select(s.lt(ids, s.splat(left as f32)), x, s.splat(pad))
}

/// What [`finish`] leaves for the backward of a cap.
pub trait Slopes {
    /// Keeps the slope of the cap for the element at `i`.
    ///
    /// # Safety
    /// `left` > 0 elements from i on belong to the row.
    unsafe fn keep<S: Simd>(&self, s: S, i: usize, left: usize, slope: S::F);
}

/// The forward keeps none.
pub struct NoSlopes;

impl Slopes for NoSlopes {
    #[inline(always)]
    unsafe fn keep<S: Simd>(&self, _: S, _: usize, _: usize, _: S::F) {}
}

/// A row that the slopes are written to, times the scale.
pub struct KeptSlopes(pub *mut f32);

impl Slopes for KeptSlopes {
    #[inline(always)]
    unsafe fn keep<S: Simd>(&self, s: S, i: usize, left: usize, slope: S::F) {
        // SAFETY: the maker has memory for the row, of which `left` elements follow.
        unsafe { f32::store_upto(s, self.0.add(i), left, slope) }
    }
}

/// Turns products into scores, in place: those of `n` keys from `key` (of the query's segment) on, all of them visible. Returns
/// the largest, which is −∞ if all are −∞ or NaN.
///
/// # Safety
/// `t` is valid for reads and writes of `n` elements; the keys exist, so that a mask has elements for them.
#[inline(always)]
pub unsafe fn finish<S: Simd, T: Element, R>(
    s: S,
    call: &Call<T, R>,
    query: &Query,
    key: usize,
    t: *mut f32,
    n: usize,
    slopes: impl Slopes,
) -> f32 {
    let mut max = s.splat(f32::NEG_INFINITY);
    let scale = s.splat(call.scale);
    let plain = matches!(call.mask, Mask::None) && call.rules.softcap.is_none();
    if plain {
        let mut i = 0;
        while i < n {
            // SAFETY: n − i elements are left.
            unsafe {
                let x = s.mul(f32::load_upto(s, t.add(i), n - i), scale);
                f32::store_upto(s, t.add(i), n - i, x);
                max = s.max(first(s, n - i, x, f32::NEG_INFINITY), max);
            }
            i += S::LANES;
        }
        return s.reduce_max(max);
    }
    let mut i = 0;
    while i < n {
        // SAFETY: n − i elements are left, of the row and of its mask.
        unsafe {
            let mut x = s.mul(f32::load_upto(s, t.add(i), n - i), scale);
            if let Some(cap) = call.rules.softcap {
                let bent = math::tanh(s, s.mul(x, s.splat(1.0 / cap)));
                slopes.keep(s, i, n - i, s.fnma(bent, bent, s.splat(1.0)));
                x = s.mul(bent, s.splat(cap));
            }
            x = masked(s, call, query, key + i, n - i, x);
            f32::store_upto(s, t.add(i), n - i, x);
            max = s.max(first(s, n - i, x, f32::NEG_INFINITY), max);
        }
        i += S::LANES;
    }
    s.reduce_max(max)
}

/// The mask added to a vector of scores, of which `left` are of keys.
///
/// # Safety
/// The mask has elements for `left` keys from `key` on.
#[inline(always)]
unsafe fn masked<S: Simd, T: Element, R>(
    s: S,
    call: &Call<T, R>,
    query: &Query,
    key: usize,
    left: usize,
    x: S::F,
) -> S::F {
    match &call.mask {
        Mask::None => x,
        Mask::Additive(mask) => {
            let row = mask.row(query.batch, query.head, query.at);
            // SAFETY: the mask has `left` elements from the key on, or one for all keys.
            let mask = unsafe {
                match mask.key_stride() {
                    0 => s.splat((*row).widen_in(s)),
                    _ => T::load_upto(s, row.add(key), left),
                }
            };
            s.add(x, mask)
        }
        Mask::Boolean(mask) => {
            let row = mask.row(query.batch, query.head, query.at);
            let mut allowed = [0f32; MAX_LANES];
            for (i, allowed) in allowed.iter_mut().enumerate().take(left.min(S::LANES)) {
                // SAFETY: the mask has `left` elements from the key on, or one for all keys.
                let may = unsafe { *row.add((key + i) * mask.key_stride()) };
                *allowed = f32::from(may != 0);
            }
            // SAFETY: the array has a whole vector.
            let allowed = unsafe { s.load_f32(allowed.as_ptr()) };
            s.select(s.eq(allowed, s.splat(0.0)), s.splat(f32::NEG_INFINITY), x)
        }
    }
}

/// `e^(t − max)` of a row of scores, in place; returns their sum. `max` is finite or NaN.
///
/// # Safety
/// `t` is valid for reads and writes of `n` elements.
#[inline(always)]
pub unsafe fn exponentials<S: Simd>(s: S, t: *mut f32, n: usize, max: f32) -> f32 {
    let (max, mut sum) = (s.splat(max), s.splat(0.0));
    let mut i = 0;
    while i < n {
        // SAFETY: n − i elements are left.
        unsafe {
            let x = s.sub(f32::load_upto(s, t.add(i), n - i), max);
            let e = first(s, n - i, math::exp_nonpositive(s, x), 0.0);
            f32::store_upto(s, t.add(i), n - i, e);
            sum = s.add(sum, e);
        }
        i += S::LANES;
    }
    s.reduce_add(sum)
}

/// The factors of dropout for a block of keys.
pub struct Factors<'a> {
    pub mask: philox::Mask,
    /// A multiple of four.
    pub start: usize,
    pub out: &'a mut [f32; KEY_BLOCK],
}

impl Kernel for Factors<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (blocks, _) = self.out.as_chunks_mut::<{ philox::BLOCK }>();
        for (i, block) in blocks.iter_mut().enumerate() {
            self.mask.factors(self.start + i * philox::BLOCK, block);
        }
    }
}

/// Where the factors of a query's keys begin, in the numbering of dropout.
#[inline(always)]
pub fn dropout_start<T: Element, R>(call: &Call<T, R>, query: &Query) -> usize {
    call.number(query) * call.geometry.dropout_row()
}

/// Multiplies n weights by the factors of dropout.
///
/// # Safety
/// `t` is valid for reads and writes of `n` elements, `factors` for reads.
#[inline(always)]
pub unsafe fn multiply<S: Simd>(s: S, t: *mut f32, factors: *const f32, n: usize) {
    let mut i = 0;
    while i < n {
        // SAFETY: n − i elements are left of both.
        unsafe {
            let x = f32::load_upto(s, t.add(i), n - i);
            let x = s.mul(x, f32::load_upto(s, factors.add(i), n - i));
            f32::store_upto(s, t.add(i), n - i, x);
        }
        i += S::LANES;
    }
}
