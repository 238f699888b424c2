//! Plain Rust, for CPUs without the other instruction sets and as the oracle of their tests. The loops over the bytes of a
//! vector are functions that are never inlined: unrolled into every kernel they were a tenth of this crate's code.

use super::{ByteKernel, ByteSimd};
use crate::cpu::simd::intrinsics::memory_intrinsics;
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
fn add_products(sum: &[i32; LANES], codes: &[u8; 32], x: &[u8; 32]) -> [i32; LANES] {
    let mut sum = *sum;
    for (j, (&code, &x)) in codes.iter().zip(x).enumerate() {
        sum[j / 4] += i32::from(code) * i32::from(x as i8);
    }
    sum
}

/// Stamps methods of plain Rust.
macro_rules! methods {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $out {
            $body
        }
    )*};
}

impl ByteSimd for Portable {
    type V = [u8; 32];
    type Sum = [i32; LANES];
    type F = [f32; LANES];

    methods! {
        zero() -> Self::Sum = [0; LANES];
        flip_sign_bits(v: Self::V) -> Self::V = v.map(|byte| byte ^ 128);
        times_256(sum: Self::Sum) -> Self::Sum = sum.map(|x| x << 8);
        reduce_add_i32(sum: Self::Sum) -> i32 = sum.iter().sum();
        splat(x: f32) -> Self::F = [x; LANES];
        to_float(sum: Self::Sum) -> Self::F = sum.map(|x| x as f32);
        mul(a: Self::F, b: Self::F) -> Self::F = from_fn(|i| a[i] * b[i]);
        fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = from_fn(|i| a[i] * b[i] + c[i]);
        reduce_add(a: Self::F) -> f32 = a.iter().sum();
        dot_bytes(sum: Self::Sum, codes: Self::V, x: Self::V) -> Self::Sum = add_products(&sum, &codes, &x);
    }
    memory_intrinsics! {
        load(p: *const u8) -> Self::V = p.cast::<Self::V>().read_unaligned();
        store(p: *mut u8, v: Self::V) -> () = p.cast::<Self::V>().write_unaligned(v);
        repeat_four(p: *const u8) -> Self::V = from_fn(|i| *p.add(i % 4));
        load_i32(p: *const i32) -> Self::Sum = p.cast::<Self::Sum>().read_unaligned();
        load_f32(p: *const f32) -> Self::F = p.cast::<Self::F>().read_unaligned();
        store_f32(p: *mut f32, x: Self::F) -> () = p.cast::<Self::F>().write_unaligned(x);
    }

    #[inline(always)]
    fn codes<const MASK: i32, const SHIFT: i32>(self, v: Self::V) -> Self::V {
        shift_and_mask(&v, SHIFT, MASK as u8)
    }
    #[inline(always)]
    fn add_shifted<const SHIFT: i32>(self, a: Self::Sum, b: Self::Sum) -> Self::Sum {
        from_fn(|i| a[i] + (b[i] >> SHIFT))
    }
}
