//! The gradients, from the saved log-sum-exps.
//!
//! A unit of work is a part of the queries that share a head of keys. It goes through its queries chunk by chunk, and for each
//! chunk through the keys block by block. Of a chunk and a block it computes the scores and the products of `grad_out` and
//! the values again, makes weights P and slopes dS of them, and adds to three sums:
//!
//! ```text
//! dQ += dS·K       of the chunk, written when it is done
//! dK += dSᵀ·Q      of all keys, written when the unit is done
//! dV += Pᵀ·G
//! ```
//!
//! Where there are few heads, their queries are cut into several parts, which sum apart; the parts' sums are then added in
//! order. How many there are depends on the shapes alone.

mod chunk;
mod mask;
mod tiles;

use super::call::Call;
use super::rows::Rows;
use super::KEY_BLOCK;
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::{COLS, ROWS};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::{gather, scratch, simd};
use crate::op::on_cpu::{Args, OpResults};
use crate::ops::attention::backward::{AttendBwd, FIRST};
use crate::ops::attention::geometry::{Geometry, Strides};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Shape};
use chunk::Part;
use std::borrow::Cow;

/// The queries of a chunk.
const CHUNK: usize = 96;
/// As many units keep the threads of a large machine busy.
const UNITS: usize = 16;

/// A call of the backward.
pub struct Backward<'a, T: Clone> {
    pub call: Call<'a, T>,
    pub grad: Rows<'a, T>,
    /// Of each query, by its number.
    pub log_sums: Cow<'a, [f32]>,
    pub deltas: Vec<f32>,
}

/// Where a gradient of q, k or v goes. Its rows lie as those of a dense tensor.
pub struct Target<T> {
    p: Shared<T>,
    strides: Strides,
}

impl<T> Clone for Target<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Target<T> {}

impl<T> Target<T> {
    /// The row of a head at a place of the sequence.
    #[inline(always)]
    fn row(self, batch: usize, head: usize, seq: usize) -> *mut T {
        let Strides {
            batch: b,
            head: h,
            seq: s,
            ..
        } = self.strides;
        self.p.get().wrapping_add(batch * b + head * h + seq * s)
    }
}

pub fn run<T: Element>(bwd: &AttendBwd, args: Args) -> OpResults {
    let call = Call::<T>::new(&bwd.op, &args[FIRST..])?;
    let geometry = call.geometry;
    let backward = Backward {
        grad: Rows::new(geometry.axes, args[2])?,
        log_sums: gather::contiguous(args[1].0.as_slice::<f32>()?, args[1].1),
        deltas: Vec::new(),
        call,
    };
    let deltas = match args[0].0.dtype() {
        DType::F32 => deltas(&backward, &Rows::<f32>::new(geometry.axes, args[0])?),
        _ => deltas(&backward, &Rows::<T>::new(geometry.axes, args[0])?),
    };
    let backward = Backward { deltas, ..backward };
    let mut outputs = Vec::new();
    let tensors = gradients(&backward, [0, 1, 2].map(|i| bwd.wanted[i]));
    for (arg, data) in args[FIRST..].iter().zip(tensors) {
        outputs.extend(data.map(|data| (T::wrap(data), arg.1.shape().clone())));
    }
    let mut rest = FIRST;
    if bwd.op.has_mask {
        if bwd.wanted[rest] {
            let shape = args[FIRST + rest].1.shape();
            outputs.push((T::wrap(mask::gradient(&backward, shape)), shape.clone()));
        }
        rest += 1;
    }
    if bwd.op.has_sinks && bwd.wanted[rest] {
        let sinks = sinks_gradient(&backward);
        outputs.push((T::wrap(sinks), geometry.heads.into()));
    }
    Ok(outputs)
}

/// The gradients of q, k and v that are wanted.
fn gradients<T: Element>(b: &Backward<T>, wanted: [bool; 3]) -> [Option<Vec<T>>; 3] {
    let g = &b.call.geometry;
    let dims = [
        g.dims(g.heads, g.queries, g.dim),
        g.dims(g.kv_heads, g.keys, g.dim),
        g.dims(g.kv_heads, g.keys, g.value_dim),
    ];
    let mut grads: [Option<Vec<T>>; 3] = std::array::from_fn(|i| {
        // Keys that do not exist get zeros.
        wanted[i].then(|| vec![T::ZERO; dims[i].iter().product()])
    });
    if !wanted.contains(&true) {
        return grads;
    }
    let mut i = 0;
    let targets = grads.each_mut().map(|grad| {
        let layout = Layout::contiguous(Shape::from(&dims[i][..]));
        i += 1;
        grad.as_mut().map(|grad| Target {
            p: Shared::new(grad.as_mut_ptr()),
            strides: Strides::new(g.axes, &layout),
        })
    });
    compute(b, targets);
    grads
}

impl<T: Element> Backward<'_, T> {
    /// The maximum of a query's scores, and the logarithm of the sum of the exponentials below it.
    #[inline(always)]
    fn log_sum(&self, number: usize) -> [f32; 2] {
        [self.log_sums[2 * number], self.log_sums[2 * number + 1]]
    }
}

/// Writes the gradients to their targets.
fn compute<T: Element>(b: &Backward<T>, targets: [Option<Target<T>>; 3]) {
    let g = &b.call.geometry;
    let parts = parts(&b.call);
    let rows = parts.iter().map(|part| part.rows).max().unwrap_or(0);
    let rows = rows.min(CHUNK).next_multiple_of(ROWS);
    let keys = b.call.segments.iter().map(|segment| segment.keys).max();
    let keys = keys.unwrap_or(0).next_multiple_of(KEY_BLOCK);
    let (dim, value_dim) = (
        g.dim.next_multiple_of(COLS),
        g.value_dim.next_multiple_of(COLS),
    );
    // The sums of a part that is not alone.
    let lens = [keys * dim, keys * value_dim];
    let apart = parts.iter().filter(|part| part.count > 1).count();
    let mut sums = vec![0f32; apart * (lens[0] + lens[1])];
    let partial = Shared::new(sums.as_mut_ptr());
    let memory = tiles::lens(g, rows);
    let cost = (rows * (g.dim + g.value_dim)).saturating_mul(g.keys) / 3;
    parallel::ranges(parts.len(), cost, 1, |range| {
        let own = if apart == 0 { lens } else { [0, 0] };
        scratch::with(own, |own| {
            scratch::with(memory, |memory| {
                for (i, part) in parts[range.clone()].iter().enumerate() {
                    // Either all parts are alone or none is.
                    let sums = match apart {
                        0 => own,
                        _ => {
                            let at = (range.start + i) * (lens[0] + lens[1]);
                            let p = partial.get().wrapping_add(at);
                            [p, p.wrapping_add(lens[0])]
                        }
                    };
                    let tiles = tiles::Tiles::new(g, rows, memory);
                    // SAFETY: `own` and each of the parts' sums have room for all keys, and the targets for all rows; no
                    // two parts have the same queries, and those that have the same keys don't write them here.
                    let part = unsafe { chunk::Gradients::new(b, part, tiles, targets, sums) };
                    simd::dispatch(part);
                }
            })
        })
    });
    if apart > 0 {
        let add = chunk::Sums::new(b, &parts, sums, lens);
        add.write([targets[1], targets[2]]);
    }
}

/// The units of work.
fn parts<T: Element>(call: &Call<T>) -> Vec<Part> {
    let g = &call.geometry;
    let heads = call.segments.len() * g.kv_heads;
    let wanted = UNITS.div_ceil(heads.max(1));
    let longest = call.segments.iter().map(|segment| segment.queries).max();
    // All heads are cut into as many parts.
    let count = (g.group() * longest.unwrap_or(0))
        .div_ceil(CHUNK)
        .clamp(1, wanted);
    let mut parts = Vec::with_capacity(heads * count);
    for (segment, s) in call.segments.iter().enumerate() {
        let rows = g.group() * s.queries;
        let len = rows.div_ceil(count).next_multiple_of(ROWS);
        for kv_head in 0..g.kv_heads {
            for i in 0..count {
                let first = (i * len).min(rows);
                parts.push(Part {
                    segment,
                    kv_head,
                    first,
                    rows: len.min(rows - first),
                    count,
                });
            }
        }
    }
    parts
}

/// `−Σ e^(sink − L)·Δ` over the queries of each head.
fn sinks_gradient<T: Element>(b: &Backward<T>) -> Vec<T> {
    let g = &b.call.geometry;
    let sinks = b.call.sinks.as_deref().unwrap_or(&[]);
    let mut sums = vec![T::ZERO; sinks.len()];
    let mut heads: Vec<(usize, &mut T)> = sums.iter_mut().enumerate().collect();
    let cost = g.batch * g.queries * parallel::EXP;
    parallel::each(&mut heads, cost, |(head, sum)| {
        let mut total = 0.0;
        for batch in 0..g.batch {
            let first = (batch * g.heads + *head) * g.queries;
            for number in first..first + g.queries {
                let [max, log_sum] = b.log_sum(number);
                total -= ((sinks[*head] - max) - log_sum).exp() * b.deltas[number];
            }
        }
        **sum = T::narrow(total);
    });
    sums
}

/// Δ of each query: its result times the gradient of it.
fn deltas<T: Element, Y: Element>(b: &Backward<T>, y: &Rows<Y>) -> Vec<f32> {
    let g = &b.call.geometry;
    let mut deltas = vec![0f32; g.rows()];
    let out = Shared::new(deltas.as_mut_ptr());
    parallel::ranges(deltas.len(), g.value_dim, 16, |range| {
        simd::dispatch(chunk::Deltas {
            geometry: g,
            y,
            grad: &b.grad,
            range: range.clone(),
            // SAFETY: the ranges don't overlap, and each is one of the vector's.
            out: unsafe { std::slice::from_raw_parts_mut(out.get().add(range.start), range.len()) },
        })
    });
    deltas
}

impl<T: Element> Backward<'_, T> {
    /// The geometry of the call.
    fn geometry(&self) -> &Geometry {
        &self.call.geometry
    }
}
