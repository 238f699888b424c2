//! Loops over neighbouring elements: whole vectors, then the elements that don't fill one.

use super::simd::Simd;
use std::ops::Range;

/// The body of a loop over elements.
pub trait Pieces {
    /// Takes the elements from `i` on, of which `left` remain: a whole vector if `FULL`, else all of them, fewer than a
    /// vector. Must be `inline(always)`.
    ///
    /// # Safety
    /// The elements exist.
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize);
}

/// Takes the elements in `range`, each once and in order.
///
/// # Safety
/// The elements exist: `body` may be given any part of the range.
#[inline(always)]
pub unsafe fn for_each_piece<S: Simd, P: Pieces>(s: S, range: Range<usize>, body: &P) {
    let mut i = range.start;
    // SAFETY: the LANES elements from i on lie in the range, and at the end those that are left.
    unsafe {
        while i + S::LANES <= range.end {
            body.piece::<S, true>(s, i, range.end - i);
            i += S::LANES;
        }
        if i < range.end {
            body.piece::<S, false>(s, i, range.end - i);
        }
    }
}
