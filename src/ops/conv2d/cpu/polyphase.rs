//! Packing of a part of an image, in f32 and with its padding, so that every tap of a kernel reads consecutive elements for
//! consecutive outputs, whatever the stride.
//!
//! With stride s, tap t of output o reads pixel `o · s + t`. The pixels are therefore sorted by phase, the remainder of
//! their index by s. With stride 2 in both dims, this part of an image is packed as four phases of equal size:
//!
//! ```text
//!     pixels of the part          packed
//!
//!     a0 b0 a1 b1 a2 b2           a0 a1 a2      phase (0, 0): even rows, even columns
//!     c0 d0 c1 d1 c2 d2           a3 a4 a5
//!     a3 b3 a4 b4 a5 b5           b0 b1 b2      phase (0, 1): even rows, odd columns
//!     c3 d3 c4 d4 c5 d5           b3 b4 b5
//!                                 c0 c1 c2      phase (1, 0)
//!                                 c3 c4 c5
//!                                 d0 d1 d2      phase (1, 1)
//!                                 d3 d4 d5
//! ```
//!
//! A tap at row r and column c of the part lies at [`PolyphaseLayout::at`]`(r, c)`, and the output i rows further down and j
//! columns further right reads the element `i · cols + j` behind it. This holds for every tap, since the rows of all phases
//! have the same length.

use super::image::Image;
use crate::cpu::element::{convert, Element};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use candle_core::DType;
use std::ops::Range;

/// The order in which a part of a channel is packed: `[stride₀, stride₁, rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct PolyphaseLayout {
    /// The number of phases in each dim, which is the stride of the convolution.
    pub stride: [usize; 2],
    /// Rows and columns of each phase.
    pub rows: usize,
    pub cols: usize,
}

impl PolyphaseLayout {
    /// The packed elements of a channel.
    pub fn plane(&self) -> usize {
        self.stride[0] * self.stride[1] * self.rows * self.cols
    }

    /// The index, within a packed channel, of a row and column of the part.
    pub fn at(&self, row: usize, col: usize) -> usize {
        let [height, width] = self.stride;
        let phase = row % height * width + col % width;
        (phase * self.rows + row / height) * self.cols + col / width
    }

    /// Packs the part of some channels that begins at `origin`, one channel behind the other. Rows and columns outside of the
    /// image are the padding: zeros.
    ///
    /// # Safety
    /// `to` is valid for writes of `channels.len()` times [`PolyphaseLayout::plane`] elements.
    pub unsafe fn pack<T: Element>(
        &self,
        x: Image<T>,
        image: usize,
        channels: Range<usize>,
        origin: [isize; 2],
        to: *mut f32,
    ) {
        dispatch(Pack {
            layout: *self,
            x,
            image,
            channels,
            origin,
            to,
        });
    }

    /// Which of the first `len` rows (or columns) of a phase lie within the image's `size`. The phase begins at row `first`
    /// of the image.
    fn inside(&self, dim: usize, first: isize, len: usize, size: usize) -> Range<usize> {
        let step = self.stride[dim];
        let start = (-first).max(0) as usize;
        let end = (size as isize - first).max(0) as usize;
        let start = start.div_ceil(step).min(len);
        start..end.div_ceil(step).clamp(start, len)
    }
}

/// The arguments of [`PolyphaseLayout::pack`], which is the only place that makes one: by its contract `to` has room for a
/// plane of each channel.
struct Pack<'a, T> {
    layout: PolyphaseLayout,
    x: Image<'a, T>,
    image: usize,
    channels: Range<usize>,
    origin: [isize; 2],
    to: *mut f32,
}

/// Which columns of a packed row are pixels, the others being padding.
struct Columns {
    /// For each phase.
    of_phase: Vec<Range<usize>>,
    /// The columns that are pixels in every phase, if the phases are to be written together; else empty.
    common: Range<usize>,
}

impl<T: Element> Kernel for Pack<'_, T> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match (self.layout.stride[1], self.x.column_stride()) {
            (1, 1) => self.channels::<S, 1>(s),
            (2, 1) => self.channels::<S, 2>(s),
            (4, 1) => self.channels::<S, 4>(s),
            _ => self.channels::<S, 0>(s),
        }
    }
}

impl<T: Element> Pack<'_, T> {
    /// All channels. `PHASES` is the number of phases of a row, whose pixels are neighbours; or 0 for any number of phases
    /// and any stride of the pixels.
    #[inline(always)]
    fn channels<S: Simd, const PHASES: usize>(&self, s: S) {
        let PolyphaseLayout { stride, rows, cols } = self.layout;
        assert!(PHASES == 0 || [PHASES, 1] == [stride[1], self.x.column_stride()]);
        let columns = self.columns(PHASES > 0);
        for (i, channel) in self.channels.clone().enumerate() {
            let pixels = self.x.channel(self.image, channel);
            let plane = self.to.wrapping_add(i * self.layout.plane());
            for phase in 0..stride[0] {
                let top = self.origin[0] + phase as isize;
                let inside = self.layout.inside(0, top, rows, self.x.size()[0]);
                for r in 0..rows {
                    // The same row of all phases across: from one to the next it is `rows · cols` elements.
                    let to = plane.wrapping_add((phase * stride[1] * rows + r) * cols);
                    // SAFETY: a plane has `cols` elements for each of `rows` rows of each phase, and `to` is such a row.
                    // `inside` are the rows that x has. PHASES has been checked.
                    unsafe {
                        if !inside.contains(&r) {
                            for across in 0..stride[1] {
                                zero(s, to.add(across * rows * cols), 0..cols);
                            }
                            continue;
                        }
                        let row = (top + (r * stride[0]) as isize) as usize;
                        let from = pixels.wrapping_add(row * self.x.row_stride());
                        self.row::<S, PHASES>(s, &columns, from, to);
                    }
                }
            }
        }
    }

    fn columns(&self, together: bool) -> Columns {
        let layout = &self.layout;
        let of_phase: Vec<_> = (0..layout.stride[1])
            .map(|phase| {
                let first = self.origin[1] + phase as isize;
                layout.inside(1, first, layout.cols, self.x.size()[1])
            })
            .collect();
        let start = of_phase.iter().map(|r| r.start).max().unwrap_or(0);
        let end = of_phase.iter().map(|r| r.end).min().unwrap_or(0);
        let common = if together && start < end {
            start..end
        } else {
            0..0
        };
        Columns { of_phase, common }
    }

    /// One row of the image, which begins at `from`, to all phases across.
    ///
    /// # Safety
    /// `from` is a row of x, and `to` is the first phase's row in a packed plane. If `PHASES` isn't 0, it is the layout's
    /// `stride[1]`, and x's column stride is 1.
    #[inline(always)]
    unsafe fn row<S: Simd, const PHASES: usize>(
        &self,
        s: S,
        Columns { of_phase, common }: &Columns,
        from: *const T,
        to: *mut f32,
    ) {
        let PolyphaseLayout { rows, cols, .. } = self.layout;
        let to_phase = |phase: usize| to.wrapping_add(phase * rows * cols);
        for (phase, inside) in of_phase.iter().enumerate() {
            let to = to_phase(phase);
            let one_by_one = match common.is_empty() {
                true => [inside.clone(), 0..0],
                false => [inside.start..common.start, common.end..inside.end],
            };
            // SAFETY: the phase's row has `cols` elements, of which `inside` is a part, where columns are pixels of the row.
            unsafe {
                zero(s, to, 0..inside.start);
                zero(s, to, inside.end..cols);
                for columns in one_by_one {
                    if !columns.is_empty() {
                        let first = self.origin[1] + phase as isize;
                        s.call(OneByOne {
                            columns,
                            first,
                            steps: [self.layout.stride[1], self.x.column_stride()],
                            from,
                            to,
                        });
                    }
                }
            }
        }
        if !common.is_empty() {
            let mut phases = [to; PHASES];
            for (phase, to) in phases.iter_mut().enumerate() {
                *to = to_phase(phase).wrapping_add(common.start);
            }
            let col = self.origin[1] + (common.start * PHASES) as isize;
            // SAFETY: the columns of `common` are pixels in every phase, so that the row has `PHASES` neighbours for each, from
            // `col` on; each phase's row has them too.
            unsafe { deinterleave(s, from.wrapping_offset(col), common.len(), phases) };
        }
    }
}

/// Copies columns of a phase, one by one: those at the edges, or all if the stride is an unusual one. A kernel of its own: it
/// would be unrolled three times for each number of phases. It is made in `row` alone, of columns that are pixels of the row.
struct OneByOne<T> {
    columns: Range<usize>,
    /// The pixel of column 0, which need not be one of the row.
    first: isize,
    /// Pixels from column to column, and elements from pixel to pixel.
    steps: [usize; 2],
    /// The row of x, and the phase's row in a packed plane.
    from: *const T,
    to: *mut f32,
}

impl<T: Element> Kernel for OneByOne<T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for j in self.columns {
            let col = (self.first + (j * self.steps[0]) as isize) as usize;
            // SAFETY: column j is the row's pixel `col`, and the phase's row has a place for it.
            unsafe { *self.to.add(j) = (*self.from.add(col * self.steps[1])).widen_in(s) };
        }
    }
}

/// Writes zeros to some columns. A loop, because rows are short and a call of `memset` takes longer.
///
/// # Safety
/// `to` is valid for writes of these columns.
#[inline(always)]
unsafe fn zero<S: Simd>(s: S, to: *mut f32, columns: Range<usize>) {
    let mut j = columns.start;
    // SAFETY: neither loop goes beyond the last column.
    unsafe {
        while j + S::LANES <= columns.end {
            s.store_f32(to.add(j), s.splat(0.0));
            j += S::LANES;
        }
        while j < columns.end {
            *to.add(j) = 0.0;
            j += 1;
        }
    }
}

/// Writes pixel `j · PHASES + phase` to element j of each phase.
///
/// # Safety
/// `from` is valid for reads of `PHASES · n` elements and each of `to` for writes of `n`. They don't overlap.
#[inline(always)]
unsafe fn deinterleave<S: Simd, T: Element, const PHASES: usize>(
    s: S,
    from: *const T,
    n: usize,
    to: [*mut f32; PHASES],
) {
    if PHASES == 1 {
        // SAFETY: the contract is the same for one phase.
        return unsafe { convert(s, from, to[0], n) };
    }
    // 16-bit pixels are widened by vectors first, a piece at a time.
    const PIECE: usize = 32;
    let mut buffer = [[0f32; PIECE]; PHASES];
    for first in (0..n).step_by(PIECE) {
        let count = PHASES * PIECE.min(n - first);
        let buffer = buffer.as_flattened_mut();
        // SAFETY: the piece has `count` of the `PHASES · n` pixels, no more than the buffer; as f32 they are read as such.
        // first + j < n.
        unsafe {
            let from = from.add(first * PHASES);
            let wide = if T::DTYPE == DType::F32 {
                std::slice::from_raw_parts(from.cast::<f32>(), count)
            } else {
                convert(s, from, buffer.as_mut_ptr(), count);
                &buffer[..count]
            };
            for (j, pixels) in wide.chunks_exact(PHASES.max(1)).enumerate() {
                for (to, &pixel) in to.iter().zip(pixels) {
                    *to.add(first + j) = pixel;
                }
            }
        }
    }
}
