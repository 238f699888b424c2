//! The one product of attention: `C = A·B` or `C += A·B` of packed f32 panels, a register block of C at a time.
//!
//! ```text
//!                 B: k × (NR vectors)
//!                 ┌────┬────┐
//!                 │    │    │  a row of B is loaded as vectors
//!                 └────┴────┘
//!   A: MR × k     ┌────┬────┐
//!   ┌───────┐     │    │    │  MR × NR vectors of sums stay in registers
//!   │       │     │    │    │
//!   └───────┘     └────┴────┘
//!     an element of A is repeated in all lanes
//! ```
//!
//! A is either packed, its MR rows beside one another for each k (`AI` = 1), or a part of a matrix of scores whose rows lie
//! [`SCORE_ROW`] apart (`AI` = SCORE_ROW).

use crate::cpu::simd::{Kernel, Simd};

/// Vectors in a row of a register block.
pub const NR: usize = 2;

/// The keys of a block: a multiple of every MR and of every row of a register block.
pub const KEY_BLOCK: usize = 192;

/// The distance of the rows of a block's scores. Not a power of two, so that rows don't displace one another in the cache.
pub const SCORE_ROW: usize = KEY_BLOCK + 16;

/// The rows of a register block: as many as the registers of the instruction set hold, beside a row of B.
#[inline(always)]
pub const fn rows_of_tile<S: Simd>() -> usize {
    match S::LANES {
        8 => 6,
        _ => 12,
    }
}

/// The columns of a register block.
#[inline(always)]
pub const fn cols_of_tile<S: Simd>() -> usize {
    NR * S::LANES
}

/// One register block.
#[derive(Clone, Copy)]
pub struct Tile {
    pub k: usize,
    pub a: *const f32,
    /// From one k to the next.
    pub a_step: usize,
    pub b: *const f32,
    pub c: *mut f32,
    /// From one row of C to the next.
    pub c_row: usize,
    /// Whether C is added to.
    pub add: bool,
}

impl Tile {
    /// A's rows are packed.
    ///
    /// # Safety
    /// For MR = [`rows_of_tile`] and N = [`cols_of_tile`]: A has MR elements at each of `k` steps, B has k rows of N one
    /// behind the other, C has room for MR rows of N elements, initialised if `add` is set, which nothing else touches.
    #[inline(always)]
    pub unsafe fn of_packed<S: Simd>(self, s: S) {
        // SAFETY: the caller's contract is that of `run`.
        match S::LANES {
            8 => s.call(Run::<6, 1>(self)),
            _ => s.call(Run::<12, 1>(self)),
        }
    }

    /// A's rows are those of scores.
    ///
    /// # Safety
    /// As for [`Tile::of_packed`], with the rows of A `SCORE_ROW` apart.
    #[inline(always)]
    pub unsafe fn of_scores<S: Simd>(self, s: S) {
        // SAFETY: the caller's contract is that of `run`.
        match S::LANES {
            8 => s.call(Run::<6, SCORE_ROW>(self)),
            _ => s.call(Run::<12, SCORE_ROW>(self)),
        }
    }
}

/// A tile that its maker answers for.
struct Run<const MR: usize, const AI: usize>(Tile);

impl<const MR: usize, const AI: usize> Kernel for Run<MR, AI> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: a `Run` is made by the two methods of `Tile` alone, whose callers answer for A, B and C.
        unsafe { run::<S, MR, AI>(s, self.0) }
    }
}

/// # Safety
/// As for [`Tile::of_packed`], with MR rows that are `AI` apart in A.
#[inline(always)]
unsafe fn run<S: Simd, const MR: usize, const AI: usize>(s: S, tile: Tile) {
    let (mut a, mut b) = (tile.a, tile.b);
    let mut sums = [[s.splat(0.0); NR]; MR];
    for _ in 0..tile.k {
        // SAFETY: the caller has MR elements of A and N of B at each of k steps.
        unsafe {
            let row: [S::F; NR] = [s.load_f32(b), s.load_f32(b.add(S::LANES))];
            for i in 0..MR {
                let x = s.splat(*a.add(i * AI));
                for n in 0..NR {
                    sums[i][n] = s.fma(x, row[n], sums[i][n]);
                }
            }
            a = a.add(tile.a_step);
            b = b.add(NR * S::LANES);
        }
    }
    for i in 0..MR {
        for n in 0..NR {
            // SAFETY: the caller has room for MR rows of N elements, initialised if they are added to.
            unsafe {
                let c = tile.c.add(i * tile.c_row + n * S::LANES);
                let sum = match tile.add {
                    true => s.add(s.load_f32(c), sums[i][n]),
                    false => sums[i][n],
                };
                s.store_f32(c, sum);
            }
        }
    }
}
