//! A unit's numbers are measured, then turned into codes, values or clipped gradients while they are in the cache.

mod coder;
mod decode;
mod make;
mod unit;

pub use decode::{dequantize, Decoder};
pub use unit::{AbsMax, Sums};

use super::{Scheme, NAME};
use crate::cpu::element::Element;
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::{alloc, with_float};
use candle_core::{CpuStorage, Layout, Result};
use coder::Coder;
use make::{Clipped, Codes, Values};

type Arg<'a> = (&'a CpuStorage, &'a Layout);

/// Cost of an element, as in [`parallel`].
const COST: usize = 3;
/// Columns that are measured or written at a time where a unit is more than that: whole bytes of every packing.
const BLOCK: usize = 40 * 1024;

fn size(l: &Layout) -> (usize, usize) {
    let cols = l.dims().last().copied().unwrap_or(1);
    (l.shape().elem_count() / cols.max(1), cols)
}

/// Codes, scales and offsets.
pub type Parts = (Vec<u8>, Vec<f32>, Option<Vec<f32>>);

pub fn quantize(scheme: Scheme, x: &CpuStorage, l: &Layout) -> Result<Parts> {
    let (rows, cols) = size(l);
    let row_bytes = scheme.row_bytes(cols);
    if rows * cols == 0 {
        let all = |value: f32| vec![value; scheme.scales_shape(l.shape()).elem_count()];
        let offsets = scheme.has_offsets().then(|| all(0.0));
        return Ok((Vec::new(), all(scheme.eps), offsets));
    }
    let (codes, units) = with_float!(NAME, x, |x: &[T]| {
        let x = RowView::<T>::new(x, l);
        let mut units = Vec::new();
        // SAFETY: every byte of every row is written.
        let codes = unsafe {
            alloc::build(rows * row_bytes, |to: *mut u8| {
                let make = Codes {
                    scheme: &scheme,
                    to: Shared::new(to),
                    row_bytes,
                    packed: scheme.per_byte() > 1,
                };
                let coder = Coder {
                    scheme: &scheme,
                    x: &x,
                    cols,
                    make,
                };
                units = coder.run(rows);
            })
        };
        Ok((codes, units))
    })?;
    let shown = |i: usize| {
        units
            .iter()
            .map(|unit| unit.shown(scheme.grid)[i])
            .collect()
    };
    let offsets = scheme.has_offsets().then(|| shown(1));
    Ok((codes, shown(0), offsets))
}

/// The values of the codes of x.
pub fn fake(scheme: Scheme, x: &CpuStorage, l: &Layout) -> Result<CpuStorage> {
    let (rows, cols) = size(l);
    with_float!("fake_quantize", x, |x: &[T]| {
        let x = RowView::new(x, l);
        // SAFETY: every row is written.
        Ok(T::wrap(unsafe {
            alloc::build(rows * cols, |to: *mut T| {
                let make = Values {
                    to: Shared::new(to),
                    cols,
                };
                let coder = Coder {
                    scheme: &scheme,
                    x: &x,
                    cols,
                    make,
                };
                coder.run(rows);
            })
        }))
    })
}

/// g where the codes of x reach.
pub fn clip(scheme: Scheme, (x, xl): Arg, (g, gl): Arg) -> Result<CpuStorage> {
    let (rows, cols) = size(xl);
    with_float!("fake_quantize", x, |x: &[T]| {
        let g = g.as_slice::<T>()?;
        let (x, g) = (RowView::new(x, xl), RowView::new(g, gl));
        // SAFETY: every row is written.
        Ok(T::wrap(unsafe {
            alloc::build(rows * cols, |to: *mut T| {
                let make = Clipped {
                    g: &g,
                    to: Shared::new(to),
                    cols,
                    first: scheme.min_code() as f32,
                    last: scheme.max_code() as f32,
                };
                let coder = Coder {
                    scheme: &scheme,
                    x: &x,
                    cols,
                    make,
                };
                coder.run(rows);
            })
        }))
    })
}
