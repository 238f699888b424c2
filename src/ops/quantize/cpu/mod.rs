//! Quantisation on the CPU.
//!
//! A tensor is a number of rows of `cols` elements, those of its last dim. Which elements share a scale:
//!
//! ```text
//!         ┌─ group ─┬─────────┬─────────┐
//!   row 0 │ x x x x │ x x x x │ x x x x │   per tensor   one scale for all boxes
//!         ├─────────┼─────────┼─────────┤   per row      one for each line of boxes
//!   row 1 │ x x x x │ x x x x │ x x x x │   per group    one for each box
//!         ├─────────┼─────────┼─────────┤   per column   one for each of the 12 columns, over all rows
//!   row 2 │ x x x x │ x x x x │ x x x x │
//!         └─────────┴─────────┴─────────┘
//! ```
//!
//! The way of an element, and the file of each step:
//!
//! ```text
//!   x ──measure──► Stats ──► ScaleParams (scale, zero, bias)        statistics.rs, params.rs
//!   x ──encode with ScaleParams──► code                             rounding.rs
//!   code ──sink──► packed byte, value or clipped gradient           sink.rs
//! ```
//!
//! [`encode`] drives this for scales per tensor, row and group, [`columns`] for scales per column. [`decode`] goes back from
//! packed bytes to values. Codes leave the vectors one to a byte and are packed `STAGED` columns at a time; a row begins
//! with a byte of its own. With 2-bit codes and 6 columns:
//!
//! ```text
//!   staged  c0 c1 c2 c3 c4 c5                      one byte each
//!   packed  [c3 c2 c1 c0] [0 0 c5 c4]              highest bits first, row 0
//!           [c3 c2 c1 c0] [0 0 c5 c4]              row 1
//! ```

mod columns;
mod decode;
mod encode;
mod params;
mod rounding;
mod sink;
mod statistics;

pub use decode::{dequantize, elements, Decoder};
pub use statistics::{AbsMax, Sums};

use crate::cpu::element::Element;
use crate::cpu::row_view::RowView;
use crate::cpu::{alloc, with_float};
use crate::op::on_cpu::Arg;
use crate::quant::Scheme;
use candle_core::{CpuStorage, Layout, Result};
use encode::Encoder;
use sink::{ClippedGrad, PackedCodes, Values};

/// Cost of measuring and encoding an element, in the units of [`parallel`](crate::cpu::parallel).
const COST: usize = 3;

/// Rows and columns.
fn size(l: &Layout) -> (usize, usize) {
    let cols = l.dims().last().copied().unwrap_or(1);
    (l.shape().elem_count() / cols.max(1), cols)
}

/// Codes, scales and, where the scheme has them, offsets.
type Encoded = (Vec<u8>, Vec<f32>, Option<Vec<f32>>);

/// The codes, scales and offsets of x, which has passed [`Scheme::check`].
pub fn quantize(scheme: Scheme, (x, l): Arg) -> Result<Encoded> {
    let (rows, cols) = size(l);
    if rows * cols == 0 {
        let count = scheme.scales_shape(l.shape())?.elem_count();
        let offsets = scheme.has_offsets().then(|| vec![0.0; count]);
        return Ok((Vec::new(), vec![scheme.eps; count], offsets));
    }
    let (codes, params) = with_float!("quantize", x, |x: &[T]| {
        let x = RowView::<T>::new(x, l);
        let mut params = Vec::new();
        // SAFETY: x has `rows` rows of `cols` columns, there is room for as many packed rows, and the encoder puts and
        // flushes all columns of all rows, so that every byte is written.
        let codes = unsafe {
            alloc::build(rows * scheme.row_bytes(cols), |to| {
                let sink = PackedCodes::new(&scheme, to, cols);
                params = Encoder::new(&scheme, &x, (rows, cols), sink).run();
            })
        };
        Ok((codes, params))
    })?;
    let stored = |i: usize| {
        let params = params.iter();
        params.map(|p| p.stored(scheme.levels)[i]).collect()
    };
    let offsets = scheme.has_offsets().then(|| stored(1));
    Ok((codes, stored(0), offsets))
}

/// The values of the codes of x, which has passed [`Scheme::check`].
pub fn fake_quantize(scheme: Scheme, (x, l): Arg) -> Result<CpuStorage> {
    let (rows, cols) = size(l);
    with_float!("fake_quantize", x, |x: &[T]| {
        let x = RowView::new(x, l);
        // SAFETY: x has `rows` rows of `cols` columns, there is room for as many values, and the encoder puts them all.
        Ok(T::wrap(unsafe {
            alloc::build(rows * cols, |to| {
                let sink = Values::new(to, cols);
                Encoder::new(&scheme, &x, (rows, cols), sink).run();
            })
        }))
    })
}

/// g where x is at most half a step beyond the outermost codes, else 0. x has passed [`Scheme::check`]; g has its shape and
/// dtype.
pub fn clip_grad(scheme: Scheme, (x, xl): Arg, (g, gl): Arg) -> Result<CpuStorage> {
    let (rows, cols) = size(xl);
    with_float!("fake_quantize", x, |x: &[T]| {
        let g = g.as_slice::<T>()?;
        let (x, g) = (RowView::new(x, xl), RowView::new(g, gl));
        // SAFETY: as for `fake_quantize`; g has x's shape.
        Ok(T::wrap(unsafe {
            alloc::build(rows * cols, |to| {
                let sink = ClippedGrad::new(&scheme, &g, to, cols);
                Encoder::new(&scheme, &x, (rows, cols), sink).run();
            })
        }))
    })
}
