//! Elements of any float dtype as f32.

use crate::cpu::alloc;
use crate::cpu::element::{convert, Element};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use candle_core::DType;
use std::borrow::Cow;

/// The elements in f32: themselves if they are, else a copy.
pub fn widened<T: Element>(data: &[T]) -> Cow<'_, [f32]> {
    if T::DTYPE == DType::F32 {
        // SAFETY: T is f32.
        return Cow::Borrowed(unsafe {
            std::slice::from_raw_parts(data.as_ptr().cast(), data.len())
        });
    }
    // SAFETY: `WidenSlice` writes as many elements as the slice has, and `to` has room for them.
    Cow::Owned(unsafe { alloc::build(data.len(), |to| dispatch(WidenSlice { data, to })) })
}

/// `to` is valid for writes of as many elements as `data` has; made by [`widened`] alone.
struct WidenSlice<'a, T> {
    data: &'a [T],
    to: *mut f32,
}

impl<T: Element> Kernel for WidenSlice<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `to` has room for all of `data`.
        unsafe { convert(s, self.data.as_ptr(), self.to, self.data.len()) }
    }
}
