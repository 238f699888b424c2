//! Rows are copied by all threads; their gradients are added up segment by segment of equal ids.

use super::NAME;
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::with_float;
use crate::op::on_cpu::Arg;
use crate::ops::targets;
use candle_core::{CpuStorage, Layout, Result};
use std::ops::Range;

pub fn forward((w, wl): Arg, ids: Arg) -> Result<CpuStorage> {
    let ids = targets::read(NAME, "ids", ids, wl.dims()[0], None)?;
    with_float!(NAME, w, |w: &[T]| Ok(T::wrap(rows(w, wl, &ids))))
}

fn rows<T: Element>(w: &[T], layout: &Layout, ids: &[u32]) -> Vec<T> {
    let (cols, start) = (layout.dims()[1], layout.start_offset());
    let [row, col] = [0, 1].map(|i| layout.stride()[i]);
    // SAFETY: the ranges cover all rows of y without overlap, and every element of each is written. Slices check the reads.
    unsafe {
        alloc::build(ids.len() * cols, |y: *mut T| {
            let y = Shared::new(y);
            parallel::ranges(ids.len(), cols, 1, |range| {
                for i in range {
                    let (from, to) = (start + ids[i] as usize * row, y.get().add(i * cols));
                    if col == 1 {
                        let from = &w[from..][..cols];
                        std::ptr::copy_nonoverlapping(from.as_ptr(), to, cols);
                        continue;
                    }
                    for j in 0..cols {
                        to.add(j).write(w[from + j * col]);
                    }
                }
            });
        })
    }
}

pub fn backward((g, gl): Arg, ids: Arg, vocabulary: usize) -> Result<CpuStorage> {
    let ids = targets::read(NAME, "ids", ids, vocabulary, None)?;
    let cols = gl.dims()[gl.dims().len() - 1];
    with_float!(NAME, g, |g: &[T]| {
        let g = RowView::new(g, gl);
        Ok(T::wrap(sum_segments(
            &g,
            &Segments::new(&ids, vocabulary),
            cols,
        )))
    })
}

/// Positions sorted by their ids.
struct Segments {
    /// The positions of equal ids are neighbours, in their own order.
    positions: Vec<u32>,
    /// The ids that occur, each with the place of its positions.
    used: Vec<(u32, Range<usize>)>,
    vocabulary: usize,
}

impl Segments {
    /// By counting: the time is that of the ids and the vocabulary together.
    fn new(ids: &[u32], vocabulary: usize) -> Self {
        let mut next = vec![0usize; vocabulary];
        for &id in ids {
            next[id as usize] += 1;
        }
        let (mut used, mut end) = (Vec::new(), 0);
        for (id, next) in next.iter_mut().enumerate() {
            let start = end;
            end += *next;
            if start < end {
                used.push((id as u32, start..end));
            }
            *next = start;
        }
        let mut positions = vec![0u32; ids.len()];
        for (position, &id) in ids.iter().enumerate() {
            let next = &mut next[id as usize];
            positions[*next] = position as u32;
            *next += 1;
        }
        Segments {
            positions,
            used,
            vocabulary,
        }
    }
}

/// Columns that a thread adds up at a time, so that one id which is everywhere keeps several threads busy.
const BLOCK: usize = 512;

fn sum_segments<T: Element>(g: &RowView<T>, segments: &Segments, cols: usize) -> Vec<T> {
    let mut out = vec![T::ZERO; segments.vocabulary * cols];
    let blocks = cols.div_ceil(BLOCK);
    let rows = segments
        .positions
        .len()
        .div_ceil(segments.used.len().max(1));
    let to = Shared::new(out.as_mut_ptr());
    let cost = (rows + 1) * cols.min(BLOCK);
    parallel::ranges(segments.used.len() * blocks, cost, 1, |units| {
        // SAFETY: g has a row of `cols` elements for each position, `out` one for each id, and no other thread has these units.
        unsafe { dispatch(Sums::new(g, segments, to, cols, units)) }
    });
    out
}

/// Some columns of the gradients of some ids.
struct Sums<'a, T> {
    g: &'a RowView<'a, T>,
    segments: &'a Segments,
    out: Shared<T>,
    cols: usize,
    units: Range<usize>,
}

impl<'a, T: Element> Sums<'a, T> {
    /// # Safety
    /// `g` has a row of `cols` elements for each position of the segments, and `out` room for one for each id of the
    /// vocabulary. No other thread is given these units, which count blocks of columns of the used ids.
    unsafe fn new(
        g: &'a RowView<'a, T>,
        segments: &'a Segments,
        out: Shared<T>,
        cols: usize,
        units: Range<usize>,
    ) -> Self {
        Sums {
            g,
            segments,
            out,
            cols,
            units,
        }
    }
}

impl<T: Element> Kernel for Sums<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        /// Accumulators that stay in registers while all rows of a segment are added.
        const WAYS: usize = 8;
        let blocks = self.cols.div_ceil(BLOCK);
        for unit in self.units {
            let (id, places) = &self.segments.used[unit / blocks];
            let first = unit % blocks * BLOCK;
            let end = self.cols.min(first + BLOCK);
            let positions = &self.segments.positions[places.clone()];
            let mut j = first;
            // SAFETY: rows have `cols` elements, of which those from j to `end` are read and written.
            unsafe {
                let to = self.out.get().add(*id as usize * self.cols);
                while j + WAYS * S::LANES <= end {
                    let mut sums = [s.splat(0.0); WAYS];
                    for &position in positions {
                        let row = self.g.row(position as usize).add(j);
                        for (k, sum) in sums.iter_mut().enumerate() {
                            *sum = s.add(*sum, T::load(s, row.add(k * S::LANES)));
                        }
                    }
                    for (k, sum) in sums.iter().enumerate() {
                        T::store(s, to.add(j + k * S::LANES), *sum);
                    }
                    j += WAYS * S::LANES;
                }
                while j < end {
                    let mut sum = s.splat(0.0);
                    for &position in positions {
                        let row = self.g.row(position as usize).add(j);
                        sum = s.add(sum, T::load_upto(s, row, end - j));
                    }
                    T::store_upto(s, to.add(j), end - j, sum);
                    j += S::LANES;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_found_by_their_id() {
        let segments = Segments::new(&[3, 0, 3, 1, 0], 5);
        assert_eq!(segments.positions, [1, 4, 3, 0, 2]);
        assert_eq!(segments.used, [(0, 0..2), (1, 2..3), (3, 3..5)]);
    }
}
