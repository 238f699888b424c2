//! What register blocks are computed with: vectors of numbers or of pairs, and their products.

use crate::cpu::simd::Simd;

pub trait Lanes: Copy {
    const LANES: usize;
    /// A vector of sums or of elements of B.
    type V: Copy;
    /// An element of A, which is multiplied with all lanes.
    type X: Copy;
    fn zeros(self) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// x·b + c
    fn fma(self, x: Self::X, b: Self::V, c: Self::V) -> Self::V;
    /// # Safety
    /// `p` is valid for reads of an element, which need not be aligned.
    unsafe fn repeat(self, p: *const f32) -> Self::X;
    /// # Safety
    /// `p` is valid for reads of a vector, which need not be aligned.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// # Safety
    /// `p` is valid for writes of a vector.
    unsafe fn store(self, p: *mut f32, x: Self::V);
}

impl<S: Simd> Lanes for S {
    const LANES: usize = S::LANES;
    type V = S::F;
    type X = S::F;
    #[inline(always)]
    fn zeros(self) -> S::F {
        self.splat(0.0)
    }
    #[inline(always)]
    fn add(self, a: S::F, b: S::F) -> S::F {
        Simd::add(self, a, b)
    }
    #[inline(always)]
    fn fma(self, x: S::F, b: S::F, c: S::F) -> S::F {
        Simd::fma(self, x, b, c)
    }
    #[inline(always)]
    unsafe fn repeat(self, p: *const f32) -> S::F {
        // SAFETY: the contract is the same.
        self.splat(unsafe { p.read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { self.load_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: S::F) {
        // SAFETY: the contract is the same.
        unsafe { self.store_f32(p, x) }
    }
}
