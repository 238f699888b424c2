//! Where the forward writes its results.

use super::call::{Call, Query};
use crate::cpu::element::Element;
use crate::cpu::parallel::Shared;
use crate::cpu::simd::Simd;
use crate::ops::attention::geometry::{Geometry, Strides};
use candle_core::{Layout, Shape};

/// The result and the log-sum-exps.
pub struct Output<T> {
    y: Shared<T>,
    strides: Strides,
    log_sums: Shared<[f32; 2]>,
    /// The result before it is rounded, where it is kept.
    wide: Option<Shared<f32>>,
}

impl<T> Clone for Output<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Output<T> {}

impl<T: Element> Output<T> {
    /// # Safety
    /// `y`, and `wide` if it is given, have room for the result and `log_sums` for a number for each query, which nothing else touches.
    pub unsafe fn new(
        geometry: &Geometry,
        y: *mut T,
        log_sums: *mut [f32; 2],
        wide: Option<*mut f32>,
    ) -> Self {
        let layout = Layout::contiguous(Shape::from(geometry.output()));
        Output {
            y: Shared::new(y),
            strides: Strides::new(geometry.axes, &layout),
            log_sums: Shared::new(log_sums),
            wide: wide.map(Shared::new),
        }
    }

    /// Writes a query's result: its sums of weighted values, divided by the sum of the weights e^(score − max).
    ///
    /// # Safety
    /// `sums` is valid for reads of `value_dim` elements rounded up to whole vectors. No other thread writes this query.
    #[inline(always)]
    pub unsafe fn write<S: Simd, R>(
        &self,
        s: S,
        call: &Call<T, R>,
        query: &Query,
        sums: *const f32,
        max: f32,
        sum: f32,
    ) {
        let n = call.geometry.value_dim;
        // A query without a key gives zeros.
        let factor = s.splat(if sum == 0.0 { 0.0 } else { 1.0 / sum });
        let Strides {
            batch, head, seq, ..
        } = self.strides;
        // SAFETY: the result has a row of n elements for each query, and the sums have a number.
        unsafe {
            let at = query.batch * batch + query.head * head + query.at * seq;
            let (y, wide) = (
                self.y.get().add(at),
                self.wide.map(|wide| wide.get().add(at)),
            );
            for i in (0..n).step_by(S::LANES) {
                let x = s.mul(s.load_f32(sums.add(i)), factor);
                T::store_upto(s, y.add(i), n - i, x);
                if let Some(wide) = wide {
                    f32::store_upto(s, wide.add(i), n - i, x);
                }
            }
            let log_sum = self.log_sums.get().add(call.number(query));
            *log_sum = match sum == 0.0 {
                true => [0.0, f32::INFINITY],
                false => [max, sum.ln()],
            };
        }
    }
}
