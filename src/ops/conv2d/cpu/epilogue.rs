//! Sums to outputs: bias, activation, dtype, and the place they belong to.

use crate::cpu::element::Element;
use crate::cpu::elementwise::Map;
use crate::cpu::parallel::Shared;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::ops::activation::cpu::{with_body, Around, Part};
use crate::ops::activation::Act;

/// The outputs `[batch, channels, plane]`.
#[derive(Clone, Copy)]
pub struct Output<'a, T> {
    pub data: Shared<T>,
    pub channels: usize,
    pub plane: usize,
    pub bias: Option<&'a [T]>,
    pub act: Act,
}

/// A rectangle of outputs of a plane, and of sums.
#[derive(Clone, Copy, Debug)]
pub struct Rectangle {
    pub rows: usize,
    pub cols: usize,
    /// From row to row of the sums.
    pub pitch: usize,
    /// The first output in the plane, and the steps to that of the next row and to the next.
    pub start: usize,
    pub row: usize,
    pub col: usize,
}

impl<T: Element> Output<'_, T> {
    /// Writes outputs of a channel.
    ///
    /// # Safety
    /// The sums are there, and no other thread writes these outputs.
    pub unsafe fn write(&self, image: usize, channel: usize, r: Rectangle, sums: *const f32) {
        let bias = self.bias.map_or(0.0, |bias| bias[channel].widen());
        let plane = (image * self.channels + channel) * self.plane;
        let to = self.data.get().add(plane + r.start);
        with_body!(Biased(bias), self.act, |body| dispatch(Finish {
            body,
            sums,
            to,
            r
        }))
    }
}

/// act(x + bias)
#[derive(Clone, Copy)]
struct Biased(f32);

impl Around<1, 1, 1> for Biased {
    const PARTS: [Part; 1] = [Part::Value];
    #[inline(always)]
    fn z<S: Simd>(&self, s: S, [x]: [S::F; 1]) -> S::F {
        s.add(x, s.splat(self.0))
    }
    #[inline(always)]
    fn out<S: Simd>(&self, _: S, _: [S::F; 1], [value]: [S::F; 1]) -> [S::F; 1] {
        [value]
    }
}

struct Finish<M, T> {
    body: M,
    sums: *const f32,
    to: *mut T,
    r: Rectangle,
}

impl<M: Map<1, 1>, T: Element> Kernel for Finish<M, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Rectangle {
            rows,
            cols,
            pitch,
            row,
            col,
            ..
        } = self.r;
        for i in 0..rows {
            for j in (0..cols).step_by(S::LANES) {
                let left = cols - j;
                // SAFETY: these sums and outputs are in the rectangle.
                unsafe {
                    let x = f32::load_upto(s, self.sums.add(i * pitch + j), left);
                    let [y] = self.body.map(s, j, [x]);
                    let to = self.to.add(i * row + j * col);
                    if col == 1 {
                        T::store_upto(s, to, left, y);
                        continue;
                    }
                    let lanes = s.to_array(y);
                    for (l, &y) in lanes[..left.min(S::LANES)].iter().enumerate() {
                        *to.add(l * col) = T::narrow(y);
                    }
                }
            }
        }
    }
}
