//! The vectors of one head, whichever of its elements are rotated together.

use crate::cpu::element::Element;
use crate::cpu::gather;
use crate::cpu::pieces::each_piece;
use crate::cpu::simd::Simd;
use crate::op::on_cpu::Arg;
use crate::ops::qk_norm_rope::NormRope;
use crate::ops::rope::cpu::rotate_piece;
use candle_core::Result;
use std::ops::Range;

/// The factors of q's and of k's elements in f32, the offset added.
pub struct Weights(pub [Vec<f32>; 2]);

impl Weights {
    pub fn new<T: Element>(op: &NormRope, weights: [Arg; 2]) -> Result<Self> {
        let of = |(w, l): Arg| {
            let w = gather::contiguous(w.as_slice::<T>()?, l);
            let wide = w.iter().map(|w| w.widen() + op.weight_offset);
            Ok::<Vec<f32>, candle_core::Error>(wide.collect())
        };
        Ok(Weights([of(weights[0])?, of(weights[1])?]))
    }
}

/// Heads of `dim` elements, of which `pairs` pairs are rotated. The weights have `dim` elements too.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub pairs: usize,
    pub dim: usize,
    pub eps: f32,
    pub weights: &'a Weights,
}

// How the elements of a vector are rotated: with those of another vector, with their neighbours, or not at all.
pub const HALF: u8 = 0;
pub const NEIGHBOURS: u8 = 1;
pub const REST: u8 = 2;

impl Head<'_> {
    /// Calls `f` for all vectors of a head whose pairs are of this `KIND`.
    ///
    /// # Safety
    /// `f` may be asked for any element of a head.
    #[inline(always)]
    pub unsafe fn for_each<S: Simd, const KIND: u8, F: HeadPiece<S>>(&self, s: S, f: &mut F) {
        let (rotated, rest) = (2 * self.pairs, 2 * self.pairs..self.dim);
        // SAFETY: the elements lie in the head, and for HALF so do those that are `pairs` behind the first half.
        unsafe {
            match KIND {
                HALF => f.range::<HALF>(s, 0..self.pairs),
                _ => f.range::<NEIGHBOURS>(s, 0..rotated),
            }
            f.range::<REST>(s, rest)
        }
    }
}

/// The body of a loop over the vectors of a head. All methods must be `inline(always)`.
pub trait HeadPiece<S: Simd> {
    /// Takes a vector from element i on, of which `left` remain, and for [`HALF`] that of its partners too.
    ///
    /// # Safety
    /// The head has these elements.
    unsafe fn piece<const KIND: u8, const FULL: bool>(&mut self, s: S, i: usize, left: usize);

    /// # Safety
    /// The head has these elements.
    #[inline(always)]
    unsafe fn range<const KIND: u8>(&mut self, s: S, range: Range<usize>) {
        // SAFETY: the elements lie in the range.
        unsafe {
            each_piece!(S, range, |FULL, i, left| self
                .piece::<KIND, FULL>(s, i, left))
        }
    }
}

/// How many vectors a piece has.
pub const fn vectors(kind: u8) -> usize {
    match kind {
        HALF => 2,
        _ => 1,
    }
}

/// The vectors of a piece, rotated. `at` is its first element.
///
/// # Safety
/// cos and sin have numbers for the piece.
#[inline(always)]
pub unsafe fn turned<S: Simd, const KIND: u8, const FULL: bool>(
    s: S,
    v: [S::F; 2],
    [cos, sin]: [*const f32; 2],
    at: usize,
    left: usize,
) -> [S::F; 2] {
    if KIND == REST {
        return v;
    }
    // SAFETY: the caller has them.
    let [cos, sin] = unsafe {
        [
            f32::load_piece::<S, FULL>(s, cos.add(at), left),
            f32::load_piece::<S, FULL>(s, sin.add(at), left),
        ]
    };
    match KIND {
        HALF => rotate_piece(s, v, cos, sin),
        _ => [s.fma(s.swap_pairs(v[0]), sin, s.mul(v[0], cos)), v[1]],
    }
}

/// The vectors of a piece.
///
/// # Safety
/// `p` has the elements of the piece.
#[inline(always)]
pub unsafe fn load<S: Simd, T: Element, const KIND: u8, const FULL: bool>(
    s: S,
    p: *const T,
    at: [usize; 2],
    left: usize,
) -> [S::F; 2] {
    let mut v = [s.splat(0.0); 2];
    for n in 0..vectors(KIND) {
        // SAFETY: the caller has the elements.
        v[n] = unsafe { T::load_piece::<S, FULL>(s, p.add(at[n]), left) };
    }
    v
}
