//! Sums in parts of a fixed length, so that no result depends on the number of threads; maps in place.

use super::NAME;
use crate::check;
use crate::cpu::element::Element;
use crate::cpu::elementwise::{self, map_run, ElementwiseOp, Map};
use crate::cpu::fold::{fold, SumSquares};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{gather, with_float};
use crate::op::on_cpu::{Arg, ArgMut};
use candle_core::{CpuStorage, Result};
use std::ops::Range;

/// Elements that are added up in f32. With 4096, NEON's four lanes have lost 3e-6 of a sum.
const PART: usize = 512;

pub fn sum_squares((x, l): Arg) -> Result<f64> {
    with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous::<T>(x, l);
        let mut sums = vec![0f32; x.len().div_ceil(PART)];
        let out = Shared::new(sums.as_mut_ptr());
        parallel::ranges(x.len(), 1, PART, |range| {
            dispatch(Parts { x: &x, out, range })
        });
        Ok(sums.into_iter().map(f64::from).sum())
    })
}

/// The parts of a range, which begins at one. Only this thread writes their sums.
struct Parts<'a, T> {
    x: &'a [T],
    out: Shared<f32>,
    range: Range<usize>,
}

impl<T: Element> Kernel for Parts<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let end = self.range.end;
        for start in self.range.step_by(PART) {
            let x = &self.x[start..end.min(start + PART)];
            // SAFETY: the slice has its length; there is a sum for each part, written by this thread alone.
            unsafe {
                let [sum] = fold(s, SumSquares, [x.as_ptr()], x.len());
                *self.out.get().add(start / PART) = sum;
            }
        }
    }
}

#[derive(Clone, Copy)]
struct By(f32);

impl Map<1, 1> for By {
    const COST: usize = 1;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, [x]: [S::F; 1]) -> [S::F; 1] {
        [s.mul(x, s.splat(self.0))]
    }
}

impl<T: Element> ElementwiseOp<T, 1, 1> for By {
    fn cost(&self) -> usize {
        1
    }
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S, _: usize, x: [*const T; 1], y: [*mut T; 1], n: usize) {
        // SAFETY: the caller's contract is that of `map_run`.
        unsafe { map_run(s, *self, x, y, n) }
    }
}

pub fn scale(factor: f32, (x, l): ArgMut) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        gather::update(x, l, |x: &mut [T]| {
            elementwise::map_in_place(x, [], By(factor))
        });
        Ok(())
    })
}

/// sum ← sum + x, for a range that no other thread works at.
struct Add<'a, T> {
    sum: Shared<f32>,
    x: &'a [T],
    range: Range<usize>,
}

impl<T: Element> Kernel for Add<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let x = &self.x[self.range.clone()];
        for i in (0..x.len()).step_by(S::LANES) {
            let left = x.len() - i;
            // SAFETY: the sum is as long as x, and n − i elements of the range are left.
            unsafe {
                let sum = self.sum.get().add(self.range.start + i);
                let x = T::load_upto(s, x.as_ptr().add(i), left);
                f32::store_upto(s, sum, left, s.add(f32::load_upto(s, sum, left), x));
            }
        }
    }
}

pub fn add((sum, l): ArgMut, (x, xl): Arg) -> Result<()> {
    let CpuStorage::F32(sum) = sum else {
        return Err(check::error(NAME, "sums are kept in f32"));
    };
    with_float!(NAME, x, |x: &[T]| {
        let (x, mut fits) = (gather::contiguous::<T>(x, xl), true);
        gather::update(sum, l, |sum: &mut [f32]| {
            fits = sum.len() == x.len();
            if fits {
                let to = Shared::new(sum.as_mut_ptr());
                parallel::ranges(x.len(), 1, 64, |range| {
                    dispatch(Add {
                        sum: to,
                        x: &x,
                        range,
                    })
                });
            }
        });
        check::ensure(fits, NAME, "got a gradient of another size than its sum")
    })
}
