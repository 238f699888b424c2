//! Vectors are widened to f32, which keeps every f16 and bf16, and rounded once.

use super::NAME;
use crate::check;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather, with_float};
use crate::op::on_cpu::{Arg, OpResult};
use candle_core::DType;
use half::{bf16, f16};

pub fn forward(dtype: DType, (x, l): Arg) -> OpResult {
    let y = with_float!(NAME, x, |x: &[T]| {
        let x = &gather::contiguous(x, l);
        match dtype {
            DType::F32 => Ok(f32::wrap(convert::<T, f32>(x))),
            DType::F16 => Ok(f16::wrap(convert::<T, f16>(x))),
            DType::BF16 => Ok(bf16::wrap(convert::<T, bf16>(x))),
            other => Err(check::unsupported_dtype(NAME, other)),
        }
    })?;
    Ok((y, l.shape().clone()))
}

fn convert<T: Element, O: Element>(x: &[T]) -> Vec<O> {
    // SAFETY: the ranges cover all elements, and `Convert` writes those of its slice.
    unsafe {
        alloc::build(x.len(), |out: *mut O| {
            let out = Shared::new(out);
            parallel::ranges(x.len(), 1, 64, |range| {
                let out = Shared::new(out.get().add(range.start));
                dispatch(Convert::new(&x[range], out));
            });
        })
    }
}

struct Convert<'a, T, O> {
    x: &'a [T],
    out: Shared<O>,
}

impl<'a, T, O> Convert<'a, T, O> {
    /// # Safety
    /// `out` is valid for writes of as many elements as x has, and nothing else touches them.
    unsafe fn new(x: &'a [T], out: Shared<O>) -> Self {
        Convert { x, out }
    }
}

impl<T: Element, O: Element> Kernel for Convert<'_, T, O> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, out, n) = (self.x.as_ptr(), self.out.get(), self.x.len());
        for i in (0..n).step_by(S::LANES) {
            // SAFETY: n − i elements are left of x, and as many of the output.
            unsafe { O::store_upto(s, out.add(i), n - i, T::load_upto(s, x.add(i), n - i)) };
        }
    }
}
