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

/// `sums[m, p] = Σ_k weights[m, k] · x[offsets[k] + p]` for all rows m and positions p, added to the sums that are there if
/// `add` is set.
#[derive(Clone, Copy)]
pub struct TileGemm<'a> {
    pub weights: *const f32,
    /// Elements from row to row of the weights.
    pub weights_stride: usize,
    pub rows: usize,
    /// The rows of the whole product, of which this is a part: it decides how wide a tile is.
    pub all_rows: usize,
    pub offsets: &'a [usize],
    pub x: *const f32,
    pub positions: usize,
    pub sums: *mut f32,
    /// Elements from row to row of the sums.
    pub sums_stride: usize,
    pub add: bool,
}

impl TileGemm<'_> {
    /// # Safety
    /// With `n` for `positions +` [`overhang`]`(all_rows)`, where `rows ≤ all_rows`:
    /// - `weights` is valid for reads of `offsets.len()` elements from `m · weights_stride` on, for each row m;
    /// - `x` is valid for reads of `n` elements from each offset on, all of them initialised;
    /// - `sums` is valid for writes of `n` elements from `m · sums_stride` on, for each row m, and the elements are
    ///   initialised if `add` is set; no other thread touches them.
    pub unsafe fn run(self) {
        dispatch(Tiles(self))
    }
}

/// Made by [`TileGemm::run`] alone, whose contract holds for it.
struct Tiles<'a>(TileGemm<'a>);

impl Kernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the contract of `TileGemm::run`; tiles are as wide as `overhang` says at most.
        unsafe {
            match tile_vectors(self.0.all_rows) {
                8 => self.positions::<S, 8>(s),
                4 => self.positions::<S, 4>(s),
                3 => self.positions::<S, 3>(s),
                _ => self.positions::<S, 2>(s),
            }
        }
    }
}

impl Tiles<'_> {
    /// All positions, `V` vectors at a time.
    ///
    /// # Safety
    /// That of [`TileGemm::run`], with `V` for `tile_vectors(all_rows)`.
    #[inline(always)]
    unsafe fn positions<S: Simd, const V: usize>(&self, s: S) {
        for p in (0..self.0.positions).step_by(V * S::LANES) {
            match self.0.positions - p <= S::LANES {
                false => self.rows::<S, V>(s, p),
                true => self.rows::<S, 1>(s, p),
            }
        }
    }

    /// All rows for the `V` vectors from position `p` on.
    ///
    /// # Safety
    /// That of [`TileGemm::run`]; `p < positions`, and `V` is 1 or `tile_vectors(all_rows)`.
    #[inline(always)]
    unsafe fn rows<S: Simd, const V: usize>(&self, s: S, p: usize) {
        let rows = self.0.rows;
        for m in (0..rows).step_by(TILE_ROWS) {
            // `V` is 3 or more only where `all_rows`, and so `rows`, is 3 or less.
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

    /// `M` rows from `m` on by `V` vectors from `p` on.
    ///
    /// # Safety
    /// That of [`TileGemm::run`]; `m + M ≤ rows` and `p < positions`, and `V` is `tile_vectors(all_rows)` at most.
    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize, const V: usize>(&self, s: S, m: usize, p: usize) {
        let TileGemm {
            weights_stride,
            sums_stride,
            add,
            offsets,
            ..
        } = self.0;
        let weights = self.0.weights.add(m * weights_stride);
        let to = self.0.sums.add(m * sums_stride + p);
        let mut sums = [[s.splat(0.0); V]; M];
        if add {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load_f32(to.add(m * sums_stride + v * S::LANES));
                }
            }
        }
        let x = self.0.x.add(p);
        for (k, &offset) in offsets.iter().enumerate() {
            let mut factors = [s.splat(0.0); V];
            for (v, factor) in factors.iter_mut().enumerate() {
                *factor = s.load_f32(x.add(offset + v * S::LANES));
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let weight = s.splat(*weights.add(m * weights_stride + k));
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
