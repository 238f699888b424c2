//! The sizes of a pooling, checked, and which pixels its windows cover.

use super::Pool2dParams;
use crate::check;
use candle_core::{Result, Shape};
use std::ops::Range;

/// Padding that is accepted around however small an image; more must not exceed the image.
const SMALL_PADDING: usize = 1 << 16;

/// The pooling of x `[batch, channels, ..input]` to `[batch, channels, ..output]`.
///
/// Only [`Geometry::new`] makes one. Of one of its own:
/// - each window covers a pixel at least, and `(output − 1) · stride + kernel ≤ input + 2 · padding`;
/// - no product of dims of x or of the result overflows, and a window with its padding has less than 2³² pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub batch: usize,
    pub channels: usize,
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub windows: Pool2dParams,
}

impl Geometry {
    /// Of the dims of x. Errors name the function `name`.
    pub fn new(name: &str, x: &[usize], windows: Pool2dParams) -> Result<Self> {
        let [batch, channels, height, width] = check::image(name, x)?;
        let Pool2dParams {
            kernel,
            stride,
            padding,
            ..
        } = windows;
        let input = [height, width];
        check::ensure(
            !kernel.contains(&0) && !stride.contains(&0),
            name,
            format_args!("got kernel {kernel:?} and stride {stride:?}, expected 1 or more of each"),
        )?;
        let most = |i: usize| (kernel[i] / 2).min(input[i].max(SMALL_PADDING));
        check::ensure(
            (0..2).all(|i| padding[i] <= most(i)),
            name,
            format_args!(
                "got padding {padding:?}, expected at most {:?}: half the kernel of {kernel:?}, and no absurd padding of {input:?} pixels",
                [most(0), most(1)]
            ),
        )?;
        let fits = |i: usize| input[i] > 0 && kernel[i] <= input[i].saturating_add(2 * padding[i]);
        check::ensure(
            fits(0) && fits(1),
            name,
            format_args!(
                "got a kernel of {kernel:?} for x of {input:?} pixels with padding {padding:?}, expected a kernel that fits in"
            ),
        )?;
        check::fits_in_memory(name, "x", x)?;
        let geometry = Geometry {
            batch,
            channels,
            input,
            output: [0, 1].map(|i| (input[i] + 2 * padding[i] - kernel[i]) / stride[i] + 1),
            windows,
        };
        check::fits_in_memory(name, "the result", &geometry.y_dims())?;
        let pixels = kernel[0].min(height).checked_mul(geometry.pitch());
        check::ensure(
            pixels.is_some_and(|pixels| pixels < u32::MAX as usize),
            name,
            format_args!(
                "got windows of {kernel:?}, expected rows of less than 2^32 pixels in all"
            ),
        )?;
        Ok(geometry)
    }

    pub fn planes(&self) -> usize {
        self.batch * self.channels
    }

    pub fn x_shape(&self) -> Shape {
        let [height, width] = self.input;
        (self.batch, self.channels, height, width).into()
    }

    fn y_dims(&self) -> [usize; 4] {
        [self.batch, self.channels, self.output[0], self.output[1]]
    }

    pub fn y_shape(&self) -> Shape {
        self.y_dims().as_slice().into()
    }

    /// The columns from the first window's first to the last window's last, padding included.
    pub fn padded_width(&self) -> usize {
        (self.output[1] - 1) * self.windows.stride[1] + self.windows.kernel[1]
    }

    /// The columns of all windows and those of x.
    pub fn pitch(&self) -> usize {
        self.padded_width()
            .max(self.windows.padding[1] + self.input[1])
    }

    /// The rows (`dim` 0) or columns of x that the windows of output `o` cover: one at least.
    pub fn window(&self, dim: usize, o: usize) -> Range<usize> {
        let (start, padding) = (o * self.windows.stride[dim], self.windows.padding[dim]);
        let end = start + self.windows.kernel[dim] - padding;
        start.saturating_sub(padding)..end.min(self.input[dim])
    }

    /// The outputs whose windows cover any of the rows (`dim` 0) or columns `first` to `last` of x.
    pub fn windows_over(&self, dim: usize, first: usize, last: usize) -> Range<usize> {
        let (padding, stride) = (self.windows.padding[dim], self.windows.stride[dim]);
        let begin = (first + padding + 1).saturating_sub(self.windows.kernel[dim]);
        let begin = begin.div_ceil(stride);
        let end = ((last + padding) / stride + 1).min(self.output[dim]);
        begin.min(end)..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By looking at every pixel of every window.
    #[test]
    fn windows_and_pixels_find_each_other() {
        for (input, kernel, stride, padding) in [
            (5, 3, 2, 1),
            (1, 3, 1, 1),
            (7, 7, 1, 3),
            (7, 2, 3, 0),
            (4, 9, 1, 4),
            (6, 2, 2, 1),
            (9, 1, 4, 0),
        ] {
            let params = Pool2dParams::new((kernel, 1))
                .with_stride((stride, 1))
                .with_padding((padding, 0));
            let g = Geometry::new("pool", &[1, 1, input, 1], params).unwrap();
            let covers = |o: usize, i: usize| {
                let place = i + padding;
                (o * stride..o * stride + kernel).contains(&place)
            };
            for o in 0..g.output[0] {
                let want: Vec<usize> = (0..input).filter(|&i| covers(o, i)).collect();
                assert!(!want.is_empty());
                assert_eq!(g.window(0, o).collect::<Vec<_>>(), want);
            }
            for first in 0..input {
                for last in first..input {
                    let any = |o: &usize| (first..=last).any(|i| covers(*o, i));
                    let want: Vec<usize> = (0..g.output[0]).filter(any).collect();
                    let got: Vec<usize> = g.windows_over(0, first, last).collect();
                    assert_eq!(got, want, "{g:?} {first} {last}");
                }
            }
        }
    }
}
