//! One head at a time: measured, then normed and rotated while it is in the L1 cache. The gradient rotates twice instead
//! of keeping what it rotated.

use super::head::{load, turned, vectors, Head, HeadPiece};
use crate::cpu::element::Element;
use crate::cpu::fold::{fold, SumSquares};
use crate::cpu::parallel::Shared;
use crate::cpu::simd::Simd;
use crate::ops::rope::cpu::HeadRow;

pub struct Forward<'a, const KIND: u8>(pub Head<'a>);

impl<T: Element, const KIND: u8> HeadRow<T, 1> for Forward<'_, KIND> {
    #[inline(always)]
    unsafe fn row<S: Simd>(
        &self,
        s: S,
        _: usize,
        stream: usize,
        [x]: [*const T; 1],
        y: *mut T,
        tables: [*const f32; 2],
    ) {
        let head = self.0;
        // SAFETY: x and y have `dim` elements, as the weights have; cos and sin are as `walk` promises.
        unsafe {
            let [squares] = fold(s, SumSquares, [x], head.dim);
            let mut piece = ForwardPiece {
                x,
                y,
                weight: head.weights.0[stream].as_ptr(),
                tables,
                pairs: head.pairs,
                scale: scale(squares, head),
            };
            head.for_each::<S, KIND, _>(s, &mut piece);
        }
    }
}

/// `1 / √(mean square + eps)`
#[inline(always)]
fn scale(squares: f32, head: Head) -> f32 {
    1.0 / (squares / head.dim as f32 + head.eps).sqrt()
}

struct ForwardPiece<T> {
    x: *const T,
    y: *mut T,
    weight: *const f32,
    tables: [*const f32; 2],
    pairs: usize,
    scale: f32,
}

impl<S: Simd, T: Element> HeadPiece<S> for ForwardPiece<T> {
    #[inline(always)]
    unsafe fn piece<const KIND: u8, const FULL: bool>(&mut self, s: S, i: usize, left: usize) {
        let at = [i, self.pairs + i];
        // SAFETY: the head has these elements, and the weight as many.
        unsafe {
            let mut v = load::<S, T, KIND, FULL>(s, self.x, at, left);
            let weight = load::<S, f32, KIND, FULL>(s, self.weight, at, left);
            for n in 0..vectors(KIND) {
                v[n] = s.mul(s.mul(v[n], s.splat(self.scale)), weight[n]);
            }
            let v = turned::<S, KIND, FULL>(s, v, self.tables, i, left);
            for n in 0..vectors(KIND) {
                T::store_piece::<S, FULL>(s, self.y.add(at[n]), left, v[n]);
            }
        }
    }
}

/// With sums for both streams of each unit, `dim` for each, if `WEIGHTS`.
pub struct Backward<'a, const KIND: u8, const WEIGHTS: bool>(pub Head<'a>, pub Shared<f32>);

impl<T: Element, const KIND: u8, const WEIGHTS: bool> HeadRow<T, 2>
    for Backward<'_, KIND, WEIGHTS>
{
    #[inline(always)]
    unsafe fn row<S: Simd>(
        &self,
        s: S,
        unit: usize,
        stream: usize,
        [x, g]: [*const T; 2],
        y: *mut T,
        tables: [*const f32; 2],
    ) {
        let head = self.0;
        let weight = head.weights.0[stream].as_ptr();
        let grad = Grad {
            x,
            g,
            weight,
            tables,
            pairs: head.pairs,
        };
        // SAFETY: x, g and y have `dim` elements, as the weights and the sums have; cos and sin are as `walk` promises. A unit
        // runs on one thread, so that nothing else touches its sums.
        unsafe {
            let [squares] = fold(s, SumSquares, [x], head.dim);
            let scale = scale(squares, head);
            let mut dots = Dots::<S, T> {
                grad,
                sums: [s.splat(0.0); 2],
            };
            head.for_each::<S, KIND, _>(s, &mut dots);
            let dot = s.reduce_add(s.add(dots.sums[0], dots.sums[1]));
            let mut write = Write::<T, WEIGHTS> {
                grad,
                dx: y,
                dweight: match WEIGHTS {
                    true => self.1.get().add((2 * unit + stream) * head.dim),
                    false => self.1.get(),
                },
                scale,
                // x̂ · mean(h · x̂) is x times this, and times the scale once more as all of dx.
                slope: dot * scale * scale / head.dim as f32,
            };
            head.for_each::<S, KIND, _>(s, &mut write);
        }
    }
}

/// What the gradient of a head is made of. The tables rotate back.
struct Grad<T> {
    x: *const T,
    g: *const T,
    weight: *const f32,
    tables: [*const f32; 2],
    pairs: usize,
}

impl<T> Clone for Grad<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Grad<T> {}

impl<T: Element> Grad<T> {
    /// x, u and h = u · weight of a piece.
    ///
    /// # Safety
    /// The head has these elements.
    #[inline(always)]
    unsafe fn load<S: Simd, const KIND: u8, const FULL: bool>(
        &self,
        s: S,
        i: usize,
        left: usize,
    ) -> [[S::F; 2]; 3] {
        let at = [i, self.pairs + i];
        // SAFETY: the caller has the elements, and the weight has as many.
        unsafe {
            let x = load::<S, T, KIND, FULL>(s, self.x, at, left);
            let g = load::<S, T, KIND, FULL>(s, self.g, at, left);
            let weight = load::<S, f32, KIND, FULL>(s, self.weight, at, left);
            let u = turned::<S, KIND, FULL>(s, g, self.tables, i, left);
            [x, u, [s.mul(u[0], weight[0]), s.mul(u[1], weight[1])]]
        }
    }
}

/// Σ h · x
struct Dots<S: Simd, T> {
    grad: Grad<T>,
    sums: [S::F; 2],
}

impl<S: Simd, T: Element> HeadPiece<S> for Dots<S, T> {
    #[inline(always)]
    unsafe fn piece<const KIND: u8, const FULL: bool>(&mut self, s: S, i: usize, left: usize) {
        // SAFETY: the head has these elements.
        let [x, _, h] = unsafe { self.grad.load::<S, KIND, FULL>(s, i, left) };
        for n in 0..vectors(KIND) {
            self.sums[n] = s.fma(h[n], x[n], self.sums[n]);
        }
    }
}

/// dx = (h − x · slope) · scale, and dweight += u · x̂.
struct Write<T, const WEIGHTS: bool> {
    grad: Grad<T>,
    dx: *mut T,
    dweight: *mut f32,
    scale: f32,
    slope: f32,
}

impl<S: Simd, T: Element, const WEIGHTS: bool> HeadPiece<S> for Write<T, WEIGHTS> {
    #[inline(always)]
    unsafe fn piece<const KIND: u8, const FULL: bool>(&mut self, s: S, i: usize, left: usize) {
        let at = [i, self.grad.pairs + i];
        let scale = s.splat(self.scale);
        // SAFETY: the head has these elements, and the sums, if they are wanted, as many.
        unsafe {
            let [x, u, h] = self.grad.load::<S, KIND, FULL>(s, i, left);
            for n in 0..vectors(KIND) {
                let dx = s.mul(s.fnma(x[n], s.splat(self.slope), h[n]), scale);
                T::store_piece::<S, FULL>(s, self.dx.add(at[n]), left, dx);
                if WEIGHTS {
                    let sum = self.dweight.add(at[n]);
                    let normed = s.mul(x[n], scale);
                    let v = s.fma(u[n], normed, f32::load_piece::<S, FULL>(s, sum, left));
                    f32::store_piece::<S, FULL>(s, sum, left, v);
                }
            }
        }
    }
}
