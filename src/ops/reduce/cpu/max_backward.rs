//! The gradient of the maximum: g where x equals its row's maximum, else 0.

use super::super::{Over, NAME};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather, with_float};
use crate::op::on_cpu::{Args, OpResult};

/// Longer rows are cut into blocks of this many columns, which threads can share.
const BLOCK: usize = 64 * 1024;

pub fn max_backward(over: Over, args: Args) -> OpResult {
    let ((x, xl), (y, yl), (g, gl)) = (args[0], args[1], args[2]);
    let (rows, cols) = over.split(xl.shape());
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, xl);
        let y = gather::contiguous(y.as_slice::<T>()?, yl);
        let g = gather::contiguous(g.as_slice::<T>()?, gl);
        let blocks = cols.div_ceil(BLOCK);
        // SAFETY: the blocks are disjoint and cover all of the output.
        let dx = unsafe {
            alloc::build(rows * cols, |out: *mut T| {
                let out = Shared::new(out);
                parallel::ranges(rows * blocks, cols.min(BLOCK), 1, |units| {
                    for unit in units {
                        let (row, at) = (unit / blocks, unit % blocks * BLOCK);
                        let start = row * cols + at;
                        dispatch(PickMax {
                            x: &x[start..start + BLOCK.min(cols - at)],
                            y: y[row].widen(),
                            g: g[row].widen(),
                            out: Shared::new(out.get().add(start)),
                        });
                    }
                });
            })
        };
        Ok(T::wrap(dx))
    })?;
    Ok((out, xl.shape().clone()))
}

/// `out` has as many elements as x.
struct PickMax<'a, T> {
    x: &'a [T],
    y: f32,
    g: f32,
    out: Shared<T>,
}

impl<T: Element> Kernel for PickMax<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `x` and `out` have this many elements.
        unsafe { for_each_piece(s, 0..self.x.len(), &self) }
    }
}

impl<T: Element> Pieces for PickMax<'_, T> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        // SAFETY: `run` asks for elements of `x`, and `out` has as many.
        unsafe {
            let x = T::load_piece::<S, FULL>(s, self.x.as_ptr().add(i), left);
            let pick = s.eq(x, s.splat(self.y));
            let dx = s.select(pick, s.splat(self.g), s.splat(0.0));
            T::store_piece::<S, FULL>(s, self.out.get().add(i), left, dx);
        }
    }
}
