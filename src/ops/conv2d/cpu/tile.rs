//! The inner loop: a few rows of weights times vectors of positions.

use crate::cpu::simd::{Kernel, Simd, MAX_LANES};

/// Rows of weights that are multiplied side by side. Six of them and two vectors make twelve sums, which hide the latency
/// of FMA and leave registers for the factors.
pub const ROWS: usize = 6;

/// How many vectors of positions a tile has: the fewer rows, the more.
const fn vectors(rows: usize) -> usize {
    match rows {
        1 => 8,
        2 => 4,
        3 => 3,
        _ => 2,
    }
}

/// Positions are computed in multiples of this at most.
pub const fn overhang(rows: usize) -> usize {
    vectors(rows) * MAX_LANES
}

/// Factors that are summed up in one go: those of a tile's positions should stay in the first cache, to be met by all
/// rows.
pub const FACTORS: usize = 256;

/// `sums[m, p] = Σ_k weights[m, k] · x[offsets[k] + p]`, added to what is there if `add` is set.
#[derive(Clone, Copy)]
pub struct Tiles<'a> {
    pub weights: *const f32,
    /// From row to row.
    pub stride: usize,
    pub rows: usize,
    /// All rows of the product: it decides how wide a tile is.
    pub of_rows: usize,
    pub offsets: &'a [usize],
    pub x: *const f32,
    pub positions: usize,
    /// Rows of `sums_stride`, which is `positions` and [`overhang`] at least.
    pub sums: *mut f32,
    pub sums_stride: usize,
    pub add: bool,
}

impl Kernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: whoever made the tiles promised their memory.
        unsafe {
            match vectors(self.of_rows) {
                8 => self.tiles::<S, 8>(s),
                4 => self.tiles::<S, 4>(s),
                3 => self.tiles::<S, 3>(s),
                _ => self.tiles::<S, 2>(s),
            }
        }
    }
}

impl Tiles<'_> {
    #[inline(always)]
    unsafe fn tiles<S: Simd, const V: usize>(&self, s: S) {
        for p in (0..self.positions).step_by(V * S::LANES) {
            match self.positions - p <= S::LANES {
                false => self.rows::<S, V>(s, p),
                true => self.rows::<S, 1>(s, p),
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<S: Simd, const V: usize>(&self, s: S, p: usize) {
        for m in (0..self.rows).step_by(ROWS) {
            // No more rows than `vectors` says are met by so many vectors.
            match (V, self.rows - m) {
                (_, 1) => self.tile::<S, 1, V>(s, m, p),
                (1..=4, 2) => self.tile::<S, 2, V>(s, m, p),
                (1..=3, 3) => self.tile::<S, 3, V>(s, m, p),
                (1 | 2, 4) => self.tile::<S, 4, V>(s, m, p),
                (1 | 2, 5) => self.tile::<S, 5, V>(s, m, p),
                (1 | 2, _) => self.tile::<S, ROWS, V>(s, m, p),
                _ => unreachable!("{} rows by {V} vectors", self.rows),
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize, const V: usize>(&self, s: S, m: usize, p: usize) {
        let weights = self.weights.add(m * self.stride);
        let to = self.sums.add(m * self.sums_stride + p);
        let mut sums = [[s.splat(0.0); V]; M];
        if self.add {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load_f32(to.add(m * self.sums_stride + v * S::LANES));
                }
            }
        }
        let x = self.x.add(p);
        for (k, &offset) in self.offsets.iter().enumerate() {
            let mut factors = [s.splat(0.0); V];
            for (v, factor) in factors.iter_mut().enumerate() {
                *factor = s.load_f32(x.add(offset + v * S::LANES));
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let weight = s.splat(*weights.add(m * self.stride + k));
                for (sum, &factor) in sums.iter_mut().zip(&factors) {
                    *sum = s.fma(weight, factor, *sum);
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                s.store_f32(to.add(m * self.sums_stride + v * S::LANES), sum);
            }
        }
    }
}
