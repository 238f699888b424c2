//! y, by statistics that are given, or by those of the batch, which are measured first.

use super::columns::{by_columns, Affine};
use super::{planes, rows, written_by_channel, Cut, Segment};
use crate::cpu::element::Element;
use crate::cpu::fold::{fold, Deviations, Sum};
use crate::cpu::moments::{Divisor, MomentSums, Moments};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::{alloc, gather, with_float};
use crate::op::on_cpu::{Args, OpResult, OpResults};
use crate::ops::batch_norm::train::Measured;
use crate::ops::batch_norm::{Extent, Given, NAME};
use crate::ops::group_norm::cpu::channel::{at, for_each_element, Channel};
use crate::ops::row_norm::cpu::{slices, Vectors};
use candle_core::CpuStorage;
use std::ops::Range;

/// What an element costs to write, in the units of [`parallel`].
const WRITE: usize = 2;

/// By a mean and a variance that are given.
pub fn forward(op: Given, args: Args) -> OpResult {
    let (x, l) = args[0];
    let extent = Extent::of(l);
    let statistics = slices::<f32>(&args[1..3])?;
    let moments = statistics[0]
        .iter()
        .zip(statistics[1].iter())
        .map(|(&mean, &var)| Moments {
            mean,
            scale: 1.0 / (var + op.eps).sqrt(),
            shift: 0.0,
            grad_factor: 0.0,
        });
    let moments: Vec<Moments> = moments.collect();
    let out = with_float!(NAME, x, |x: &[T]| {
        let vectors = &slices::<T>(&args[3..])?;
        Ok(T::wrap(match extent.is_short() {
            true => write_columns(&gather::contiguous(x, l), extent, &moments, vectors),
            false => write_planes(&planes(x, l, extent), extent, &moments, vectors),
        }))
    })?;
    Ok((out, l.shape().clone()))
}

/// y of an x that has a row for each channel of each batch item.
fn write_planes<T: Element>(
    x: &RowView<T>,
    extent: Extent,
    moments: &[Moments],
    vectors: Vectors<T>,
) -> Vec<T> {
    let rows = extent.batch * extent.channels;
    // SAFETY: x and y have the rows, and each row of y is written by one thread.
    unsafe {
        alloc::build(extent.count(), |y| {
            let y = Shared::new(y);
            parallel::ranges(rows, extent.spatial * WRITE, 1, |rows| {
                dispatch(WritePlanes {
                    x,
                    y,
                    rows,
                    moments,
                    vectors,
                    extent,
                })
            });
        })
    }
}

/// Rows of x and y, which have `extent`.
struct WritePlanes<'a, T: Element> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    rows: Range<usize>,
    moments: &'a [Moments],
    vectors: Vectors<'a, T>,
    extent: Extent,
}

impl<T: Element> Kernel for WritePlanes<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Extent {
            channels, spatial, ..
        } = self.extent;
        let [weight, bias] = [0, 1].map(|i| self.vectors.get(i).map(AsRef::as_ref));
        for row in self.rows {
            let c = row % channels;
            // SAFETY: `write_planes` asks for rows of x and y, of `spatial` elements, and gives each to one thread.
            unsafe {
                let channel = Channel {
                    x: self.x.row(row),
                    y: self.y.get().add(row * spatial),
                    moments: self.moments[c],
                    weight: at(s, weight, c, 1.0),
                    bias: at(s, bias, c, 0.0),
                };
                for_each_element(s, spatial, &channel);
            }
        }
    }
}

/// y of a contiguous x, whose channels have few elements in a batch item.
fn write_columns<T: Element>(
    x: &[T],
    extent: Extent,
    moments: &[Moments],
    vectors: Vectors<T>,
) -> Vec<T> {
    let value = |vector: usize, c: usize, default| match vectors.get(vector) {
        Some(v) => v[c].widen(),
        None => default,
    };
    let column = |c: usize| {
        let Moments {
            mean, scale, shift, ..
        } = moments[c];
        let weight = value(0, c, 1.0);
        [mean, scale * weight, shift * weight + value(1, c, 0.0)]
    };
    by_columns(Affine, [x], extent, column)
}

/// By the statistics of the batch: y, the means, the variances, the moments.
pub fn train(op: Measured, args: Args) -> OpResults {
    let (x, l) = args[0];
    let extent = Extent::of(l);
    let (channels, count) = (extent.channels, extent.of_channel());
    let mut statistics = Statistics {
        mean: vec![0.0; channels],
        var: vec![0.0; channels],
        moments: vec![0.0; 3 * channels],
    };
    let out = with_float!(NAME, x, |data: &[T]| {
        let vectors = &slices::<T>(&args[1..])?;
        let op = MeasureAndWrite {
            x: &rows(data, l, extent)?,
            y: Shared::new(std::ptr::null_mut()),
            cut: Cut::new(extent),
            vectors,
            eps: op.eps,
            statistics: statistics.shared(),
        };
        Ok(T::wrap(if extent.is_short() {
            // SAFETY: x has a row of `count` elements for each channel.
            let sums = unsafe { two_pass::measure_rows(op, channels, count) };
            // SAFETY: there is room for the statistics of all channels, which this thread alone writes.
            let save = |(c, &sums)| unsafe { op.statistics.save(c, sums, op.eps) };
            let moments: Vec<Moments> = sums.iter().enumerate().map(save).collect();
            write_columns(&gather::contiguous(data, l), extent, &moments, vectors)
        } else {
            // SAFETY: x and y have the rows that `cut` speaks of, and there is room for the statistics of all channels. Each
            // row of y is written as a part of its channel.
            unsafe { written_by_channel(extent, |y| MeasureAndWrite { y, ..op }) }
        }))
    })?;
    let Statistics { mean, var, moments } = statistics;
    let wrap = CpuStorage::F32;
    Ok(vec![
        (out, l.shape().clone()),
        (wrap(mean), channels.into()),
        (wrap(var), channels.into()),
        (wrap(moments), (3, channels).into()),
    ])
}

/// Of each channel.
struct Statistics {
    mean: Vec<f32>,
    var: Vec<f32>,
    /// As [`super::SavedMoments`].
    moments: Vec<f32>,
}

impl Statistics {
    fn shared(&mut self) -> SharedStatistics {
        SharedStatistics {
            channels: self.mean.len(),
            mean: Shared::new(self.mean.as_mut_ptr()),
            var: Shared::new(self.var.as_mut_ptr()),
            moments: Shared::new(self.moments.as_mut_ptr()),
        }
    }
}

/// [`Statistics`], written by several threads.
#[derive(Clone, Copy)]
struct SharedStatistics {
    channels: usize,
    mean: Shared<f32>,
    var: Shared<f32>,
    moments: Shared<f32>,
}

impl SharedStatistics {
    /// Keeps the statistics of a channel, and returns its moments.
    ///
    /// # Safety
    /// The statistics that this was made of live, and no other thread writes those of the channel, of which there are
    /// `channels`.
    #[inline(always)]
    unsafe fn save(&self, channel: usize, sums: MomentSums, eps: f32) -> Moments {
        let m = Moments::new::<true>(sums, Divisor::RootMeanSquare, eps);
        // SAFETY: by the caller's promise; there are three numbers for each channel in `moments`.
        unsafe {
            self.mean.get().add(channel).write(sums.whole_mean());
            self.var
                .get()
                .add(channel)
                .write(sums.mean_square::<true>());
            for (i, value) in [m.mean, m.scale, m.shift].into_iter().enumerate() {
                self.moments
                    .get()
                    .add(i * self.channels + channel)
                    .write(value);
            }
        }
        m
    }
}

/// A channel as a row: its statistics are measured and kept, and y is written.
#[derive(Clone, Copy)]
struct MeasureAndWrite<'a, T: Element> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    cut: Cut,
    vectors: Vectors<'a, T>,
    eps: f32,
    statistics: SharedStatistics,
}

impl<T: Element> TwoPassRow for MeasureAndWrite<'_, T> {
    type Stat = MomentSums;

    fn cost(cols: usize) -> usize {
        cols * 4
    }

    /// The sums of the segments are added up in f64, of which there may be many.
    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, channel: usize, elements: Range<usize>) -> MomentSums {
        let n = elements.len();
        let mut sum = 0f64;
        for Segment { row, start, len } in self.cut.segments(channel, elements.clone()) {
            // SAFETY: x has the channel's elements, and so the rows of the segments that they lie in.
            let [part] = unsafe { fold(s, Sum, [self.x.row(row).add(start)], len) };
            sum += f64::from(part);
        }
        let mean = (sum / n as f64) as f32;
        let (mut residual, mut squares) = (0f64, 0f64);
        for Segment { row, start, len } in self.cut.segments(channel, elements) {
            // SAFETY: as above.
            let [d, d2] =
                unsafe { fold(s, Deviations { mean }, [self.x.row(row).add(start)], len) };
            residual += f64::from(d);
            squares += f64::from(d2);
        }
        MomentSums::new(n, mean, residual as f32, squares as f32)
    }

    fn join(&self, a: MomentSums, b: MomentSums) -> MomentSums {
        a.join::<true>(b)
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(
        &self,
        s: S,
        channel: usize,
        elements: Range<usize>,
        sums: MomentSums,
    ) {
        let moments = match elements.start {
            // SAFETY: there is room for the statistics of all channels, and one thread has the first elements of this one.
            0 => unsafe { self.statistics.save(channel, sums, self.eps) },
            _ => Moments::new::<true>(sums, Divisor::RootMeanSquare, self.eps),
        };
        let [weight, bias] = [0, 1].map(|i| self.vectors.get(i).map(AsRef::as_ref));
        let (weight, bias) = (at(s, weight, channel, 1.0), at(s, bias, channel, 0.0));
        for Segment { row, start, len } in self.cut.segments(channel, elements) {
            // SAFETY: x and y have the channel's elements, and so the rows of the segments that they lie in; no other thread
            // is given these elements.
            unsafe {
                let body = Channel {
                    x: self.x.row(row).add(start),
                    y: self.y.get().add(row * self.cut.len + start),
                    moments,
                    weight,
                    bias,
                };
                for_each_element(s, len, &body);
            }
        }
    }
}
