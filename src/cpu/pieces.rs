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

/// The loop over the pieces of a range: `$body` with the constant `$full`, the first element `$i` and the number `$left` of each, as
/// for [`Pieces::piece`]. The elements lie in the range.
macro_rules! each_piece {
    ($simd:ident, $range:expr, |$full:ident, $i:ident, $left:ident| $body:expr) => {{
        let range: std::ops::Range<usize> = $range;
        let mut $i = range.start;
        while $i + $simd::LANES <= range.end {
            const $full: bool = true;
            let $left = range.end - $i;
            $body;
            $i += $simd::LANES;
        }
        if $i < range.end {
            const $full: bool = false;
            let $left = range.end - $i;
            $body;
        }
    }};
}
pub(crate) use each_piece;

/// Takes the elements in `range`, each once and in order.
///
/// # Safety
/// The elements exist: `body` may be given any part of the range.
#[inline(always)]
pub unsafe fn for_each_piece<S: Simd, P: Pieces>(s: S, range: Range<usize>, body: &P) {
    // SAFETY: the elements lie in the range.
    unsafe { each_piece!(S, range, |FULL, i, left| body.piece::<S, FULL>(s, i, left)) }
}
