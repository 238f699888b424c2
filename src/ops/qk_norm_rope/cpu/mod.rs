//! The norm and rotation of heads on the CPU: `rows` has one head's forward and gradient, `head` the loops over its vectors;
//! the walk over heads and positions is that of `rope`.

mod head;
mod rows;

use super::{NormRope, NormRopeBwd, NAME};
use crate::cpu::column_sums::sum_rows;
use crate::cpu::element::Element;
use crate::cpu::parallel::Shared;
use crate::cpu::{alloc, with_float};
use crate::op::on_cpu::Args;
use crate::ops::rope::cpu::{Place, Source, Stream, Tables, Walk};
use crate::ops::rope::geometry::Heads;
use crate::ops::rope::{RopePairs, TableArgs};
use candle_core::{CpuStorage, Result};
use head::{Head, Weights, HALF, NEIGHBOURS};
use rows::{Backward, Forward};

pub fn forward(
    op: &NormRope,
    args: Args,
    tables: TableArgs<CpuStorage>,
) -> Result<[CpuStorage; 2]> {
    with_float!(NAME, args[0].0, T => forward_of::<T>(op, args, tables))
}

fn forward_of<T: Element>(
    op: &NormRope,
    args: Args,
    tables: TableArgs<CpuStorage>,
) -> Result<[CpuStorage; 2]> {
    let rotation = &op.rotation;
    let tables = Tables::<T>::new(rotation, tables)?;
    let weights = Weights::new::<T>(op, [args[2], args[3]])?;
    let (q, k) = (
        Source::new(rotation, args[0])?,
        Source::new(rotation, args[1])?,
    );
    let to = [args[0], args[1]].map(|(_, l)| Heads::contiguous(rotation.rope.layout, l));
    let head = Head {
        pairs: tables.pairs(),
        dim: q.heads.dim,
        eps: op.eps,
        weights: &weights,
    };
    let mut normed = Vec::new();
    // SAFETY: the outputs have the elements of q and of k, and the walk writes every head of them. Heads have `dim` elements,
    // as weights have.
    let k = unsafe {
        alloc::build(args[1].1.shape().elem_count(), |ky| {
            normed = alloc::build(args[0].1.shape().elem_count(), |qy| {
                let streams = [q.stream(qy, to[0]), k.stream(ky, to[1])];
                let walk = Walk::new(&tables, &streams, q.heads);
                match tables.kind() {
                    RopePairs::Half => walk.run(&Forward::<HALF>(head), FORWARD),
                    RopePairs::Interleaved => walk.run(&Forward::<NEIGHBOURS>(head), FORWARD),
                }
            });
        })
    };
    Ok([T::wrap(normed), T::wrap(k)])
}

// What an element costs, in the units of `parallel`.
const FORWARD: usize = 3;
const BACKWARD: usize = 6;

/// dq, dk and, if they are wanted, the gradients of the weights.
pub fn backward(
    op: &NormRopeBwd,
    args: Args,
    tables: TableArgs<CpuStorage>,
) -> Result<Vec<CpuStorage>> {
    with_float!(NAME, args[0].0, T => backward_of::<T>(op, args, tables))
}

fn backward_of<T: Element>(
    op: &NormRopeBwd,
    args: Args,
    tables: TableArgs<CpuStorage>,
) -> Result<Vec<CpuStorage>> {
    let back = &op.forward.rotation.back();
    let tables = Tables::<T>::new(back, tables)?;
    let weights = Weights::new::<T>(&op.forward, [args[2], args[3]])?;
    let (q, k) = (Source::new(back, args[0])?, Source::new(back, args[1])?);
    let (dq, dk) = (Source::new(back, args[6])?, Source::new(back, args[7])?);
    let to = [args[0], args[1]].map(|(_, l)| Heads::contiguous(back.rope.layout, l));
    let head = Head {
        pairs: tables.pairs(),
        dim: q.heads.dim,
        eps: op.forward.eps,
        weights: &weights,
    };
    let (mut grad_q, mut sums) = (Vec::new(), Vec::new());
    // SAFETY: the gradients have the elements of q and of k, and the walk writes every head of them. There are sums for both
    // streams of each unit.
    let grad_k = unsafe {
        alloc::build(args[1].1.shape().elem_count(), |ky| {
            grad_q = alloc::build(args[0].1.shape().elem_count(), |qy| {
                let streams = [
                    gradient_stream(&q, &dq, Place::new(qy, to[0])),
                    gradient_stream(&k, &dk, Place::new(ky, to[1])),
                ];
                let walk = Walk::new(&tables, &streams, q.heads);
                if op.weights {
                    sums = vec![0f32; walk.units() * 2 * head.dim];
                }
                run_backward(op.weights, walk, head, Shared::new(sums.as_mut_ptr()));
            });
        })
    };
    let mut outputs = vec![T::wrap(grad_q), T::wrap(grad_k)];
    if op.weights {
        let n = 2 * head.dim;
        // SAFETY: the sums of the columns are written for each of them.
        let mut weights: Vec<T> = unsafe { alloc::build(n, |out| sum_rows(&sums, n, n, out)) };
        let k_weight = weights.split_off(head.dim);
        outputs.extend([T::wrap(weights), T::wrap(k_weight)]);
    }
    Ok(outputs)
}

/// Of x and the gradient of its output.
fn gradient_stream<T: Element>(x: &Source<T>, g: &Source<T>, to: Place<T>) -> Stream<T, 2> {
    Stream {
        from: [x.place(), g.place()],
        to,
        heads: x.heads.heads,
    }
}

/// # Safety
/// As for `Walk::run`; if `weights`, there are `2 · dim` sums for each unit.
unsafe fn run_backward<T: Element>(weights: bool, walk: Walk<T, 2>, head: Head, sums: Shared<f32>) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match (walk.kind(), weights) {
            (RopePairs::Half, true) => walk.run(&Backward::<HALF, true>(head, sums), BACKWARD),
            (RopePairs::Half, false) => walk.run(&Backward::<HALF, false>(head, sums), BACKWARD),
            (RopePairs::Interleaved, true) => {
                walk.run(&Backward::<NEIGHBOURS, true>(head, sums), BACKWARD)
            }
            (RopePairs::Interleaved, false) => {
                walk.run(&Backward::<NEIGHBOURS, false>(head, sums), BACKWARD)
            }
        }
    }
}
