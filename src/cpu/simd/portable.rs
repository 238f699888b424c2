//! Plain Rust over four lanes, which LLVM turns into the vectors that the target has.

use super::intrinsics::memory_intrinsics;
use super::{narrow_f16, widen_f16, Kernel, Simd};
use half::{bf16, f16};
use std::array::from_fn;

#[derive(Clone, Copy)]
pub struct Portable;

const N: usize = 4;

/// Never inlined, so that it stays out of the way of the faster instruction sets.
#[cold]
#[inline(never)]
pub fn run<K: Kernel>(kernel: K) {
    kernel.run(Portable)
}

/// Stamps lane-wise trait methods.
macro_rules! lanes {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: [$ty; N]),*) -> [$out; N] {
            from_fn(|i| { $(let $arg = $arg[i];)* $body })
        }
    )*};
}

impl Simd for Portable {
    const LANES: usize = N;
    type F = [f32; N];
    type I = [i32; N];
    type M = [bool; N];

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        run(kernel)
    }

    lanes! {
        add(a: f32, b: f32) -> f32 = a + b;
        sub(a: f32, b: f32) -> f32 = a - b;
        mul(a: f32, b: f32) -> f32 = a * b;
        div(a: f32, b: f32) -> f32 = a / b;
        sqrt(a: f32) -> f32 = a.sqrt();
        // f32::mul_add would be a library call where the target has no FMA.
        fma(a: f32, b: f32, c: f32) -> f32 = a * b + c;
        fnma(a: f32, b: f32, c: f32) -> f32 = c - a * b;
        max(a: f32, b: f32) -> f32 = if a > b { a } else { b };
        min(a: f32, b: f32) -> f32 = if a < b { a } else { b };
        lt(a: f32, b: f32) -> bool = a < b;
        eq(a: f32, b: f32) -> bool = a == b;
        select(m: bool, a: f32, b: f32) -> f32 = if m { a } else { b };
        bits(a: f32) -> i32 = a.to_bits() as i32;
        float(a: i32) -> f32 = f32::from_bits(a as u32);
        to_float(a: i32) -> f32 = a as f32;
        iadd(a: i32, b: i32) -> i32 = a.wrapping_add(b);
        isub(a: i32, b: i32) -> i32 = a.wrapping_sub(b);
        and(a: i32, b: i32) -> i32 = a & b;
        or(a: i32, b: i32) -> i32 = a | b;
    }

    #[inline(always)]
    fn swap_pairs(self, a: [f32; N]) -> [f32; N] {
        [a[1], a[0], a[3], a[2]]
    }
    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    fn isplat(self, x: i32) -> [i32; N] {
        [x; N]
    }
    #[inline(always)]
    fn shl<const K: i32>(self, a: [i32; N]) -> [i32; N] {
        a.map(|a| a << K)
    }
    #[inline(always)]
    fn sar<const K: i32>(self, a: [i32; N]) -> [i32; N] {
        a.map(|a| a >> K)
    }

    memory_intrinsics! {
        load_f32(p: *const f32) -> [f32; N] = p.cast::<[f32; N]>().read_unaligned();
        store_f32(p: *mut f32, x: [f32; N]) -> () = p.cast::<[f32; N]>().write_unaligned(x);
        load_f16(p: *const u16) -> [f32; N] =
            p.cast::<[u16; N]>().read_unaligned().map(|bits| widen_f16(f16::from_bits(bits)));
        store_f16(p: *mut u16, x: [f32; N]) -> () =
            p.cast::<[u16; N]>().write_unaligned(x.map(|x| narrow_f16(x).to_bits()));
        load_bf16(p: *const u16) -> [f32; N] =
            p.cast::<[u16; N]>().read_unaligned().map(|bits| f32::from_bits(u32::from(bits) << 16));
        store_bf16(p: *mut u16, x: [f32; N]) -> () =
            p.cast::<[u16; N]>().write_unaligned(x.map(|x| bf16::from_f32(x).to_bits()));
        load_u8(p: *const u8) -> [i32; N] = p.cast::<[u8; N]>().read_unaligned().map(i32::from);
        store_u8(p: *mut u8, x: [i32; N]) -> () = p.cast::<[u8; N]>().write_unaligned(x.map(|x| x as u8));
    }
}
