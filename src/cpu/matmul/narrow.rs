//! The epilogue of products: sums in f32 become outputs, with an addend and an activation, rounded once.

use crate::act::Act;
use crate::cpu::act::apply_in_place;
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};

/// `out = act(sums + addend)` for a matrix of sums.
pub struct Narrow<T, O> {
    sums: *mut f32,
    rows: usize,
    width: usize,
    /// Elements from row to row of the sums.
    row: usize,
    /// Where its rows begin, and the elements from row to row; 0 for a bias.
    addend: Option<(*const T, usize)>,
    out: *mut O,
    /// Elements from row to row of the output.
    stride: usize,
}

/// Sums that stay in the L1 cache from one pass over them to the next: 8 kB.
const BLOCK: usize = 2048;

impl<T: Element, O: Element> Narrow<T, O> {
    /// `rows` rows of `width` sums, one behind the other; rows of the output are `stride` elements apart.
    ///
    /// # Safety
    /// The sums are initialised and valid for writes. The addend has as many elements in as many rows. `out` is valid for
    /// writes of as many, and nothing else touches these outputs or the sums.
    pub unsafe fn new(
        (sums, rows, width): (*mut f32, usize, usize),
        addend: Option<(*const T, usize)>,
        out: *mut O,
        stride: usize,
    ) -> Self {
        Narrow {
            sums,
            rows,
            width,
            row: width,
            addend,
            out,
            stride,
        }
    }

    /// The same, of sums whose rows are `row` elements apart.
    ///
    /// # Safety
    /// The sums are initialised and valid for writes there.
    pub unsafe fn apart(self, row: usize) -> Self {
        Narrow { row, ..self }
    }

    /// Writes the outputs. With an activation, the sums are overwritten on the way.
    pub fn run(self, act: Act) {
        if act == Act::Identity {
            return dispatch(self);
        }
        let Narrow {
            rows,
            width,
            row,
            out,
            stride,
            ..
        } = self;
        // The numbers between the rows would be activated too: they may be anything.
        let most = match row == width {
            true => (BLOCK / width.max(1)).max(1),
            false => 1,
        };
        for first in (0..rows).step_by(most) {
            let count = most.min(rows - first);
            // SAFETY: first + count ≤ rows, so the sums, the addend and the outputs have these rows (see `new`).
            unsafe {
                let sums = self.sums.add(first * row);
                let block = (sums, count, width);
                if let Some((p, row)) = self.addend {
                    dispatch(Narrow::new(
                        block,
                        Some((p.add(first * row), row)),
                        sums,
                        width,
                    ));
                }
                apply_in_place(act, std::slice::from_raw_parts_mut(sums, count * width));
                let out = out.add(first * stride);
                dispatch(Narrow::<T, O>::new(block, None, out, stride));
            }
        }
    }
}

/// Sums of products that were added up elsewhere, rounded.
pub fn rounded<O: Element>(sums: &[f32]) -> Vec<O> {
    // SAFETY: the ranges cover all sums without overlap, and `Narrow` writes an output for each. It does not write to the sums
    // without an activation.
    unsafe {
        alloc::build(sums.len(), |out: *mut O| {
            let (out, first) = (Shared::new(out), Shared::new(sums.as_ptr().cast_mut()));
            parallel::ranges(sums.len(), 1, 64, |range| {
                let (sums, out) = (first.get().add(range.start), out.get().add(range.start));
                Narrow::<O, O>::new((sums, 1, range.len()), None, out, 0).run(Act::Identity)
            });
        })
    }
}

impl<T: Element, O: Element> Kernel for Narrow<T, O> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..self.rows {
            // SAFETY: i < rows, and j < width: `new` asked for these sums, addends and outputs.
            unsafe {
                let (from, to) = (self.sums.add(i * self.row), self.out.add(i * self.stride));
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
