//! Sums to results.

use crate::cpu::element::Element;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::ops::activation::{cpu::forward_stretch, Act};

/// `out = act(sums + addend)`
pub struct Finish<T, O> {
    pub act: Act,
    pub narrow: Narrow<T, O>,
}

/// Sums that the first cache holds from one pass over them to the next.
const PIECE: usize = 2048;

impl<T: Element, O: Element> Finish<T, O> {
    /// With an activation, the sums are overwritten on the way.
    ///
    /// # Safety
    /// The sums have the rows of `narrow`, and so has the output.
    pub unsafe fn run(self) {
        let Finish { act, narrow } = self;
        if act == Act::Identity {
            return dispatch(narrow);
        }
        let width = narrow.width;
        let most = (PIECE / width).max(1);
        for i in (0..narrow.rows).step_by(most) {
            let rows = most.min(narrow.rows - i);
            let sums = narrow.sums.add(i * width);
            if let Some((p, row)) = narrow.addend {
                dispatch(Narrow {
                    sums,
                    rows,
                    width,
                    addend: Some((p.add(i * row), row)),
                    out: sums,
                    stride: width,
                });
            }
            forward_stretch(act, sums, rows * width);
            dispatch(Narrow::<T, O> {
                sums,
                rows,
                width,
                addend: None,
                out: narrow.out.add(i * narrow.stride),
                stride: narrow.stride,
            });
        }
    }
}

/// `out = sums + addend`
pub struct Narrow<T, O> {
    pub sums: *mut f32,
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
