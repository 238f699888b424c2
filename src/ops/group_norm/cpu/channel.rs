//! What is done to neighbouring elements of one channel, which may be few. Batch norm does the same.

use crate::cpu::element::Element;
use crate::cpu::moments::{normed, Moments};
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::simd::Simd;
use crate::ops::row_norm::cpu::row_grad;

/// The body of a loop over the elements of a channel, which may be few.
pub trait Elements: Pieces {
    /// Takes element `i` alone. Must be `inline(always)`.
    ///
    /// # Safety
    /// The element exists.
    unsafe fn element<S: Simd>(&self, s: S, i: usize);
}

/// Takes the first `n` elements. Less than a vector goes element by element, which takes less time than copies to and from
/// a padded vector.
///
/// # Safety
/// The elements exist.
#[inline(always)]
pub unsafe fn for_each_element<S: Simd, E: Elements>(s: S, n: usize, body: &E) {
    // SAFETY: the loops ask for the elements below n alone.
    unsafe {
        if n >= S::LANES {
            return for_each_piece(s, 0..n, body);
        }
        for i in 0..n {
            body.element(s, i);
        }
    }
}

/// y = x̂ · weight + bias, over elements of one channel.
pub struct Channel<T> {
    pub x: *const T,
    pub y: *mut T,
    pub moments: Moments,
    pub weight: f32,
    pub bias: f32,
}

impl<T: Element> Elements for Channel<T> {
    #[inline(always)]
    unsafe fn element<S: Simd>(&self, s: S, i: usize) {
        // SAFETY: x and y have an element i.
        unsafe {
            let x = self.moments.apply_one((*self.x.add(i)).widen_in(s));
            self.y
                .add(i)
                .write(T::narrow_in(s, x * self.weight + self.bias));
        }
    }
}

impl<T: Element> Pieces for Channel<T> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        // SAFETY: x and y have the elements that are asked for.
        unsafe {
            let x = normed::<S, T, true, FULL>(s, self.moments, self.x.add(i), left);
            let y = s.fma(x, s.splat(self.weight), s.splat(self.bias));
            T::store_piece::<S, FULL>(s, self.y.add(i), left, y);
        }
    }
}

/// dx = (g · weight − x̂ · slope − offset) · scale, over elements of one channel.
pub struct ChannelGrad<T> {
    pub x: *const T,
    pub g: *const T,
    pub dx: *mut T,
    pub moments: Moments,
    pub weight: f32,
    pub slope: f32,
    pub offset: f32,
}

impl<T: Element> Elements for ChannelGrad<T> {
    #[inline(always)]
    unsafe fn element<S: Simd>(&self, s: S, i: usize) {
        // SAFETY: x, g and dx have an element i.
        unsafe {
            let x = self.moments.apply_one((*self.x.add(i)).widen_in(s));
            let h = (*self.g.add(i)).widen_in(s) * self.weight;
            let dx = (h - self.offset - x * self.slope) * self.moments.scale;
            self.dx.add(i).write(T::narrow_in(s, dx));
        }
    }
}

impl<T: Element> Pieces for ChannelGrad<T> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        // SAFETY: x, g and dx have the elements that are asked for.
        unsafe {
            let g = T::load_piece::<S, FULL>(s, self.g.add(i), left);
            let x = normed::<S, T, true, FULL>(s, self.moments, self.x.add(i), left);
            let h = s.mul(g, s.splat(self.weight));
            let dx = row_grad(s, self.moments, h, x, [self.slope, self.offset]);
            T::store_piece::<S, FULL>(s, self.dx.add(i), left, dx);
        }
    }
}

/// Element `i` of a weight or bias, or `default` without one.
#[inline(always)]
pub fn at<S: Simd, T: Element>(s: S, vector: Option<&[T]>, i: usize, default: f32) -> f32 {
    match vector {
        Some(v) => v[i].widen_in(s),
        None => default,
    }
}
