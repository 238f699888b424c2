//! Products of bf16 by dot-product instructions: two products of each lane at once, summed in f32.
//!
//! A pair of neighbouring columns is packed as one f32 that is never computed with, so that [`pack`](super::pack) serves
//! pairs too: a row of `dim` bf16 is one of `dim / 2` pairs. Subnormal numbers count as 0, as the instructions have it.
//!
//! | | instruction | pairs in a vector |
//! |---|---|---|
//! | AVX512-BF16 | `vdpbf16ps` | 16 |
//! | FEAT_BF16 of AArch64, which rounds sums to odd | `bfdot` | 4 |
//!
//! Each instruction set is a module: how to detect it, a token that implements [`Lanes`](super::lanes::Lanes) and
//! [`Pairs`](few_rows::Pairs), and the functions of [`entry_points`]. It goes with the [`Simd`] of as many lanes, whose kernels pack
//! for it and call it.
//!
//! f16 has no such instruction. `fmlal` of FEAT_FHM widens f16 as it multiplies, but makes as many products as `fmla` of f32, which
//! the packed sides already are.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod few_rows;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod none;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::super::ahead::Ahead;
use super::rows::Block;
use super::tile::Tile;
use crate::cpu::element::Element;
use crate::cpu::simd::Simd;
use candle_core::DType;
#[cfg(target_arch = "aarch64")]
use neon as isa;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use none as isa;
#[cfg(target_arch = "x86_64")]
use x86 as isa;

/// Whether products of rows of `dim` elements of T are made of pairs.
#[inline(always)]
pub fn suits<S: Simd, T: Element>(dim: usize) -> bool {
    fit::<S>() && suit_this_cpu::<T>(dim)
}

/// Whether there are as many pairs in a vector as these vectors have lanes.
#[inline(always)]
pub const fn fit<S: Simd>() -> bool {
    S::LANES == isa::LANES
}

/// [`suits`] for the best instruction set of this CPU.
#[inline(always)]
pub fn suit_this_cpu<T: Element>(dim: usize) -> bool {
    T::DTYPE == DType::BF16 && dim.is_multiple_of(2) && isa::available()
}

/// As [`Tile::of_packed`], of A and B packed as pairs, of which there are k.
///
/// # Safety
/// [`suits`] has said yes, and the contract of [`Tile::of_packed`] holds for k pairs.
#[inline(always)]
pub unsafe fn multiply(tile: Tile) {
    // SAFETY: the CPU has the instructions, and the contract is the same.
    unsafe { isa::multiply(tile) }
}

/// [`Block::of_pairs`].
///
/// # Safety
/// As for it.
#[inline(always)]
pub unsafe fn multiply_block(block: Block, rows: usize, vectors: usize) {
    // SAFETY: the CPU has the instructions, and the contract is the same.
    unsafe { isa::multiply_block(block, rows, vectors) }
}

/// The products of R rows of x with C rows of W, all of `n` neighbouring elements. Behind those of W others follow, each `row`
/// elements behind the one before: what comes next is fetched.
///
/// # Safety
/// [`suits`] has said yes for `n`, and every row is valid for reads of `n` elements.
#[inline(always)]
pub unsafe fn dot<T: Element, const R: usize, const C: usize>(
    x: [*const T; R],
    w: [*const T; C],
    n: usize,
    row: usize,
) -> [[f32; C]; R] {
    let ahead = Ahead::across_rows::<f32>(n / 2, row / 2, C);
    // SAFETY: the CPU has the instructions, and the contract is the same for pairs.
    unsafe { isa::dot(x.map(|p| p.cast()), w.map(|p| p.cast()), n / 2, ahead) }
}

/// The functions above for the token of an instruction set, compiled for its CPU features.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! entry_points {
    ($token:expr, $features:literal) => {
        /// # Safety
        #[doc = concat!("As for [`super::multiply`], and the CPU has ", $features, ".")]
        #[inline(never)]
        #[target_feature(enable = $features)]
        pub unsafe fn multiply(tile: super::Tile) {
            // SAFETY: the same contract.
            unsafe { super::super::tile::sized::<_, 1>($token, tile) }
        }

        /// # Safety
        #[doc = concat!("As for [`super::multiply_block`], and the CPU has ", $features, ".")]
        #[inline(never)]
        #[target_feature(enable = $features)]
        pub unsafe fn multiply_block(block: super::Block, rows: usize, vectors: usize) {
            // SAFETY: the same contract.
            unsafe { super::super::rows::sized($token, block, rows, vectors) }
        }

        /// # Safety
        #[doc = concat!("As for [`super::dot`] of rows of pairs, and the CPU has ", $features, ".")]
        #[inline(never)]
        #[target_feature(enable = $features)]
        pub unsafe fn dot<const R: usize, const C: usize>(
            x: [*const f32; R],
            w: [*const f32; C],
            pairs: usize,
            ahead: super::Ahead,
        ) -> [[f32; C]; R] {
            // SAFETY: the same contract.
            unsafe { super::few_rows::sized($token, x, w, pairs, ahead) }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use entry_points;
