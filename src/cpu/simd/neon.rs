//! NEON, the baseline of every AArch64 CPU.

use super::intrinsics::{intrinsics, memory_intrinsics};
use super::{Kernel, Simd};
use core::arch::aarch64::*;
use core::arch::asm;

/// Any CPU of this architecture has its instructions.
#[derive(Clone, Copy)]
pub struct Neon;

#[inline(never)]
fn call<K: Kernel>(kernel: K) {
    kernel.run(Neon)
}

impl Simd for Neon {
    const LANES: usize = 4;
    type F = float32x4_t;
    type I = int32x4_t;
    type M = uint32x4_t;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        call(kernel)
    }

    intrinsics! {
        splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        div(a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
        sqrt(a: float32x4_t) -> float32x4_t = vsqrtq_f32(a);
        fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
        fnma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmsq_f32(c, a, b);
        // fmax would turn any NaN operand into NaN; compare and select as x86 does.
        max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcgtq_f32(a, b), a, b);
        min(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcltq_f32(a, b), a, b);
        lt(a: float32x4_t, b: float32x4_t) -> uint32x4_t = vcltq_f32(a, b);
        eq(a: float32x4_t, b: float32x4_t) -> uint32x4_t = vceqq_f32(a, b);
        select(m: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(m, a, b);
        swap_pairs(a: float32x4_t) -> float32x4_t = vrev64q_f32(a);
        isplat(x: i32) -> int32x4_t = vdupq_n_s32(x);
        bits(a: float32x4_t) -> int32x4_t = vreinterpretq_s32_f32(a);
        float(a: int32x4_t) -> float32x4_t = vreinterpretq_f32_s32(a);
        to_float(a: int32x4_t) -> float32x4_t = vcvtq_f32_s32(a);
        iadd(a: int32x4_t, b: int32x4_t) -> int32x4_t = vaddq_s32(a, b);
        isub(a: int32x4_t, b: int32x4_t) -> int32x4_t = vsubq_s32(a, b);
        and(a: int32x4_t, b: int32x4_t) -> int32x4_t = vandq_s32(a, b);
        or(a: int32x4_t, b: int32x4_t) -> int32x4_t = vorrq_s32(a, b);
        shl<const N: i32>(a: int32x4_t) -> int32x4_t = vshlq_n_s32::<N>(a);
        sar<const N: i32>(a: int32x4_t) -> int32x4_t = vshrq_n_s32::<N>(a);
        reduce_max(a: float32x4_t) -> f32 = vmaxvq_f32(a);
    }
    memory_intrinsics! {
        load_f32(p: *const f32) -> float32x4_t = vld1q_f32(p);
        store_f32(p: *mut f32, x: float32x4_t) -> () = vst1q_f32(p, x);
        // The f16 conversions are baseline instructions whose intrinsics need an unstable type.
        load_f16(p: *const u16) -> float32x4_t = {
            let half = vld1_u16(p);
            let wide: float32x4_t;
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) half, options(pure, nomem, nostack));
            wide
        };
        store_f16(p: *mut u16, x: float32x4_t) -> () = {
            let half: uint16x4_t;
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) half, in(vreg) x, options(pure, nomem, nostack));
            vst1_u16(p, half)
        };
        load_bf16(p: *const u16) -> float32x4_t = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p)));
        store_bf16(p: *mut u16, x: float32x4_t) -> () =
            vst1_u16(p, vshrn_n_u32::<16>(vreinterpretq_u32_s32(Neon.round_to_bf16(x))));
        load_u8(p: *const u8) -> int32x4_t = {
            let bytes = vcreate_u8(p.cast::<u32>().read_unaligned().into());
            vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
        };
        store_u8(p: *mut u8, x: int32x4_t) -> () = {
            let words = vmovn_u32(vreinterpretq_u32_s32(x));
            let bytes = vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words)));
            p.cast::<u32>().write_unaligned(vget_lane_u32::<0>(bytes))
        };
    }
}
