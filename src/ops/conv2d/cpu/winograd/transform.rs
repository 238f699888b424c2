//! Images to the domain, and products back.

use super::{POINTS, SEEN, TILE};
use crate::cpu::simd::{Kernel, Simd, MAX_LANES};

/// Bᵀ d B of a channel.
pub struct TransformImage<'a> {
    pub from: *const f32,
    pub offsets: &'a [usize; POINTS],
    pub positions: usize,
    pub to: *mut f32,
    /// From point to point.
    pub point: usize,
}

impl Kernel for TransformImage<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for p in (0..self.positions).step_by(S::LANES) {
            // SAFETY: the part and the transformed elements reach a vector beyond the last position.
            unsafe {
                let mut columns = [[s.splat(0.0); SEEN]; SEEN];
                for (j, column) in columns.iter_mut().enumerate() {
                    for (i, x) in column.iter_mut().enumerate() {
                        *x = s.load_f32(self.from.add(self.offsets[i * SEEN + j] + p));
                    }
                    *column = image_1d(s, *column);
                }
                for (i, row) in turned(columns).into_iter().enumerate() {
                    for (j, x) in image_1d(s, row).into_iter().enumerate() {
                        s.store_f32(self.to.add((i * SEEN + j) * self.point + p), x);
                    }
                }
            }
        }
    }
}

/// Bᵀ d
#[inline(always)]
fn image_1d<S: Simd>(s: S, d: [S::F; SEEN]) -> [S::F; SEEN] {
    let (four, five) = (s.splat(4.0), s.splat(5.0));
    let a = s.fnma(four, d[2], d[4]);
    let b = s.fnma(four, d[1], d[3]);
    let c = s.sub(d[4], d[2]);
    let e = s.sub(d[3], d[1]);
    let e = s.add(e, e);
    [
        s.fma(four, d[0], s.fnma(five, d[2], d[4])),
        s.add(a, b),
        s.sub(a, b),
        s.add(c, e),
        s.sub(c, e),
        s.fma(four, d[1], s.fnma(five, d[3], d[5])),
    ]
}

/// Aᵀ y A of an output channel, tile by tile; whether all of them are finite.
pub struct TransformProducts {
    pub from: *const f32,
    /// From point to point.
    pub point: usize,
    pub positions: usize,
    /// Rows of the outputs of all tiles, [`TILE`] for each position.
    pub to: *mut f32,
    pub stride: usize,
}

impl Kernel for TransformProducts {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let zero = s.splat(0.0);
        let mut nothing = zero;
        for p in (0..self.positions).step_by(S::LANES) {
            // SAFETY: products and sums reach a vector beyond the last position.
            unsafe {
                let mut columns = [[zero; TILE]; SEEN];
                for (j, column) in columns.iter_mut().enumerate() {
                    let mut products = [zero; SEEN];
                    for (i, x) in products.iter_mut().enumerate() {
                        *x = s.load_f32(self.from.add((i * SEEN + j) * self.point + p));
                    }
                    *column = output_1d(s, products);
                }
                for (i, row) in turned(columns).into_iter().enumerate() {
                    let row = output_1d(s, row);
                    let mut lanes = [[0f32; MAX_LANES]; TILE];
                    for (lanes, &y) in lanes.iter_mut().zip(&row) {
                        // 0 · y is 0 unless y is infinite or NaN.
                        nothing = s.fma(y, zero, nothing);
                        *lanes = s.to_array(y);
                    }
                    let to = self.to.add(i * self.stride + p * TILE);
                    for lane in 0..S::LANES {
                        for (j, lanes) in lanes.iter().enumerate() {
                            *to.add(lane * TILE + j) = lanes[lane];
                        }
                    }
                }
            }
        }
        s.reduce_add(nothing) == 0.0
    }
}

/// Aᵀ y
#[inline(always)]
fn output_1d<S: Simd>(s: S, y: [S::F; SEEN]) -> [S::F; TILE] {
    let (sum, difference) = (s.add(y[1], y[2]), s.sub(y[1], y[2]));
    let (sum2, difference2) = (s.add(y[3], y[4]), s.sub(y[3], y[4]));
    [
        s.add(y[0], s.add(sum, sum2)),
        s.fma(s.splat(2.0), difference2, difference),
        s.fma(s.splat(4.0), sum2, sum),
        s.add(s.fma(s.splat(8.0), difference2, difference), y[5]),
    ]
}

/// Rows of columns.
#[inline(always)]
pub fn turned<F: Copy, const R: usize, const C: usize>(columns: [[F; R]; C]) -> [[F; C]; R] {
    let mut rows = [[columns[0][0]; C]; R];
    for (j, column) in columns.iter().enumerate() {
        for (row, &x) in rows.iter_mut().zip(column) {
            row[j] = x;
        }
    }
    rows
}
