//! FEAT_BF16, of every CPU from ARMv8.6 on.
//!
//! `bfmmla` makes twice the products of a `bfdot`: those of two rows of A with two rows of B, of four columns each, and a vector
//! of its sums is a square of two rows and two columns. Both sides would have to be packed for it, two rows in turn, so that A's
//! rows could not be read where they lie, and sums be taken apart before they are stored.

use super::super::lanes::Lanes;
use super::entry_points;
use super::few_rows::Pairs;
use core::arch::aarch64::*;
use core::arch::asm;

pub const LANES: usize = 4;

pub fn available() -> bool {
    std::arch::is_aarch64_feature_detected!("bf16")
}

/// Made on a CPU with FEAT_BF16 alone.
#[derive(Clone, Copy)]
struct NeonBf16(());

entry_points!(NeonBf16(()), "bf16");

/// `$c += $a · $b`, of the vector `$a` and the pairs of `$b` that the operand's form names.
///
/// The intrinsic is not stable. The assembler may not know that the function it ends up in has the extension. The instruction
/// touches the three registers named here and no memory.
macro_rules! bfdot {
    ($c:ident, $a:ident, $b:ident, $form:literal) => {
        asm!(
            ".arch_extension bf16",
            concat!("bfdot {0:v}.4s, {1:v}.8h, {2:v}", $form),
            inout(vreg) $c,
            in(vreg) $a,
            in(vreg) $b,
            options(pure, nomem, nostack),
        )
    };
}

impl Lanes for NeonBf16 {
    const LANES: usize = LANES;
    type V = float32x4_t;
    /// A pair in the first lane, which the instruction repeats: to repeat it as it is loaded would take a slot of the units that
    /// multiply.
    type X = f32;
    #[inline(always)]
    fn zeros(self) -> float32x4_t {
        // SAFETY: NEON is part of the AArch64 baseline.
        unsafe { vdupq_n_f32(0.0) }
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn fma(self, x: f32, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        let mut sum = c;
        // SAFETY: the CPU has the instruction; see the type.
        unsafe { bfdot!(sum, b, x, ".2h[0]") };
        sum
    }
    #[inline(always)]
    unsafe fn repeat(self, p: *const f32) -> f32 {
        // SAFETY: the caller has a pair at `p`.
        unsafe { p.read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> float32x4_t {
        // SAFETY: the caller has a vector at `p`.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: float32x4_t) {
        // SAFETY: the caller has room for a vector at `p`.
        unsafe { vst1q_f32(p, x) }
    }
}

impl Pairs for NeonBf16 {
    /// Two to four instructions begin in a cycle, and each waits for the one before it for two to four cycles.
    const FEW_SUMS: usize = 8;
    #[inline(always)]
    fn dot(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        let mut sum = c;
        // SAFETY: the CPU has the instruction; see the type.
        unsafe { bfdot!(sum, a, b, ".8h") };
        sum
    }
    #[inline(always)]
    unsafe fn load_few(self, p: *const f32, n: usize) -> float32x4_t {
        let mut pairs = [0u32; LANES];
        for (i, pair) in pairs.iter_mut().enumerate().take(n) {
            // SAFETY: the caller has n pairs at `p`.
            *pair = unsafe { p.cast::<u32>().add(i).read_unaligned() };
        }
        // SAFETY: the array has a vector of them.
        unsafe { vreinterpretq_f32_u32(vld1q_u32(pairs.as_ptr())) }
    }
    #[inline(always)]
    fn reduce_add(self, sums: float32x4_t) -> f32 {
        // SAFETY: NEON is part of the AArch64 baseline.
        unsafe { vaddvq_f32(sums) }
    }
}
