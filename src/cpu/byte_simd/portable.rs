//! Plain Rust, for CPUs without the other instruction sets and as the oracle of their tests. The loops over the bytes of a
//! vector are functions that are never inlined: unrolled into every kernel they were a tenth of this crate's code.

use super::{ByteKernel, ByteSimd};
use std::array::from_fn;

const LANES: usize = 8;

#[derive(Clone, Copy)]
pub struct Portable;

#[cold]
#[inline(never)]
pub fn run<K: ByteKernel>(kernel: K) {
    kernel.run(Portable)
}

#[inline(never)]
fn shift_and_mask(v: &[u8; 32], shift: i32, mask: u8) -> [u8; 32] {
    from_fn(|i| (v[i] >> shift) & mask)
}

#[inline(never)]
fn add_products(sum: &mut [i32; LANES], codes: &[u8; 32], x: &[u8; 32]) {
    for (j, (&code, &x)) in codes.iter().zip(x).enumerate() {
        sum[j / 4] += i32::from(code) * i32::from(x as i8);
    }
}

impl ByteSimd for Portable {
    type V = [u8; 32];
    type Sum = [i32; LANES];
    type F = [f32; LANES];

    #[inline(always)]
    fn zero(self) -> Self::Sum {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> [u8; 32] {
        // SAFETY: the caller promises that `p` is valid for reads of a whole vector.
        unsafe { p.cast::<[u8; 32]>().read_unaligned() }
    }
    #[inline(always)]
    fn codes<const MASK: i32, const SHIFT: i32>(self, v: [u8; 32]) -> [u8; 32] {
        shift_and_mask(&v, SHIFT, MASK as u8)
    }
    #[inline(always)]
    fn dot<const N: usize>(
        self,
        mut sum: Self::Sum,
        codes: [[u8; 32]; N],
        x: [[u8; 32]; N],
    ) -> Self::Sum {
        for (codes, x) in codes.iter().zip(&x) {
            add_products(&mut sum, codes, x);
        }
        sum
    }
    #[inline(always)]
    fn dot_bytes(self, sum: Self::Sum, codes: [u8; 32], x: [u8; 32]) -> Self::Sum {
        self.dot(sum, [codes], [x])
    }
    #[inline(always)]
    fn times_256(self, sum: Self::Sum) -> Self::Sum {
        sum.map(|x| x << 8)
    }
    #[inline(always)]
    fn add_shifted<const SHIFT: i32>(self, a: Self::Sum, b: Self::Sum) -> Self::Sum {
        from_fn(|i| a[i] + (b[i] >> SHIFT))
    }
    #[inline(always)]
    unsafe fn load_i32(self, p: *const i32) -> Self::Sum {
        // SAFETY: the caller promises that `p` is valid for reads of a whole vector.
        unsafe { p.cast::<[i32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    fn flip_sign_bits(self, v: [u8; 32]) -> [u8; 32] {
        v.map(|byte| byte ^ 128)
    }
    #[inline(always)]
    fn reduce_add_i32(self, sum: Self::Sum) -> i32 {
        sum.iter().sum()
    }
    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> Self::F {
        // SAFETY: the caller promises that `p` is valid for reads of a whole vector.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_f32(self, p: *mut f32, x: Self::F) {
        // SAFETY: the caller promises that `p` is valid for writes of a whole vector.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(x) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn to_float(self, sum: Self::Sum) -> Self::F {
        sum.map(|x| x as f32)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::F) -> f32 {
        a.iter().sum()
    }
}
