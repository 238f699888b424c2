//! One head at one position.

use super::walk::HeadRow;
use crate::cpu::element::Element;
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::simd::Simd;

/// Rotates `pairs` pairs and copies the rest of the `dim` elements.
pub struct Rotate<const INTERLEAVED: bool> {
    pub pairs: usize,
    pub dim: usize,
}

impl<T: Element, const INTERLEAVED: bool> HeadRow<T, 1> for Rotate<INTERLEAVED> {
    #[inline(always)]
    unsafe fn row<S: Simd>(
        &self,
        s: S,
        _: usize,
        _: usize,
        [x]: [*const T; 1],
        y: *mut T,
        [cos, sin]: [*const f32; 2],
    ) {
        let Rotate { pairs, dim } = *self;
        let angles = Angles { cos, sin };
        // SAFETY: x and y have `dim` elements, and cos and sin are as `walk` promises; y may be x itself.
        unsafe {
            match INTERLEAVED {
                false => for_each_piece(
                    s,
                    0..pairs,
                    &Halves {
                        x: [x, x.add(pairs)],
                        y: [y, y.add(pairs)],
                        angles,
                    },
                ),
                true => for_each_piece(s, 0..2 * pairs, &Neighbours { x, y, angles }),
            }
            if 2 * pairs < dim && !std::ptr::eq(x, y) {
                let rest = 2 * pairs;
                std::ptr::copy_nonoverlapping(x.add(rest), y.add(rest), dim - rest);
            }
        }
    }
}

/// Both elements of pairs, rotated.
#[inline(always)]
pub fn rotate_piece<S: Simd>(s: S, [a, b]: [S::F; 2], cos: S::F, sin: S::F) -> [S::F; 2] {
    [s.fnma(b, sin, s.mul(a, cos)), s.fma(a, sin, s.mul(b, cos))]
}

/// Where the angles of a head's pairs lie.
struct Angles {
    cos: *const f32,
    sin: *const f32,
}

impl Angles {
    /// Cosines and sines from `i` on.
    ///
    /// # Safety
    /// Both have the elements that are asked for.
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) -> [S::F; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let cos = f32::load_piece::<S, FULL>(s, self.cos.add(i), left);
            let sin = f32::load_piece::<S, FULL>(s, self.sin.add(i), left);
            [cos, sin]
        }
    }
}

/// Element j with element j + pairs.
struct Halves<T> {
    x: [*const T; 2],
    y: [*mut T; 2],
    angles: Angles,
}

impl<T: Element> Pieces for Halves<T> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        // SAFETY: both halves, cos and sin have the pairs that are asked for.
        unsafe {
            let x = self.x.map(|x| T::load_piece::<S, FULL>(s, x.add(i), left));
            let [cos, sin] = self.angles.piece::<S, FULL>(s, i, left);
            let y = rotate_piece(s, x, cos, sin);
            T::store_piece::<S, FULL>(s, self.y[0].add(i), left, y[0]);
            T::store_piece::<S, FULL>(s, self.y[1].add(i), left, y[1]);
        }
    }
}

/// Element 2j with element 2j + 1: `x · cos + swapped x · ±sin`.
struct Neighbours<T> {
    x: *const T,
    y: *mut T,
    angles: Angles,
}

impl<T: Element> Pieces for Neighbours<T> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        // SAFETY: x, y, cos and sin have the elements that are asked for, an even number of them.
        unsafe {
            let x = T::load_piece::<S, FULL>(s, self.x.add(i), left);
            let [cos, sin] = self.angles.piece::<S, FULL>(s, i, left);
            let y = s.fma(s.swap_pairs(x), sin, s.mul(x, cos));
            T::store_piece::<S, FULL>(s, self.y.add(i), left, y);
        }
    }
}
