//! `C = A·B` or `C += A·B` of packed f32 panels, a register block of C at a time.
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
//! A is either packed, its MR rows beside one another for each k (`AI` = 1), or a part of a matrix whose rows lie `AI` apart.

use super::lanes::Lanes;
use super::{pairs, rows};
use crate::cpu::element::Element;
use crate::cpu::simd::{Kernel, Simd};

/// Vectors in a row of a register block.
pub const NR: usize = 2;

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
        s.call(Numbers::<1>(self))
    }

    /// The product of rows of `dim` elements of T, both packed by [`pack`](super::pack) as strips: `a` and `b` are strips, and
    /// k and the step are set here.
    ///
    /// # Safety
    /// A is a strip of MR and B one of N rows of `dim` elements of T, for MR = [`rows_of_tile`] and N = [`cols_of_tile`]; C
    /// as for [`Tile::of_packed`].
    #[inline(always)]
    pub unsafe fn of_strips<S: Simd, T: Element>(self, s: S, dim: usize) {
        let a_step = rows_of_tile::<S>();
        // SAFETY: the strips have pairs or numbers, as the same question has told `pack`.
        unsafe {
            match pairs::suits::<S, T>(dim) {
                true => pairs::multiply(Tile {
                    k: dim / 2,
                    a_step,
                    ..self
                }),
                false => Tile {
                    k: dim,
                    a_step,
                    ..self
                }
                .of_packed(s),
            }
        }
    }

    /// As [`Tile::of_packed`], of an A that is not packed: a block of a matrix in memory, its rows `AI` elements apart.
    ///
    /// # Safety
    /// As for [`Tile::of_packed`], with the rows of A `AI` apart.
    #[inline(always)]
    pub unsafe fn of_rows<const AI: usize, S: Simd>(self, s: S) {
        s.call(Numbers::<AI>(self))
    }
}

/// A tile of numbers that its maker answers for.
struct Numbers<const AI: usize>(Tile);

impl<const AI: usize> Kernel for Numbers<AI> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `Numbers` is made by the methods of `Tile` alone, whose callers answer for A, B and C.
        unsafe { sized::<S, AI>(s, self.0) }
    }
}

/// Picks the code for [`rows_of_tile`].
///
/// # Safety
/// As for [`Tile::of_packed`], of numbers or of pairs, with rows that are `AI` apart in A.
#[inline(always)]
pub(super) unsafe fn sized<L: Lanes, const AI: usize>(l: L, tile: Tile) {
    // SAFETY: the same contract.
    unsafe {
        match L::LANES {
            8 => run::<L, 6, AI>(l, tile),
            _ => run::<L, 12, AI>(l, tile),
        }
    }
}

/// # Safety
/// As for [`sized`], with MR rows.
#[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
#[inline(always)]
unsafe fn run<L: Lanes, const MR: usize, const AI: usize>(l: L, tile: Tile) {
    let (mut a, mut b) = (tile.a, tile.b);
    let mut sums = [[l.zeros(); NR]; MR];
    for _ in 0..tile.k {
        // SAFETY: the caller has MR elements of A and N of B at each of k steps.
        unsafe {
            let row: [L::V; NR] = [l.load(b), l.load(b.add(L::LANES))];
            for i in 0..MR {
                let x = l.repeat(a.add(i * AI));
                for n in 0..NR {
                    sums[i][n] = l.fma(x, row[n], sums[i][n]);
                }
            }
            a = a.add(tile.a_step);
            b = b.add(NR * L::LANES);
        }
    }
    // SAFETY: the caller has room for MR rows of NR vectors, initialised if they are added to.
    unsafe { rows::write(l, sums, tile.c, tile.c_row, tile.add) }
}

#[cfg(test)]
mod tests {
    use super::super::pack;
    use super::*;
    use crate::cpu::simd::Isa;
    use half::bf16;

    /// The distance of C's rows.
    const ROW: usize = 208;

    /// A product of packed rows, and one of a block of C and packed columns, of elements of T.
    struct Products<T>(std::marker::PhantomData<T>);

    impl<T: Element> Kernel for Products<T> {
        fn run<S: Simd>(self, s: S) {
            let (rows, cols) = (rows_of_tile::<S>(), cols_of_tile::<S>());
            // Rows and columns that are missing count as zeros.
            for (m, n, dim) in [(rows, cols, 32), (rows - 1, cols - 3, 6), (1, 1, 37)] {
                let make = |count: usize, seed: usize| -> Vec<T> {
                    let value = |i: usize| ((i * 37 + seed) % 17) as f32 - 8.0;
                    (0..count * dim).map(|i| T::narrow(value(i))).collect()
                };
                let (a, b) = (make(m, 1), make(n, 2));
                let at = |x: &[T], i: usize, k: usize| match x.get(i * dim + k) {
                    Some(x) => x.widen(),
                    None => 0.0,
                };
                let exact =
                    |i: usize, j: usize| (0..dim).map(|k| at(&a, i, k) * at(&b, j, k)).sum::<f32>();
                let mut strips = [vec![f32::NAN; rows * dim], vec![f32::NAN; cols * dim]];
                let mut c = vec![f32::NAN; rows * ROW];
                let tile = |c: &mut [f32], a: *const f32, b: *const f32| Tile {
                    k: dim,
                    a,
                    a_step: 1,
                    b,
                    c: c.as_mut_ptr(),
                    c_row: ROW,
                    add: false,
                };
                // SAFETY: the vectors have room for a tile of each, and the rows have `dim` elements.
                unsafe {
                    let [x, y] = &mut strips;
                    pack::strips_of(s, m, dim, rows, |i| a.as_ptr().add(i * dim), x.as_mut_ptr());
                    pack::strips_of(s, n, dim, cols, |i| b.as_ptr().add(i * dim), y.as_mut_ptr());
                    tile(&mut c, x.as_ptr(), y.as_ptr()).of_strips::<S, T>(s, dim);
                }
                for i in 0..rows {
                    for j in 0..cols {
                        assert_eq!(c[i * ROW + j], exact(i, j), "{m} × {n}, {dim}: ({i}, {j})");
                    }
                }
                // The product of C and the first columns of b, and once more in addition.
                let width = dim.min(cols);
                let mut panels = vec![f32::NAN; rows * cols];
                let mut out = vec![f32::NAN; rows * ROW];
                let inner = n.min(rows);
                // SAFETY: as above; a panel has `rows` rows.
                unsafe {
                    let row = |i: usize| b.as_ptr().add(i * dim);
                    pack::panels(s, (inner, rows), width, row, panels.as_mut_ptr());
                    let product = Tile {
                        k: inner,
                        ..tile(&mut out, c.as_ptr(), panels.as_ptr())
                    };
                    product.of_rows::<ROW, S>(s);
                    Tile {
                        add: true,
                        ..product
                    }
                    .of_rows::<ROW, S>(s);
                }
                for i in 0..rows {
                    for j in 0..width {
                        let sum: f32 = (0..inner).map(|k| exact(i, k) * at(&b, k, j)).sum();
                        assert_eq!(out[i * ROW + j], 2.0 * sum, "({i}, {j})");
                    }
                }
            }
        }
    }

    /// All numbers are small integers, so that every order of additions gives the same.
    #[test]
    fn every_instruction_set_multiplies_tiles() {
        for isa in Isa::available() {
            // SAFETY: available on this machine.
            unsafe {
                isa.run(Products::<f32>(Default::default()));
                isa.run(Products::<half::f16>(Default::default()));
                isa.run(Products::<bf16>(Default::default()));
            }
        }
    }
}
