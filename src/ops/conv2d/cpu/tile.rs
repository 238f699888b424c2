//! The GEMM micro-kernel: a few rows of weights times a few vectors of positions, summed in registers.
//!
//! ```text
//!                      positions →
//!     weights [m, k]   x[offsets[k] + p]         sums [m, p]
//!     ┌──────────┐     ┌───────┬───────┬──       ┌───────┬───────┬──
//!     │ 6 rows   │  ×  │ k = 0 │       │         │ one   │ next  │
//!     │ of k     │     │ k = 1 │       │    =    │ tile  │ tile  │
//!     └──────────┘     │ …     │       │         └───────┴───────┴──
//!                      └───────┴───────┴──
//! ```
//!
//! The second matrix is never stored as such: its row k is the memory from `offsets[k]` on.

use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};

/// Rows of a tile. Six rows by two vectors are twelve sums, which hide the latency of FMA and leave four of sixteen
/// registers for the factors.
pub const TILE_ROWS: usize = 6;

/// How many vectors of positions a tile has: the fewer rows, the more, so that there are about as many sums.
const fn tile_vectors(rows: usize) -> usize {
    match rows {
        1 => 8,
        2 => 4,
        3 => 3,
        _ => 2,
    }
}

/// How many positions a tile may read and write beyond the last one. `rows` are those of the whole product.
pub const fn overhang(rows: usize) -> usize {
    tile_vectors(rows) * MAX_LANES
}

/// Terms of a sum (k above) that are added in one go. A tile's factors, 256 · 2 vectors of 32 bytes, then take half of a
/// first-level cache of 32 KB, in which the next rows of weights find them.
pub const MAX_TERMS: usize = 256;

/// Rows of a matrix in memory: row m begins `m · stride` elements behind the first.
#[derive(Clone, Copy)]
pub struct Rows<P> {
    pub data: P,
    pub stride: usize,
}

/// A matrix that is never stored as such: its row k is the `len` elements of memory from `start + offsets[k]` on.
#[derive(Clone, Copy)]
pub struct OffsetRows<'a> {
    pub start: *const f32,
    pub offsets: &'a [usize],
    pub len: usize,
}

/// `sums[m, p] = Σ_k weights[m, k] · x[k, p]` for all rows m and positions p, added to the sums that are there if `add` is
/// set.
#[derive(Clone, Copy)]
pub struct TileGemm<'a> {
    weights: Rows<&'a [f32]>,
    x: OffsetRows<'a>,
    sums: Rows<*mut f32>,
    rows: usize,
    all_rows: usize,
    add: bool,
}

impl<'a> TileGemm<'a> {
    /// `rows` rows of a product that has `all_rows`, a number that decides how wide a tile is.
    ///
    /// # Safety
    /// `rows` is `all_rows` or less. With `n` for `x.len +` [`overhang`]`(all_rows)`, until the product has been computed:
    /// - `x` is valid for reads of `n` elements from each offset on, all of them initialised;
    /// - `sums` is valid for writes of `n` elements from each row's start on, and the elements are initialised if `add` is
    ///   set; no other thread touches them.
    pub unsafe fn new(
        weights: Rows<&'a [f32]>,
        x: OffsetRows<'a>,
        sums: Rows<*mut f32>,
        [rows, all_rows]: [usize; 2],
        add: bool,
    ) -> Self {
        let last_row = rows.saturating_sub(1) * weights.stride;
        assert!(last_row + x.offsets.len() <= weights.data.len());
        TileGemm {
            weights,
            x,
            sums,
            rows,
            all_rows,
            add,
        }
    }

    /// Computes the product, `most` rows at a time: those rows' weights stay in the cache while they meet all positions.
    pub fn run_by_rows(self, most: usize) {
        for row in (0..self.rows).step_by(most) {
            let (weights, sums) = (self.weights, self.sums);
            dispatch(TileGemm {
                weights: Rows {
                    data: &weights.data[row * weights.stride..],
                    ..weights
                },
                sums: Rows {
                    data: sums.data.wrapping_add(row * sums.stride),
                    ..sums
                },
                rows: most.min(self.rows - row),
                ..self
            });
        }
    }

    /// All positions, `V` vectors at a time, where `V` is `tile_vectors(all_rows)`.
    #[inline(always)]
    fn positions<S: Simd, const V: usize>(&self, s: S) {
        for p in (0..self.x.len).step_by(V * S::LANES) {
            match self.x.len - p <= S::LANES {
                false => self.rows::<S, V>(s, p),
                true => self.rows::<S, 1>(s, p),
            }
        }
    }

    /// All rows for the `V` vectors from position `p` on.
    #[inline(always)]
    fn rows<S: Simd, const V: usize>(&self, s: S, p: usize) {
        let rows = self.rows;
        for m in (0..rows).step_by(TILE_ROWS) {
            // SAFETY: each arm takes as many rows as are left, or TILE_ROWS if there are more. `positions` gives a p below
            // its count, and `V` vectors of which there are 1 or `tile_vectors(all_rows)`: 3 or more only where `all_rows`,
            // and so `rows`, is 3 or less.
            unsafe {
                match (V, rows - m) {
                    (_, 1) => self.tile::<S, 1, V>(s, m, p),
                    (1..=4, 2) => self.tile::<S, 2, V>(s, m, p),
                    (1..=3, 3) => self.tile::<S, 3, V>(s, m, p),
                    (1 | 2, 4) => self.tile::<S, 4, V>(s, m, p),
                    (1 | 2, 5) => self.tile::<S, 5, V>(s, m, p),
                    (1 | 2, _) => self.tile::<S, TILE_ROWS, V>(s, m, p),
                    _ => unreachable!("{rows} rows by {V} vectors"),
                }
            }
        }
    }

    /// `M` rows from `m` on by `V` vectors from `p` on.
    ///
    /// # Safety
    /// `m + M ≤ rows` and `p` is a position, and `V` is `tile_vectors(all_rows)` at most.
    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize, const V: usize>(&self, s: S, m: usize, p: usize) {
        let Rows { data, stride } = self.weights;
        let sums_stride = self.sums.stride;
        // SAFETY: `new` has compared the weights' length with what the last row and term need. The `V` vectors from p on
        // end before the overhang does, so that by the contract of `new` they may be read of each row of x, and written (and
        // read if `add` is set) of each row of sums.
        unsafe {
            let weights = data.as_ptr().add(m * stride);
            let to = self.sums.data.add(m * sums_stride + p);
            let mut sums = [[s.splat(0.0); V]; M];
            if self.add {
                for (m, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = s.load_f32(to.add(m * sums_stride + v * S::LANES));
                    }
                }
            }
            let x = self.x.start.wrapping_add(p);
            for (k, &offset) in self.x.offsets.iter().enumerate() {
                let mut factors = [s.splat(0.0); V];
                for (v, factor) in factors.iter_mut().enumerate() {
                    *factor = s.load_f32(x.add(offset + v * S::LANES));
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    let weight = s.splat(*weights.add(m * stride + k));
                    for (sum, &factor) in sums.iter_mut().zip(&factors) {
                        *sum = s.fma(weight, factor, *sum);
                    }
                }
            }
            for (m, sums) in sums.iter().enumerate() {
                for (v, &sum) in sums.iter().enumerate() {
                    s.store_f32(to.add(m * sums_stride + v * S::LANES), sum);
                }
            }
        }
    }
}

impl Kernel for TileGemm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match tile_vectors(self.all_rows) {
            8 => self.positions::<S, 8>(s),
            4 => self.positions::<S, 4>(s),
            3 => self.positions::<S, 3>(s),
            _ => self.positions::<S, 2>(s),
        }
    }
}
