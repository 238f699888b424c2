//! Sums to results.

use crate::cpu::element::Element;
use crate::cpu::simd::{Kernel, Simd};

/// `out = sums + addend`
pub struct Narrow<T, O> {
    pub sums: *const f32,
    pub rows: usize,
    pub width: usize,
    /// Where its rows begin, and how far apart they are.
    pub addend: Option<(*const T, usize)>,
    pub out: *mut O,
    /// From row to row of the output.
    pub stride: usize,
}

impl<T: Element, O: Element> Kernel for Narrow<T, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..self.rows {
            // SAFETY: the sums have these rows, and so has the output.
            unsafe {
                let (from, to) = (self.sums.add(i * self.width), self.out.add(i * self.stride));
                for j in (0..self.width).step_by(S::LANES) {
                    let left = self.width - j;
                    let mut y = f32::load_upto(s, from.add(j), left);
                    if let Some((p, row)) = self.addend {
                        y = s.add(y, T::load_upto(s, p.add(i * row + j), left));
                    }
                    O::store_upto(s, to.add(j), left, y);
                }
            }
        }
    }
}
