//! Several rows joined to one, element by element, in f32: what windows and interpolations do along the height.

use super::element::Element;
use super::simd::Simd;

/// How rows are joined.
///
/// What an implementation must satisfy: `join` is `inline(always)`, and a lane of a result depends on the same lane of the
/// arguments alone.
pub trait Join: Copy + Send + Sync + 'static {
    /// What no row gives.
    const START: f32;
    /// What has been joined, with an element of one more row and the weight of that row.
    fn join<S: Simd>(s: S, joined: S::F, x: S::F, weight: S::F) -> S::F;
    /// As `join`, of one element with weight 1.
    fn join_one(joined: f32, x: f32) -> f32;
}

/// Σ weight · x
#[derive(Clone, Copy)]
pub struct Sum;

impl Join for Sum {
    const START: f32 = 0.0;
    #[inline(always)]
    fn join<S: Simd>(s: S, joined: S::F, x: S::F, weight: S::F) -> S::F {
        s.fma(x, weight, joined)
    }
    #[inline(always)]
    fn join_one(joined: f32, x: f32) -> f32 {
        joined + x
    }
}

/// The largest x, whatever the weights. NaNs are passed over.
#[derive(Clone, Copy)]
pub struct Max;

impl Join for Max {
    const START: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn join<S: Simd>(s: S, joined: S::F, x: S::F, _: S::F) -> S::F {
        // `max` returns its second operand if either is NaN.
        s.max(x, joined)
    }
    #[inline(always)]
    fn join_one(joined: f32, x: f32) -> f32 {
        if x > joined {
            x
        } else {
            joined
        }
    }
}

/// A row, and what its elements are multiplied by.
pub type Weighted<T> = (*const T, f32);

/// Joins the rows in their order, `n` elements of each.
///
/// # Safety
/// Each row is valid for reads of `n` elements and `to` for writes of as many, and they don't overlap.
#[inline(always)]
pub unsafe fn join_rows<S: Simd, T: Element, J: Join>(
    s: S,
    rows: &[Weighted<T>],
    to: *mut f32,
    n: usize,
) {
    let mut i = 0;
    while i < n {
        let mut joined = s.splat(J::START);
        // SAFETY: n − i elements are left of each row and of `to`.
        unsafe {
            for &(row, weight) in rows {
                let x = T::load_upto(s, row.add(i), n - i);
                joined = J::join(s, joined, x, s.splat(weight));
            }
            f32::store_upto(s, to.add(i), n - i, joined);
        }
        i += S::LANES;
    }
}
