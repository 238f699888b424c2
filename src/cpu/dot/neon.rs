//! NEON, and its dot products where the CPU has them.

use super::{Bytes, Kernel};
use core::arch::aarch64::*;
use core::arch::asm;

/// # Safety
/// The CPU has the dot products of ARMv8.2.
#[target_feature(enable = "dotprod")]
pub unsafe fn run_dotprod<K: Kernel>(kernel: K) {
    kernel.run(DotProd(()))
}

#[derive(Clone, Copy)]
pub struct Neon;

#[derive(Clone, Copy)]
pub struct DotProd(());

// SAFETY of all below: NEON is part of the AArch64 baseline, and a `DotProd` exists only on a CPU that has the instructions.
macro_rules! of_32_bytes {
    () => {
        type V = [uint8x16_t; 2];
        type Sum = [int32x4_t; 2];
        type F = [float32x4_t; 2];

        #[inline(always)]
        fn zero(self) -> Self::Sum {
            unsafe { [vdupq_n_s32(0); 2] }
        }
        #[inline(always)]
        unsafe fn load(self, p: *const u8) -> Self::V {
            [vld1q_u8(p), vld1q_u8(p.add(16))]
        }
        #[inline(always)]
        fn codes<const MASK: i32, const SHIFT: i32>(self, v: Self::V) -> Self::V {
            // A shift right by nothing is no immediate.
            let shift = |v| unsafe { vshlq_u8(v, vdupq_n_s8(-(SHIFT as i8))) };
            v.map(|v| unsafe { vandq_u8(shift(v), vdupq_n_u8(MASK as u8)) })
        }
        #[inline(always)]
        fn raise(self, v: Self::V) -> Self::V {
            v.map(|v| unsafe { veorq_u8(v, vdupq_n_u8(128)) })
        }
        #[inline(always)]
        fn times_256(self, sum: Self::Sum) -> Self::Sum {
            sum.map(|sum| unsafe { vshlq_n_s32::<8>(sum) })
        }
        #[inline(always)]
        fn add_part<const SHIFT: i32>(self, a: Self::Sum, b: Self::Sum) -> Self::Sum {
            let shift = |v| unsafe { vshlq_s32(v, vdupq_n_s32(-SHIFT)) };
            unsafe { [vaddq_s32(a[0], shift(b[0])), vaddq_s32(a[1], shift(b[1]))] }
        }
        #[inline(always)]
        unsafe fn load_i32(self, p: *const i32) -> Self::Sum {
            [vld1q_s32(p), vld1q_s32(p.add(4))]
        }
        /// The upper halves of the codes count sixteen times.
        #[inline(always)]
        fn dot_bytes(self, sum: Self::Sum, codes: Self::V, x: Self::V) -> Self::Sum {
            let [low, high] = super::four_bits(self, codes);
            let high = self.dot(self.zero(), [high], [x]);
            let sum = self.dot(sum, [low], [x]);
            unsafe {
                [
                    vaddq_s32(sum[0], vshlq_n_s32::<4>(high[0])),
                    vaddq_s32(sum[1], vshlq_n_s32::<4>(high[1])),
                ]
            }
        }
        #[inline(always)]
        fn total(self, [a, b]: Self::Sum) -> i32 {
            unsafe { vaddvq_s32(vaddq_s32(a, b)) }
        }
        #[inline(always)]
        unsafe fn load_f32(self, p: *const f32) -> Self::F {
            [vld1q_f32(p), vld1q_f32(p.add(4))]
        }
        #[inline(always)]
        unsafe fn store_f32(self, p: *mut f32, [a, b]: Self::F) {
            vst1q_f32(p, a);
            vst1q_f32(p.add(4), b);
        }
        #[inline(always)]
        fn splat(self, x: f32) -> Self::F {
            unsafe { [vdupq_n_f32(x); 2] }
        }
        #[inline(always)]
        fn to_float(self, sum: Self::Sum) -> Self::F {
            sum.map(|sum| unsafe { vcvtq_f32_s32(sum) })
        }
        #[inline(always)]
        fn mul(self, a: Self::F, b: Self::F) -> Self::F {
            unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
        }
        #[inline(always)]
        fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
            unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
        }
        #[inline(always)]
        fn reduce_add(self, [a, b]: Self::F) -> f32 {
            unsafe { vaddvq_f32(vaddq_f32(a, b)) }
        }
    };
}

impl Bytes for Neon {
    of_32_bytes!();

    /// 30 · 2 · 128 fits 16 bits, so that they are widened once for all N.
    #[inline(always)]
    fn dot<const N: usize>(
        self,
        mut sum: Self::Sum,
        codes: [Self::V; N],
        x: [Self::V; N],
    ) -> Self::Sum {
        for half in 0..2 {
            unsafe {
                let mut words = vdupq_n_s16(0);
                for (codes, x) in codes.iter().zip(&x) {
                    let codes = vreinterpretq_s8_u8(codes[half]);
                    let x = vreinterpretq_s8_u8(x[half]);
                    let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
                    words = vaddq_s16(words, vpaddq_s16(low, vmull_high_s8(codes, x)));
                }
                sum[half] = vpadalq_s16(sum[half], words);
            }
        }
        sum
    }
}

impl Bytes for DotProd {
    of_32_bytes!();

    #[inline(always)]
    fn dot<const N: usize>(
        self,
        mut sum: Self::Sum,
        codes: [Self::V; N],
        x: [Self::V; N],
    ) -> Self::Sum {
        for (codes, x) in codes.into_iter().zip(x) {
            for half in 0..2 {
                // The intrinsic is not stable. The assembler may not know what the function it ends up in may use.
                unsafe {
                    asm!(".arch_extension dotprod", "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum[half], in(vreg) codes[half], in(vreg) x[half], options(pure, nomem, nostack));
                }
            }
        }
        sum
    }
}
