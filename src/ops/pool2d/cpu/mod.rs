//! Pooling on the CPU. The rows of a window are joined to one first, whole vectors at a time, then its columns.

mod avg_backward;
mod forward;
mod max_backward;

pub use avg_backward::backward as avg_backward;
pub use forward::forward;
pub use max_backward::backward as max_backward;

use super::geometry::Geometry;
use crate::cpu::simd::{Kernel, Simd};

/// What is done with the windows of a row.
trait Windows {
    /// Must be `inline(always)`.
    ///
    /// # Safety
    /// What the struct points to is as long as it says, for windows that lie `stride` apart.
    unsafe fn run(&self, stride: usize);
}

/// Compiled for each of the usual strides, since the compiler makes vectors of a loop whose stride it knows, and for any.
struct ByStride<W> {
    windows: W,
    stride: usize,
}

impl<W: Windows> ByStride<W> {
    /// # Safety
    /// As for [`Windows::run`].
    unsafe fn new(windows: W, stride: usize) -> Self {
        ByStride { windows, stride }
    }
}

impl<W: Windows> Kernel for ByStride<W> {
    const WIDE: bool = false;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // SAFETY: by the promise that was made to `new`.
        unsafe {
            match self.stride {
                1 => self.windows.run(1),
                2 => self.windows.run(2),
                stride => self.windows.run(stride),
            }
        }
    }
}

/// Means divide by this much: rows and columns have a factor each.
struct Divisors {
    include_pad: bool,
    /// Of each output's columns; of its rows too, if all windows have the same.
    columns: Vec<f32>,
}

impl Divisors {
    fn new(g: &Geometry) -> Self {
        let include_pad = g.windows.count_include_pad;
        let of_all = (1.0 / (g.windows.kernel[0] * g.windows.kernel[1]) as f64) as f32;
        let factor = |o: usize| match include_pad {
            true => of_all,
            false => 1.0 / g.window(1, o).len() as f32,
        };
        Divisors {
            include_pad,
            columns: (0..g.output[1]).map(factor).collect(),
        }
    }

    /// What a window of so many rows is multiplied by beside its columns' factor.
    fn of_rows(&self, rows: usize) -> f32 {
        match self.include_pad {
            true => 1.0,
            false => 1.0 / rows as f32,
        }
    }
}
