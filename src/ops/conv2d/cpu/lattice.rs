//! Parts of images as convolutions read them.

use crate::cpu::element::Element;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use candle_core::{DType, Layout};
use std::ops::Range;

/// A tensor `[batch, channels, ..size]` where it lies.
#[derive(Clone, Copy)]
pub struct Image<'a, T> {
    data: &'a [T],
    stride: [usize; 4],
    size: [usize; 2],
}

impl<'a, T: Element> Image<'a, T> {
    pub fn new(data: &'a [T], layout: &Layout) -> Self {
        let (dims, strides) = (layout.dims(), layout.stride());
        Image {
            // A view of nothing may begin past the end.
            data: &data[layout.start_offset().min(data.len())..],
            stride: [strides[0], strides[1], strides[2], strides[3]],
            size: [dims[2], dims[3]],
        }
    }

    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// From `first` on, each row (or column) so many steps further.
    pub fn every(mut self, dim: usize, first: usize, step: usize) -> Self {
        // Beyond the end there is nothing to begin with.
        let start = (first * self.stride[2 + dim]).min(self.data.len());
        self.data = &self.data[start..];
        self.size[dim] = self.size[dim].saturating_sub(first).div_ceil(step);
        self.stride[2 + dim] *= step;
        self
    }

    /// The element at a row and column, if they are the image's.
    pub fn get(&self, image: usize, channel: usize, at: [isize; 2]) -> Option<T> {
        let inside = |i: usize| (0..self.size[i] as isize).contains(&at[i]);
        if !inside(0) || !inside(1) {
            return None;
        }
        let at = [image, channel, at[0] as usize, at[1] as usize];
        let offset: usize = at
            .iter()
            .zip(self.stride)
            .map(|(i, stride)| i * stride)
            .sum();
        self.data.get(offset).copied()
    }

    /// The same elements as images of a single row, if one step leads from each to the next.
    pub fn as_row(self) -> Option<Self> {
        let [image, channel, row, col] = self.stride;
        let [rows, cols] = self.size;
        let one = rows == 1 || row == cols * col;
        one.then_some(Image {
            data: self.data,
            stride: [image, channel, rows * row, col],
            size: [1, rows * cols],
        })
    }
}

/// A part of an image with its rows and columns sorted by phase: those a stride apart are neighbours. Whatever the stride,
/// a kernel's place then sees consecutive elements for consecutive outputs; and since the rows of all phases are equally
/// long, from an output to that of the next row it is the same step everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Lattice {
    pub phases: [usize; 2],
    /// Of each phase.
    pub rows: usize,
    pub cols: usize,
}

impl Lattice {
    /// The elements of a channel.
    pub fn plane(&self) -> usize {
        self.phases[0] * self.phases[1] * self.rows * self.cols
    }

    /// Where a row and column of the part are.
    pub fn at(&self, row: usize, col: usize) -> usize {
        let [height, width] = self.phases;
        let phase = row % height * width + col % width;
        (phase * self.rows + row / height) * self.cols + col / width
    }

    /// Copies channels of the part that begins at `origin`, one behind the other, with zeros for what is outside.
    ///
    /// # Safety
    /// `to` has room for them.
    pub unsafe fn fill<T: Element>(
        &self,
        x: Image<T>,
        image: usize,
        channels: Range<usize>,
        origin: [isize; 2],
        to: *mut f32,
    ) {
        dispatch(Fill {
            lattice: *self,
            x,
            image,
            channels,
            origin,
            to,
        });
    }

    /// Of `len` rows (or columns) of a phase that begins at `first`, those that the image has.
    fn inside(&self, dim: usize, first: isize, len: usize, size: usize) -> Range<usize> {
        let step = self.phases[dim];
        let start = (-first).max(0) as usize;
        let end = (size as isize - first).max(0) as usize;
        let start = start.div_ceil(step).min(len);
        start..end.div_ceil(step).clamp(start, len)
    }
}

struct Fill<'a, T> {
    lattice: Lattice,
    x: Image<'a, T>,
    image: usize,
    channels: Range<usize>,
    origin: [isize; 2],
    to: *mut f32,
}

impl<T: Element> Kernel for Fill<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: there is room for every phase of every channel.
        unsafe {
            match (self.lattice.phases[1], self.x.stride[3]) {
                (1, 1) => self.rows::<S, 1>(s),
                (2, 1) => self.rows::<S, 2>(s),
                (4, 1) => self.rows::<S, 4>(s),
                _ => self.rows::<S, 0>(s),
            }
        }
    }
}

impl<T: Element> Fill<'_, T> {
    /// With `W` phases to a row whose elements are neighbours, or, if it is 0, any number and elements anywhere.
    #[inline(always)]
    unsafe fn rows<S: Simd, const W: usize>(&self, s: S) {
        let Lattice { phases, rows, cols } = self.lattice;
        let [image, channel, row_step, _] = self.x.stride;
        let columns = self.columns(W > 0);
        for (i, c) in self.channels.clone().enumerate() {
            let start = self.image * image + c * channel;
            let plane = self.to.add(i * self.lattice.plane());
            for above in 0..phases[0] {
                let top = self.origin[0] + above as isize;
                let inside = self.lattice.inside(0, top, rows, self.x.size[0]);
                for r in 0..rows {
                    let to = plane.add((above * phases[1] * rows + r) * cols);
                    if !inside.contains(&r) {
                        for left in 0..phases[1] {
                            zero(s, to.add(left * rows * cols), 0..cols);
                        }
                        continue;
                    }
                    let row = (top + (r * phases[0]) as isize) as usize;
                    self.row::<S, W>(s, &columns, start + row * row_step, to);
                }
            }
        }
    }

    /// Of each phase the columns that x has, and those that all have if they are to be dealt out together.
    fn columns(&self, together: bool) -> (Vec<Range<usize>>, Range<usize>) {
        let cols = self.lattice.cols;
        let each: Vec<_> = (0..self.lattice.phases[1])
            .map(|left| {
                let first = self.origin[1] + left as isize;
                self.lattice.inside(1, first, cols, self.x.size[1])
            })
            .collect();
        let start = each.iter().map(|r| r.start).max().unwrap_or(0);
        let end = each.iter().map(|r| r.end).min().unwrap_or(0);
        let common = if together && start < end {
            start..end
        } else {
            0..0
        };
        (each, common)
    }

    /// All phases of one row of x.
    #[inline(always)]
    unsafe fn row<S: Simd, const W: usize>(
        &self,
        s: S,
        (each, common): &(Vec<Range<usize>>, Range<usize>),
        start: usize,
        to: *mut f32,
    ) {
        let Lattice { phases, rows, cols } = self.lattice;
        let (width, step) = (phases[1], self.x.stride[3]);
        let from = self.x.data.as_ptr().wrapping_add(start);
        for (left, inside) in each.iter().enumerate() {
            let to = to.add(left * rows * cols);
            let first = self.origin[1] + left as isize;
            let copy = |columns: Range<usize>| {
                for j in columns {
                    let col = (first + (j * width) as isize) as usize;
                    *to.add(j) = (*from.add(col * step)).widen();
                }
            };
            zero(s, to, 0..inside.start);
            zero(s, to, inside.end..cols);
            if common.is_empty() {
                copy(inside.clone());
            } else {
                copy(inside.start..common.start);
                copy(common.end..inside.end);
            }
        }
        if !common.is_empty() {
            let mut phases = [to; W];
            for (left, phase) in phases.iter_mut().enumerate() {
                *phase = to.add(left * rows * cols);
            }
            let col = self.origin[1] + (common.start * W) as isize;
            split(s, from.wrapping_offset(col), common.clone(), phases);
        }
    }
}

/// A loop, since there are few and a call takes longer.
#[inline(always)]
unsafe fn zero<S: Simd>(s: S, to: *mut f32, columns: Range<usize>) {
    let mut j = columns.start;
    while j + S::LANES <= columns.end {
        s.store_f32(to.add(j), s.splat(0.0));
        j += S::LANES;
    }
    while j < columns.end {
        *to.add(j) = 0.0;
        j += 1;
    }
}

/// Deals neighbours out to `W` rows, columns of which these are.
#[inline(always)]
unsafe fn split<S: Simd, T: Element, const W: usize>(
    s: S,
    from: *const T,
    columns: Range<usize>,
    to: [*mut f32; W],
) {
    const PIECE: usize = 32;
    let mut buffer = [[0f32; PIECE]; W];
    for first in (0..columns.len()).step_by(PIECE) {
        let n = PIECE.min(columns.len() - first);
        let from = from.add(first * W);
        let at = columns.start + first;
        let mut wide: *mut f32 = buffer.as_mut_ptr().cast();
        if W == 1 {
            wide = to[0].add(at);
        }
        if W > 1 && T::DTYPE == DType::F32 {
            wide = from.cast_mut().cast();
        } else {
            for i in (0..n * W).step_by(S::LANES) {
                let left = n * W - i;
                f32::store_upto(s, wide.add(i), left, T::load_upto(s, from.add(i), left));
            }
        }
        for j in 0..if W > 1 { n } else { 0 } {
            for (phase, to) in to.iter().enumerate() {
                *to.add(at + j) = *wide.add(j * W + phase);
            }
        }
    }
}
