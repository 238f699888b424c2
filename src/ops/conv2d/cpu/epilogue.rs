//! The epilogue: from sums in f32 to outputs with bias and activation, rounded once, at their place in the result.

use crate::act::Act;
use crate::cpu::act::{ActLanes, Identity, LeakyRelu, Relu, Relu2, Values};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use std::mem::MaybeUninit;

/// The result `[batch, channels, plane]`, which is yet to be written.
#[derive(Clone, Copy)]
pub struct Output<'a, T> {
    data: Shared<T>,
    batch: usize,
    channels: usize,
    /// Pixels of a channel.
    plane: usize,
    bias: Option<&'a [T]>,
    act: Act,
}

/// A rectangle of sums, and the outputs that they belong to.
#[derive(Clone, Copy, Debug)]
pub struct Rectangle {
    pub rows: usize,
    pub cols: usize,
    /// Elements from row to row of the sums.
    pub pitch: usize,
    /// The index, within its channel, of the output of the first sum.
    pub start: usize,
    /// From there to the output of the sum below, and to that of the next sum in the row.
    pub row_step: usize,
    pub col_step: usize,
}

impl<'a, T: Element> Output<'a, T> {
    /// Of dims `[batch, channels, plane]`. A bias has one element per channel.
    ///
    /// # Safety
    /// `data` is valid for writes of as many elements as the dims say, for as long as the output is used.
    pub unsafe fn new(
        data: *mut T,
        [batch, channels, plane]: [usize; 3],
        bias: Option<&'a [T]>,
        act: Act,
    ) -> Self {
        Output {
            data: Shared::new(data),
            batch,
            channels,
            plane,
            bias,
            act,
        }
    }

    /// Writes `act(bias)` to every output, which is what an output has that no pixel contributes to.
    pub fn fill(&self) {
        let zeros = [0f32; 1024];
        parallel::ranges(self.batch * self.channels, 8 * self.plane, 1, |planes| {
            for plane in planes {
                let (image, channel) = (plane / self.channels, plane % self.channels);
                for start in (0..self.plane).step_by(zeros.len()) {
                    let rectangle = Rectangle {
                        rows: 1,
                        cols: zeros.len().min(self.plane - start),
                        pitch: 0,
                        start,
                        row_step: 0,
                        col_step: 1,
                    };
                    // SAFETY: the rectangle is a row with no more columns than there are zeros, and the ranges of planes that
                    // threads get are disjoint.
                    unsafe { self.write(image, channel, rectangle, zeros.as_ptr()) };
                }
            }
        });
    }

    /// Writes the outputs of a rectangle of sums of a channel.
    ///
    /// # Safety
    /// The sums of the rectangle can be read and are initialised. No other thread touches their outputs.
    pub unsafe fn write(
        &self,
        image: usize,
        channel: usize,
        rectangle: Rectangle,
        sums: *const f32,
    ) {
        let last = rectangle.start
            + (rectangle.rows - 1) * rectangle.row_step
            + (rectangle.cols - 1) * rectangle.col_step;
        assert!(image < self.batch && channel < self.channels && last < self.plane);
        let bias = self.bias.map_or(0.0, |bias| bias[channel].widen());
        let start = (image * self.channels + channel) * self.plane + rectangle.start;
        dispatch(WriteRectangle {
            bias,
            act: self.act,
            sums,
            to: self.data.get().wrapping_add(start),
            rectangle,
        })
    }
}

/// Made by [`Output::write`] alone: `to` is the output of the first sum, and all outputs of the rectangle lie within a plane of
/// the result. By its contract the sums can be read, and no other thread touches the outputs.
struct WriteRectangle<T> {
    bias: f32,
    act: Act,
    sums: *const f32,
    to: *mut T,
    rectangle: Rectangle,
}

/// Sums that a costly activation takes at a time: 4 kB, a part of the L1 cache.
const BLOCK: usize = 1024;
const _: () = assert!(BLOCK.is_multiple_of(MAX_LANES));

impl<T: Element> Kernel for WriteRectangle<T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.act {
            Act::Identity => self.fused(s, Identity),
            Act::Relu => self.fused(s, Relu),
            Act::Relu2 => self.fused(s, Relu2),
            Act::LeakyRelu(slope) => self.fused(s, LeakyRelu(slope as f32)),
            _ => self.by_blocks(s),
        }
    }
}

impl<T: Element> WriteRectangle<T> {
    /// With a cheap activation, vector by vector.
    #[inline(always)]
    fn fused<S: Simd>(&self, s: S, act: impl ActLanes) {
        for i in 0..self.rectangle.rows {
            for j in (0..self.rectangle.cols).step_by(S::LANES) {
                // SAFETY: i < rows and j < cols: (i, j) is in the rectangle.
                unsafe { self.store(s, (i, j), act.value(s, self.act_input(s, (i, j)))) };
            }
        }
    }

    /// With a costly activation, which is compiled once and not into this loop: as many rows at a time as a block holds, or a
    /// part of a row.
    #[inline(always)]
    fn by_blocks<S: Simd>(&self, s: S) {
        let Rectangle { rows, cols, .. } = self.rectangle;
        let mut block = MaybeUninit::<[f32; BLOCK]>::uninit();
        let block = block.as_mut_ptr().cast::<f32>();
        // Rows begin at whole vectors.
        let pitch = cols.min(BLOCK).next_multiple_of(S::LANES);
        for start in (0..cols).step_by(BLOCK) {
            let width = BLOCK.min(cols - start);
            for first in (0..rows).step_by(BLOCK / pitch) {
                let count = (BLOCK / pitch).min(rows - first);
                // SAFETY: (first + i, start + j) is in the rectangle. `count` rows of `pitch` sums are in the block, and
                // vectors of a row begin before `width` ≤ `pitch`, which is a multiple of LANES. If `width` is less than
                // `cols`, there is one row; else all its vectors are written before the activation reads them.
                unsafe {
                    for i in 0..count {
                        for j in (0..width).step_by(S::LANES) {
                            let z = self.act_input(s, (first + i, start + j));
                            s.store_f32(block.add(i * pitch + j), z);
                        }
                    }
                    let len = (count - 1) * pitch + width.next_multiple_of(S::LANES);
                    s.call(Values::new(self.act, block, block, len));
                    for i in 0..count {
                        for j in (0..width).step_by(S::LANES) {
                            let y = s.load_f32(block.add(i * pitch + j));
                            self.store(s, (first + i, start + j), y);
                        }
                    }
                }
            }
        }
    }

    /// The sums from column `j` of row `i` on, as many as a vector or the row has, plus bias.
    ///
    /// # Safety
    /// (i, j) is in the rectangle.
    #[inline(always)]
    unsafe fn act_input<S: Simd>(&self, s: S, (i, j): (usize, usize)) -> S::F {
        let Rectangle { cols, pitch, .. } = self.rectangle;
        // SAFETY: the row has `cols − j` sums from column j on.
        let sums = unsafe { f32::load_upto(s, self.sums.add(i * pitch + j), cols - j) };
        s.add(sums, s.splat(self.bias))
    }

    /// Writes the outputs of these sums.
    ///
    /// # Safety
    /// (i, j) is in the rectangle.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, s: S, (i, j): (usize, usize), y: S::F) {
        let Rectangle {
            cols,
            row_step,
            col_step,
            ..
        } = self.rectangle;
        let left = cols - j;
        // SAFETY: the row has `left` outputs from column j on, `col_step` elements apart.
        unsafe {
            let to = self.to.add(i * row_step + j * col_step);
            if col_step == 1 {
                return T::store_upto(s, to, left, y);
            }
            let lanes = s.to_array(y);
            for (l, &y) in lanes[..left.min(S::LANES)].iter().enumerate() {
                *to.add(l * col_step) = T::narrow_in(s, y);
            }
        }
    }
}
