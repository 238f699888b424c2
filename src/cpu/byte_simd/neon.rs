//! NEON, and its byte dot products where the CPU has them. A vector of 32 bytes is two registers.

use super::{unpack_4_bits, ByteKernel, ByteSimd};
use crate::cpu::simd::intrinsics::{entry_points, intrinsics, memory_intrinsics};
use core::arch::aarch64::*;
use core::arch::asm;

/// Any CPU of this architecture has its instructions.
#[derive(Clone, Copy)]
pub struct Neon;

#[derive(Clone, Copy)]
pub struct DotProd(());

entry_points! { ByteKernel:
    run_dotprod = DotProd(()), "dotprod";
}

/// What both have in common: everything but the dot product.
macro_rules! vectors_of_32_bytes {
    () => {
        type V = [uint8x16_t; 2];
        type Sum = [int32x4_t; 2];
        type F = [float32x4_t; 2];

        memory_intrinsics! {
            load(p: *const u8) -> Self::V = [vld1q_u8(p), vld1q_u8(p.add(16))];
            store(p: *mut u8, v: Self::V) -> () = {
                vst1q_u8(p, v[0]);
                vst1q_u8(p.add(16), v[1])
            };
            repeat_four(p: *const u8) -> Self::V =
                [vreinterpretq_u8_u32(vdupq_n_u32(p.cast::<u32>().read_unaligned())); 2];
            load_i32(p: *const i32) -> Self::Sum = [vld1q_s32(p), vld1q_s32(p.add(4))];
            load_f32(p: *const f32) -> Self::F = [vld1q_f32(p), vld1q_f32(p.add(4))];
            store_f32(p: *mut f32, x: Self::F) -> () = {
                vst1q_f32(p, x[0]);
                vst1q_f32(p.add(4), x[1])
            };
        }
        intrinsics! {
            zero() -> Self::Sum = [vdupq_n_s32(0); 2];
            flip_sign_bits(v: Self::V) -> Self::V =
                [veorq_u8(v[0], vdupq_n_u8(128)), veorq_u8(v[1], vdupq_n_u8(128))];
            times_256(sum: Self::Sum) -> Self::Sum =
                [vshlq_n_s32::<8>(sum[0]), vshlq_n_s32::<8>(sum[1])];
            reduce_add_i32(sum: Self::Sum) -> i32 = vaddvq_s32(vaddq_s32(sum[0], sum[1]));
            splat(x: f32) -> Self::F = [vdupq_n_f32(x); 2];
            to_float(sum: Self::Sum) -> Self::F = [vcvtq_f32_s32(sum[0]), vcvtq_f32_s32(sum[1])];
            mul(a: Self::F, b: Self::F) -> Self::F = [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])];
            fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F =
                [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])];
            reduce_add(a: Self::F) -> f32 = vaddvq_f32(vaddq_f32(a[0], a[1]));
            // Shifts right are shifts left by a negative count: the immediate form knows no shift by 0.
            codes<const MASK: i32, const SHIFT: i32>(v: Self::V) -> Self::V = {
                let (shift, mask) = (vdupq_n_s8(-(SHIFT as i8)), vdupq_n_u8(MASK as u8));
                [vandq_u8(vshlq_u8(v[0], shift), mask), vandq_u8(vshlq_u8(v[1], shift), mask)]
            };
            add_shifted<const SHIFT: i32>(a: Self::Sum, b: Self::Sum) -> Self::Sum = {
                let shift = vdupq_n_s32(-SHIFT);
                [vaddq_s32(a[0], vshlq_s32(b[0], shift)), vaddq_s32(a[1], vshlq_s32(b[1], shift))]
            };
        }

        /// The product of signed bytes takes codes up to 127: code = low + 16 · high.
        #[inline(always)]
        fn dot_bytes(self, sum: Self::Sum, codes: Self::V, x: Self::V) -> Self::Sum {
            let [low, high] = unpack_4_bits(self, codes);
            let high = self.dot(self.zero(), [high], [x]);
            let sum = self.dot(sum, [low], [x]);
            // SAFETY: NEON is part of the AArch64 baseline.
            unsafe {
                [
                    vaddq_s32(sum[0], vshlq_n_s32::<4>(high[0])),
                    vaddq_s32(sum[1], vshlq_n_s32::<4>(high[1])),
                ]
            }
        }
    };
}

impl ByteSimd for Neon {
    vectors_of_32_bytes!();

    intrinsics! {
        // A pair of products is at most 2 · 128 times the largest code, so the N pairs of a 16-bit lane sum to at most
        // 30 · 2 · 128 < 2¹⁵: they are widened to i32 once for all N vectors.
        dot<const N: usize>(sum: Self::Sum, codes: [Self::V; N], x: [Self::V; N]) -> Self::Sum = {
            let mut sum = sum;
            for half in 0..2 {
                let mut words = vdupq_n_s16(0);
                for (codes, x) in codes.iter().zip(&x) {
                    let codes = vreinterpretq_s8_u8(codes[half]);
                    let x = vreinterpretq_s8_u8(x[half]);
                    let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
                    words = vaddq_s16(words, vpaddq_s16(low, vmull_high_s8(codes, x)));
                }
                sum[half] = vpadalq_s16(sum[half], words);
            }
            sum
        };
    }
}

impl ByteSimd for DotProd {
    vectors_of_32_bytes!();

    intrinsics! {
        // The intrinsic is not stable. The assembler may not know that the function it ends up in has the extension. The
        // instruction touches the three registers named here and no memory.
        dot<const N: usize>(sum: Self::Sum, codes: [Self::V; N], x: [Self::V; N]) -> Self::Sum = {
            let mut sum = sum;
            for (codes, x) in codes.into_iter().zip(x) {
                for half in 0..2 {
                    asm!(".arch_extension dotprod", "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum[half], in(vreg) codes[half], in(vreg) x[half], options(pure, nomem, nostack));
                }
            }
            sum
        };
    }
}
