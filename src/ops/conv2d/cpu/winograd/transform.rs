//! The transforms of inputs to Winograd's domain, and of products back to outputs. Each lane of a vector is a tile.

use super::{POINTS, TILE_IN, TILE_OUT};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};

/// Bᵀ x B of the tiles of a channel.
pub struct TransformInput<'a> {
    pub from: *const f32,
    /// For each element of a tile: where the first tile's is.
    pub offsets: &'a [usize; POINTS],
    pub positions: usize,
    pub to: *mut f32,
    /// Elements from point to point.
    pub point_stride: usize,
}

impl TransformInput<'_> {
    /// # Safety
    /// With `n` for `positions` and a vector more: `from` is valid for reads of `n` initialised elements from each offset on,
    /// and `to` for writes of `n` from each `point · point_stride` on.
    pub unsafe fn run(self) {
        dispatch(Input(self))
    }
}

/// Made by [`TransformInput::run`] alone, whose contract holds for it.
struct Input<'a>(TransformInput<'a>);

impl Kernel for Input<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let TransformInput {
            from,
            offsets,
            positions,
            to,
            point_stride,
        } = self.0;
        for p in (0..positions).step_by(S::LANES) {
            // SAFETY: p < positions, and both reach a vector beyond the last position.
            unsafe {
                let mut columns = [[s.splat(0.0); TILE_IN]; TILE_IN];
                for (j, column) in columns.iter_mut().enumerate() {
                    for (i, x) in column.iter_mut().enumerate() {
                        *x = s.load_f32(from.add(offsets[i * TILE_IN + j] + p));
                    }
                    *column = input_1d(s, *column);
                }
                for (i, row) in rows_of_columns(columns).into_iter().enumerate() {
                    for (j, x) in input_1d(s, row).into_iter().enumerate() {
                        s.store_f32(to.add((i * TILE_IN + j) * point_stride + p), x);
                    }
                }
            }
        }
    }
}

/// Bᵀ x
#[inline(always)]
fn input_1d<S: Simd>(s: S, d: [S::F; TILE_IN]) -> [S::F; TILE_IN] {
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

/// Aᵀ y A of the products of an output channel.
pub struct TransformOutputs {
    pub from: *const f32,
    /// Elements from point to point.
    pub point_stride: usize,
    pub positions: usize,
    /// Four rows of outputs, with [`TILE_OUT`] columns for each tile.
    pub to: *mut f32,
    pub row_stride: usize,
}

impl TransformOutputs {
    /// Whether all outputs are finite.
    ///
    /// # Safety
    /// With `n` for `positions` and a vector more: `from` is valid for reads of `n` initialised elements from each
    /// `point · point_stride` on, and `to` for writes of `4 · n` from each `row · row_stride` on.
    pub unsafe fn run(self) -> bool {
        dispatch(Outputs(self))
    }
}

/// Made by [`TransformOutputs::run`] alone, whose contract holds for it.
struct Outputs(TransformOutputs);

impl Kernel for Outputs {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let TransformOutputs {
            from,
            point_stride,
            positions,
            to,
            row_stride,
        } = self.0;
        let zero = s.splat(0.0);
        let mut nothing = zero;
        for p in (0..positions).step_by(S::LANES) {
            // SAFETY: p < positions, and products and outputs reach a vector of tiles beyond the last position.
            unsafe {
                let mut columns = [[zero; TILE_OUT]; TILE_IN];
                for (j, column) in columns.iter_mut().enumerate() {
                    let mut products = [zero; TILE_IN];
                    for (i, x) in products.iter_mut().enumerate() {
                        *x = s.load_f32(from.add((i * TILE_IN + j) * point_stride + p));
                    }
                    *column = output_1d(s, products);
                }
                for (i, row) in rows_of_columns(columns).into_iter().enumerate() {
                    let row = output_1d(s, row);
                    let mut lanes = [[0f32; MAX_LANES]; TILE_OUT];
                    for (lanes, &y) in lanes.iter_mut().zip(&row) {
                        // 0 · y is 0 unless y is infinite or NaN.
                        nothing = s.fma(y, zero, nothing);
                        *lanes = s.to_array(y);
                    }
                    let to = to.add(i * row_stride + p * TILE_OUT);
                    for lane in 0..S::LANES {
                        for (j, lanes) in lanes.iter().enumerate() {
                            *to.add(lane * TILE_OUT + j) = lanes[lane];
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
fn output_1d<S: Simd>(s: S, y: [S::F; TILE_IN]) -> [S::F; TILE_OUT] {
    let (sum, difference) = (s.add(y[1], y[2]), s.sub(y[1], y[2]));
    let (sum2, difference2) = (s.add(y[3], y[4]), s.sub(y[3], y[4]));
    [
        s.add(y[0], s.add(sum, sum2)),
        s.fma(s.splat(2.0), difference2, difference),
        s.fma(s.splat(4.0), sum2, sum),
        s.add(s.fma(s.splat(8.0), difference2, difference), y[5]),
    ]
}

/// The transpose: rows of a matrix that is given by columns.
#[inline(always)]
pub fn rows_of_columns<F: Copy, const R: usize, const C: usize>(
    columns: [[F; R]; C],
) -> [[F; C]; R] {
    let mut rows = [[columns[0][0]; C]; R];
    for (j, column) in columns.iter().enumerate() {
        for (row, &x) in rows.iter_mut().zip(column) {
            row[j] = x;
        }
    }
    rows
}
