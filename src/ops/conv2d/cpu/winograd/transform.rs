//! The transforms of inputs to Winograd's domain, and of products back to outputs. Each lane of a vector is a tile.

use super::super::tile::{OffsetRows, Rows};
use super::{POINTS, TILE_IN, TILE_OUT};
use crate::cpu::simd::{Kernel, Simd, MAX_LANES};

/// Bᵀ x B of the tiles of a channel. x has a row for each element of a tile, and `to` one for each point.
pub struct TransformInput<'a> {
    x: OffsetRows<'a>,
    to: Rows<*mut f32>,
}

impl<'a> TransformInput<'a> {
    /// # Safety
    /// With `n` for x's length and a vector more, until the kernel has run: each row of x is valid for reads of `n`
    /// initialised elements, and [`POINTS`] rows of `to` for writes of `n`.
    pub unsafe fn new(x: OffsetRows<'a>, to: Rows<*mut f32>) -> Self {
        TransformInput { x, to }
    }
}

impl Kernel for TransformInput<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let TransformInput { x, to } = self;
        let offsets: &[usize; POINTS] = x.offsets.try_into().expect("a row for each element");
        for p in (0..x.len).step_by(S::LANES) {
            // SAFETY: p is a position, and by the contract of `new` both reach a vector beyond the last one.
            unsafe {
                let mut columns = [[s.splat(0.0); TILE_IN]; TILE_IN];
                for (j, column) in columns.iter_mut().enumerate() {
                    for (i, element) in column.iter_mut().enumerate() {
                        *element = s.load_f32(x.start.add(offsets[i * TILE_IN + j] + p));
                    }
                    *column = input_1d(s, *column);
                }
                for (i, row) in rows_of_columns(columns).into_iter().enumerate() {
                    for (j, x) in input_1d(s, row).into_iter().enumerate() {
                        s.store_f32(to.data.add((i * TILE_IN + j) * to.stride + p), x);
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

/// Aᵀ y A of the products of an output channel, which have a row for each point. `to` has [`TILE_OUT`] rows, with as many
/// columns for each position.
pub struct TransformOutputs<'a> {
    from: Rows<*const f32>,
    to: Rows<*mut f32>,
    positions: usize,
    /// Whether all outputs are finite.
    all_finite: &'a mut bool,
}

impl<'a> TransformOutputs<'a> {
    /// # Safety
    /// With `n` for `positions` and a vector more, until the kernel has run: each row of `from` is valid for reads of `n`
    /// initialised elements, and each row of `to` for writes of [`TILE_OUT`] times as many.
    pub unsafe fn new(
        from: Rows<*const f32>,
        to: Rows<*mut f32>,
        positions: usize,
        all_finite: &'a mut bool,
    ) -> Self {
        TransformOutputs {
            from,
            to,
            positions,
            all_finite,
        }
    }
}

impl Kernel for TransformOutputs<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let TransformOutputs { from, to, .. } = self;
        let zero = s.splat(0.0);
        let mut nothing = zero;
        for p in (0..self.positions).step_by(S::LANES) {
            // SAFETY: p < positions, and by the contract of `new` products and outputs reach a vector of tiles beyond the
            // last position.
            unsafe {
                let mut columns = [[zero; TILE_OUT]; TILE_IN];
                for (j, column) in columns.iter_mut().enumerate() {
                    let mut products = [zero; TILE_IN];
                    for (i, x) in products.iter_mut().enumerate() {
                        *x = s.load_f32(from.data.add((i * TILE_IN + j) * from.stride + p));
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
                    let to = to.data.add(i * to.stride + p * TILE_OUT);
                    for lane in 0..S::LANES {
                        for (j, lanes) in lanes.iter().enumerate() {
                            *to.add(lane * TILE_OUT + j) = lanes[lane];
                        }
                    }
                }
            }
        }
        *self.all_finite = s.reduce_add(nothing) == 0.0;
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
