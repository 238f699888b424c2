//! A register block of `C = A·Bᵀ` or `C += A·Bᵀ` whose rows of A are read where they lie.
//!
//! ```text
//!                 B: k × (1 or 2 vectors), packed
//!                 ┌────┬────┐
//!                 │    │    │  a row of B is loaded as vectors
//!                 └────┴────┘
//!   A: MR × k     ┌────┬────┐
//!   ┌───────┐     │    │    │  MR × NR vectors of sums stay in registers
//!   │       │     │    │    │
//!   └───────┘     └────┴────┘
//!     an element of A is repeated in all lanes: 16 steps use up a cache line of each row
//! ```
//!
//! On Zen 4 six rows of A are as fast as twelve, 98 % of peak, and their cache lines fit the eight ways of an L1 cache where
//! the distance of the rows is a multiple of 4 KB, so that all fall into one set: there twelve rows reach 65 % of peak, six
//! reach 95 %.

use super::lanes::Lanes;
use super::pairs;
use crate::cpu::simd::{prefetch_to_l2, Kernel, Simd};

/// The most rows of a block of this many vectors. NEON has twice the registers of AVX2, and needs more sums than AVX-512 to hide
/// its latency. Of a single vector, AVX-512 needs eight rows for as many sums as two multipliers of four cycles work at.
#[inline(always)]
pub const fn most_rows<S: Simd>(vectors: usize) -> usize {
    match (S::LANES, vectors) {
        (4, _) => 12,
        (16, 1) => 8,
        _ => 6,
    }
}

/// One register block. A and B are numbers, or pairs of bf16 that have the size of one.
#[derive(Clone, Copy)]
pub struct Block {
    pub k: usize,
    pub a: *const f32,
    /// From one row of A to the next.
    pub a_row: usize,
    /// From one k to the next.
    pub a_step: usize,
    /// How far behind A the rows are that will be read next, which are fetched to the L2 cache; 0 for none. These addresses are not
    /// dereferenced.
    pub ahead: usize,
    pub b: *const f32,
    pub c: *mut f32,
    /// From one row of C to the next.
    pub c_row: usize,
    /// Whether C is added to.
    pub add: bool,
}

impl Block {
    /// `rows` rows of A, of numbers, and one or two vectors of B.
    ///
    /// # Safety
    /// 0 < `rows` ≤ [`most_rows`] of `vectors`, 0 < `vectors` ≤ 2. A has `rows` elements at each of `k` steps, B has k rows of `vectors`
    /// vectors one behind the other, C has room for `rows` rows of as many, initialised if `add` is set, which nothing else
    /// touches.
    #[inline(always)]
    pub unsafe fn of_numbers<S: Simd>(self, s: S, rows: usize, vectors: usize) {
        s.call(Numbers {
            block: self,
            rows,
            vectors,
        })
    }

    /// As [`Block::of_numbers`], of pairs.
    ///
    /// # Safety
    /// As for it, and [`pairs::suits`] has said yes.
    #[inline(always)]
    pub unsafe fn of_pairs(self, rows: usize, vectors: usize) {
        // SAFETY: the contract is the same.
        unsafe { pairs::multiply_block(self, rows, vectors) }
    }
}

/// A block of numbers that its maker answers for.
struct Numbers {
    block: Block,
    rows: usize,
    vectors: usize,
}

impl Kernel for Numbers {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `Numbers` is made by `Block::of_numbers` alone, whose caller answers for A, B and C.
        unsafe { sized(s, self.block, self.rows, self.vectors) }
    }
}

/// Picks the code for this many rows and vectors.
///
/// # Safety
/// As for [`Block::of_numbers`].
#[inline(always)]
pub(super) unsafe fn sized<L: Lanes>(l: L, block: Block, rows: usize, vectors: usize) {
    macro_rules! sizes {
        ($($rows:literal)*, $($more:literal)*) => {
            match (rows, vectors) {
                $(($rows, 1) => run::<L, $rows, 1>(l, block),
                ($rows, _) => run::<L, $rows, 2>(l, block),)*
                $(($more, 1) => run::<L, $more, 1>(l, block),)*
                _ => unreachable!("{rows} rows of {vectors} vectors"),
            }
        };
    }
    // SAFETY: the same contract.
    unsafe {
        match L::LANES {
            4 => sizes!(1 2 3 4 5 6 7 8 9 10 11 12,),
            16 => sizes!(1 2 3 4 5 6, 7 8),
            _ => sizes!(1 2 3 4 5 6,),
        }
    }
}

/// Steps from one fetch of the next rows to the next: a cache line of each.
const LINE: usize = 16;

/// # Safety
/// As for [`Block::of_numbers`], of MR rows and NR vectors.
#[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
#[inline(always)]
unsafe fn run<L: Lanes, const MR: usize, const NR: usize>(l: L, block: Block) {
    let (mut a, mut b) = (block.a, block.b);
    let mut sums = [[l.zeros(); NR]; MR];
    let mut left = block.k;
    while left > 0 {
        if block.ahead > 0 {
            for i in 0..MR {
                prefetch_to_l2(a.wrapping_add(block.ahead + i * block.a_row));
            }
        }
        let steps = left.min(LINE);
        for _ in 0..steps {
            // SAFETY: the caller has MR elements of A and NR vectors of B at each of k steps.
            unsafe {
                let mut row = [l.zeros(); NR];
                for n in 0..NR {
                    row[n] = l.load(b.add(n * L::LANES));
                }
                for i in 0..MR {
                    let x = l.repeat(a.add(i * block.a_row));
                    for n in 0..NR {
                        sums[i][n] = l.fma(x, row[n], sums[i][n]);
                    }
                }
            }
            a = a.wrapping_add(block.a_step);
            b = b.wrapping_add(NR * L::LANES);
        }
        left -= steps;
    }
    // SAFETY: the caller has room for MR rows of NR vectors, initialised if they are added to.
    unsafe { write(l, sums, block.c, block.c_row, block.add) }
}

/// Writes the sums of a register block to C, or adds them to the numbers in C.
///
/// # Safety
/// `c` has room for MR rows of NR vectors, `c_row` elements apart, initialised if `add` is set, which nothing else touches.
#[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
#[inline(always)]
pub(super) unsafe fn write<L: Lanes, const MR: usize, const NR: usize>(
    l: L,
    sums: [[L::V; NR]; MR],
    c: *mut f32,
    c_row: usize,
    add: bool,
) {
    for i in 0..MR {
        for n in 0..NR {
            // SAFETY: this is vector n of row i, for which the caller has room.
            unsafe {
                let c = c.add(i * c_row + n * L::LANES);
                let sum = match add {
                    true => l.add(l.load(c), sums[i][n]),
                    false => sums[i][n],
                };
                l.store(c, sum);
            }
        }
    }
}
