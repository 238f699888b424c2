//! The pieces of each query, added up.

use super::{Head, Results};
use crate::cpu::element::Element;
use crate::cpu::simd::{Kernel, Simd};
use crate::ops::attention::cpu::call::Call;
use crate::ops::attention::cpu::output::Output;

/// Adds up the pieces of each query of some heads.
pub(super) struct Join<'a, T: Element, R> {
    pub call: &'a Call<'a, T, R>,
    pub output: Output<T>,
    pub results: &'a Results,
    pub heads: &'a [Head],
}

impl<T: Element, R> Kernel for Join<'_, T, R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (width, maxima) = (self.results.width, &self.results.maxima);
        let (sums, values) = (&self.results.sums, &self.results.values);
        let mut total = vec![0f32; width];
        for head in self.heads {
            let segment = &self.call.segments[head.segment];
            for r in 0..head.rows {
                let query = self.call.query(segment, head.kv_head, r);
                let sink = self.call.sinks.as_ref().map(|sinks| sinks[query.head]);
                let mut max = sink.unwrap_or(f32::NEG_INFINITY);
                for piece in 0..head.pieces {
                    let m = maxima[head.at + piece * head.rows + r];
                    // A NaN stays.
                    max = if m > max { m } else { max };
                }
                let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
                let mut sum = sink.map_or(0.0, |sink| (sink - base).exp());
                total.fill(0.0);
                for piece in 0..head.pieces {
                    let at = head.at + piece * head.rows + r;
                    // A piece without a score has −∞ and sums of 0; one whose scores are all NaN has −∞ and a sum of NaN.
                    let factor = match maxima[at] == f32::NEG_INFINITY {
                        true => 1.0,
                        false => (maxima[at] - base).exp(),
                    };
                    sum += sums[at] * factor;
                    let row = &values[at * width..][..width];
                    for i in (0..width).step_by(S::LANES) {
                        // SAFETY: both rows have whole vectors.
                        unsafe {
                            let x = s.load_f32(row.as_ptr().add(i));
                            let to = total.as_mut_ptr().add(i);
                            s.store_f32(to, s.fma(s.splat(factor), x, s.load_f32(to)));
                        }
                    }
                }
                // SAFETY: the row of sums has whole vectors, and no other thread has this query.
                unsafe {
                    self.output
                        .write(s, self.call, &query, total.as_ptr(), max, sum)
                };
            }
        }
    }
}
