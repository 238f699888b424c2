//! The sums of `g · x̂` and of `g` over each channel, and dx of the norm of training.

use super::columns::{by_columns, Formula};
use super::{rows, written_by_channel, Cut, Moments, SavedMoments, Segment};
use crate::cpu::element::Element;
use crate::cpu::fold::fold;
use crate::cpu::moments::RowGradSums;
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::{gather, with_float};
use crate::op::on_cpu::{Args, OpResults};
use crate::ops::batch_norm::{Extent, NAME};
use crate::ops::group_norm::cpu::channel::{at, for_each_element, ChannelGrad};
use crate::ops::row_norm::cpu::slices;
use candle_core::{CpuStorage, Shape};
use std::ops::Range;

/// What an element costs, in the units of [`parallel`](crate::cpu::parallel).
const COST: usize = 5;

/// Of `(x, grad_out, moments[, weight[, grad_statistics]])`.
pub fn gradients(args: Args) -> OpResults {
    let ((x, xl), (g, gl)) = (args[0], args[1]);
    let extent = Extent::of(xl);
    let (channels, count) = (extent.channels, extent.of_channel());
    let moments = &slices::<f32>(&args[2..3])?[0];
    let statistics = slices::<f32>(args.get(4..).unwrap_or_default())?;
    let mut sums = vec![0f32; 2 * channels];
    let dx = with_float!(NAME, x, |x: &[T]| {
        let g = g.as_slice::<T>()?;
        let weight = slices::<T>(args.get(3..4).unwrap_or_default())?;
        let op = SumAndWrite {
            x: &rows(x, xl, extent)?,
            g: &rows(g, gl, extent)?,
            dx: Shared::new(std::ptr::null_mut()),
            cut: Cut::new(extent),
            count,
            moments: SavedMoments(moments),
            weight: weight.first().map(AsRef::as_ref),
            statistics: statistics.first().map(AsRef::as_ref),
            sums: Shared::new(sums.as_mut_ptr()),
        };
        Ok(T::wrap(if weight.is_empty() {
            // SAFETY: x and g have the rows that `cut` speaks of, and there is room for the sums of all channels.
            unsafe { op.sum(channels) };
            Vec::new()
        } else if extent.is_short() {
            // SAFETY: as above.
            let measured = unsafe { op.sum(channels) };
            let by_column = |c: usize| op.of_channel(c, measured[c], op.weight(c)).by_column();
            let [x, g] = [gather::contiguous(x, xl), gather::contiguous(g, gl)];
            by_columns(Gradient, [&*x, &*g], extent, by_column)
        } else {
            // SAFETY: as above for x, g and the sums; dx has the rows too, and each is written as a part of its channel.
            unsafe { written_by_channel(extent, |dx| SumAndWrite { dx, ..op }) }
        }))
    })?;
    let shape = match args.len() {
        ..=3 => Shape::from(0),
        _ => xl.shape().clone(),
    };
    Ok(vec![
        (dx, shape),
        (CpuStorage::F32(sums), (2, channels).into()),
    ])
}

/// A channel as a row: its sums are measured and kept, and dx is written.
#[derive(Clone, Copy)]
struct SumAndWrite<'a, T: Element> {
    x: &'a RowView<'a, T>,
    g: &'a RowView<'a, T>,
    dx: Shared<T>,
    cut: Cut,
    /// Elements of a channel.
    count: usize,
    moments: SavedMoments<'a>,
    weight: Option<&'a [T]>,
    /// The gradients of the means, then those of the variances.
    statistics: Option<&'a [f32]>,
    /// Σ g·x̂ of the channels, then Σ g.
    sums: Shared<f32>,
}

/// `Σ g` and `Σ g · (x − mean)`, where the mean is the rounded one.
#[derive(Clone, Copy)]
struct GradSums {
    sum: f32,
    dot: f32,
}

impl<T: Element> SumAndWrite<'_, T> {
    /// Keeps the sums of all channels, and returns what they are made of.
    ///
    /// # Safety
    /// x and g have the rows of `channels` channels that `cut` speaks of, and there is room for the sums, which nothing else
    /// touches.
    unsafe fn sum(&self, channels: usize) -> Vec<GradSums> {
        // SAFETY: the caller's promise is the same.
        let measured = unsafe { two_pass::measure_rows(*self, channels, self.count) };
        for (c, &part) in measured.iter().enumerate() {
            // SAFETY: as above; this thread alone writes the sums.
            unsafe { self.save(c, part) };
        }
        measured
    }

    /// Keeps the sums of a channel.
    ///
    /// # Safety
    /// There is room for the sums of all channels, and no other thread writes those of this one.
    #[inline(always)]
    unsafe fn save(&self, channel: usize, part: GradSums) {
        // Without elements the moments are NaN, and the sums stay 0.
        if self.count == 0 {
            return;
        }
        let m = self.moments.of(channel, self.count);
        // SAFETY: by the caller's promise.
        unsafe {
            let sums = self.sums.get().add(channel);
            sums.write(part.dot * m.scale + part.sum * m.shift);
            sums.add(self.moments.channels()).write(part.sum);
        }
    }

    fn weight(&self, channel: usize) -> f32 {
        self.weight.map_or(1.0, |weight| weight[channel].widen())
    }

    /// What dx is made of in a channel.
    #[inline(always)]
    fn of_channel(&self, channel: usize, part: GradSums, weight: f32) -> OfChannel {
        let moments = self.moments.of(channel, self.count);
        let dot = part.dot * moments.scale + part.sum * moments.shift;
        let mut slope = weight * dot * moments.grad_factor;
        let mut offset = weight * part.sum * moments.grad_factor;
        if let Some(statistics) = self.statistics {
            // (dmean + 2 · (x − mean) · dvar) / n, by x − mean = x̂ / scale.
            let (dmean, dvar) = (
                statistics[channel],
                statistics[self.moments.channels() + channel],
            );
            let factor = moments.grad_factor / moments.scale;
            offset -= dmean * factor;
            slope -= 2.0 * dvar * factor / moments.scale;
        }
        OfChannel {
            moments,
            weight,
            slope,
            offset,
        }
    }
}

/// `dx = (g · weight − x̂ · slope − offset) · scale`
struct OfChannel {
    moments: Moments,
    weight: f32,
    slope: f32,
    offset: f32,
}

impl OfChannel {
    /// The coefficients of [`Gradient`].
    fn by_column(self) -> [f32; 6] {
        let Moments {
            mean, scale, shift, ..
        } = self.moments;
        let scaled = [self.weight, self.slope, self.offset].map(|k| k * scale);
        [mean, scale, shift, scaled[0], scaled[1], scaled[2]]
    }
}

/// `g · weight − x̂ · slope − offset`, the last three scaled, with `x̂ = (x − mean) · scale + shift`.
struct Gradient;

impl Formula<2, 6> for Gradient {
    #[inline(always)]
    fn of<S: Simd>(s: S, [x, g]: [S::F; 2], k: [S::F; 6]) -> S::F {
        let [mean, scale, shift, weight, slope, offset] = k;
        let x = s.fma(s.sub(x, mean), scale, shift);
        s.fnma(x, slope, s.sub(s.mul(g, weight), offset))
    }
}

impl<T: Element> TwoPassRow for SumAndWrite<'_, T> {
    type Stat = GradSums;

    fn cost(cols: usize) -> usize {
        cols * COST
    }

    /// The sums of the segments are added up in f64, of which there may be many.
    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, channel: usize, elements: Range<usize>) -> GradSums {
        let f = RowGradSums {
            mean: self.moments.of(channel, self.count).mean,
        };
        let (mut sum, mut dot) = (0f64, 0f64);
        for Segment { row, start, len } in self.cut.segments(channel, elements) {
            // SAFETY: x and g have the channel's elements, and so the rows of the segments that they lie in.
            let [h, hd] = unsafe {
                let (x, g) = (self.x.row(row).add(start), self.g.row(row).add(start));
                fold(s, f, [x, g], len)
            };
            sum += f64::from(h);
            dot += f64::from(hd);
        }
        GradSums {
            sum: sum as f32,
            dot: dot as f32,
        }
    }

    fn join(&self, a: GradSums, b: GradSums) -> GradSums {
        GradSums {
            sum: a.sum + b.sum,
            dot: a.dot + b.dot,
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, channel: usize, elements: Range<usize>, part: GradSums) {
        if elements.start == 0 {
            // SAFETY: there is room for the sums of all channels, and one thread has the first elements of this one.
            unsafe { self.save(channel, part) };
        }
        let k = self.of_channel(channel, part, at(s, self.weight, channel, 1.0));
        for Segment { row, start, len } in self.cut.segments(channel, elements) {
            // SAFETY: x, g and dx have the channel's elements, and so the rows of the segments that they lie in; no other
            // thread is given these elements.
            unsafe {
                let body = ChannelGrad {
                    x: self.x.row(row).add(start),
                    g: self.g.row(row).add(start),
                    dx: self.dx.get().add(row * self.cut.len + start),
                    moments: k.moments,
                    weight: k.weight,
                    slope: k.slope,
                    offset: k.offset,
                };
                for_each_element(s, len, &body);
            }
        }
    }
}
