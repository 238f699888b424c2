//! Launches of kernels/qk_norm_rope.metal.

use super::{NormRope, NormRopeBwd, NAME};
use crate::check;
use crate::metal::elementwise::dense;
use crate::metal::{aligned4, alloc, dtype_name, finish, grid, sources, Launch, Operand};
use crate::op::on_metal::Args;
use crate::ops::rope::geometry::Heads;
use crate::ops::rope::metal::{narrow, HeadOperand, HeadStrides, Rotary, RotaryParams};
use crate::ops::rope::{Rotation, TableArgs};
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalStorage, Result, Tensor};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    q: HeadStrides,
    k: HeadStrides,
    q_grad: HeadStrides,
    k_grad: HeadStrides,
    q_out: HeadStrides,
    k_out: HeadStrides,
    rotary: RotaryParams,
    q_rows: u32,
    k_rows: u32,
    q_heads: u32,
    k_heads: u32,
    octs: u32,
    lanes: u32,
    parts: u32,
    weights: u32,
    aligned: u32,
    eps: f32,
    weight_offset: f32,
    reserved: u32,
}

/// Octs of a head that the lanes of a simdgroup hold in two steps.
const MAX_OCTS: usize = 64;
/// Elements of a head that the kernels have threadgroup memory for: `QK_DIM` of qk_norm_rope.metal.
const MAX_DIM: usize = 512;
/// Threads of a threadgroup of the gradient: `QK_SIMDGROUPS` simdgroups.
const THREADS: usize = 256;

/// Whether a head fits the kernels' registers. Of arguments that may not have been checked yet.
pub fn has_kernel(q: &Tensor, cos: &Tensor) -> bool {
    let last = |t: &Tensor| t.dims().last().copied().unwrap_or(0);
    fits(last(q), last(cos).min(last(q) / 2))
}

/// Whether a head of `dim` elements, of which 2 · `pairs` are rotated, fits the kernels' registers.
fn fits(dim: usize, pairs: usize) -> bool {
    let octs = pairs.div_ceil(4) + (dim - 2 * pairs).div_ceil(8);
    dim <= MAX_DIM && octs <= MAX_OCTS
}

/// q and k, their weights and the tables, and with them the gradients of the outputs if there are any.
struct Operands<'a> {
    heads: Vec<HeadOperand<'a>>,
    weights: Vec<Operand<'a>>,
    rotary: Rotary<'a>,
    params: Params,
}

impl<'a> Operands<'a> {
    fn new(
        op: &NormRope,
        rotation: &Rotation,
        args: Args<'a>,
        tables: TableArgs<'a, MetalStorage>,
    ) -> Result<Self> {
        let all = [0, 1].into_iter().chain(6..args.len());
        let heads = all.map(|i| HeadOperand::new(rotation, args[i]));
        let heads = heads.collect::<Result<Vec<_>>>()?;
        let weights = dense([args[2], args[3]])?;
        let rotary = Rotary::new(rotation, tables, heads[0].heads)?;
        let (dim, pairs) = (rotary.params.dim as usize, rotary.params.pairs as usize);
        let message = format_args!("got heads of {dim} elements, expected up to {MAX_DIM}");
        check::ensure(fits(dim, pairs), NAME, message)?;
        let out = [0, 1].map(|i| Heads::contiguous(rotation.rope.layout, args[i].1));
        let rows = |i: usize| {
            let Heads {
                batch,
                heads,
                positions,
                ..
            } = out[i];
            narrow(NAME, batch * heads * positions)
        };
        let aligned = rotary.keeps_alignment()
            && heads.iter().all(HeadOperand::is_aligned)
            && out.iter().all(|y| HeadStrides::of(*y).keep_alignment())
            && aligned4(&[&weights[0], &weights[1]]) == 1;
        let strides = |i: usize| heads.get(i).unwrap_or(&heads[0]).strides();
        let octs = rotary.octs();
        let (q_rows, k_rows) = (rows(0)?, rows(1)?);
        narrow(NAME, (q_rows as usize + k_rows as usize) * grid::SIMD)?;
        let params = Params {
            q: strides(0),
            k: strides(1),
            q_grad: strides(2),
            k_grad: strides(3),
            q_out: HeadStrides::of(out[0]),
            k_out: HeadStrides::of(out[1]),
            rotary: rotary.params,
            q_rows,
            k_rows,
            q_heads: narrow(NAME, out[0].heads)?,
            k_heads: narrow(NAME, out[1].heads)?,
            octs,
            lanes: grid::lanes(octs as usize) as u32,
            // A part keeps enough rows that its sums are a small share of what is read. Depends on the sizes alone.
            parts: (q_rows.max(k_rows) / 64).clamp(1, 256),
            weights: 0,
            aligned: aligned.into(),
            eps: op.eps,
            weight_offset: op.weight_offset,
            reserved: 0,
        };
        Ok(Operands {
            heads,
            weights,
            rotary,
            params,
        })
    }

    fn rows(&self) -> usize {
        self.params.q_rows as usize + self.params.k_rows as usize
    }

    /// The launch of a pass, with all inputs bound.
    fn launch<'b>(&'b self, pass: &str, x: &'b MetalStorage) -> Result<Launch<'b>> {
        let dtype = dtype_name(x.dtype(), NAME)?;
        let steps = if self.params.octs > 32 { 2 } else { 1 };
        let kernel = format!("{NAME}_{pass}_{}_{steps}_{dtype}", self.rotary.pairs_name());
        let launch = Launch::new(x.device(), &sources::QK_NORM_ROPE, &kernel)?;
        let launch = launch
            .input(&self.heads[0].operand)
            .input(&self.heads[1].operand);
        let launch = launch.input(&self.weights[0]).input(&self.weights[1]);
        let grads = self.heads[2..].iter();
        let launch = grads.fold(launch, |launch, g| launch.input(&g.operand));
        Ok(self.rotary.bind(launch))
    }
}

pub fn forward(
    op: &NormRope,
    args: Args,
    tables: TableArgs<MetalStorage>,
) -> Result<[MetalStorage; 2]> {
    let (x, dtype) = (args[0].0, args[0].0.dtype());
    let device = x.device();
    let counts = [0, 1].map(|i| args[i].1.shape().elem_count());
    let outs = [
        alloc(device, counts[0], dtype)?,
        alloc(device, counts[1], dtype)?,
    ];
    let operands = Operands::new(op, &op.rotation, args, tables)?;
    if counts != [0, 0] {
        let lanes = operands.params.lanes as usize;
        operands
            .launch("fwd", x)?
            .output(&outs[0])
            .output(&outs[1])
            .params(&operands.params)
            .run(grid::elementwise(operands.rows() * lanes, 1))?;
    }
    let [q, k] = outs;
    Ok([
        finish(q, device, counts[0], dtype),
        finish(k, device, counts[1], dtype),
    ])
}

/// dq, dk and, if they are wanted, the gradients of the weights.
pub fn backward(
    op: &NormRopeBwd,
    args: Args,
    tables: TableArgs<MetalStorage>,
) -> Result<Vec<MetalStorage>> {
    let (x, dtype) = (args[0].0, args[0].0.dtype());
    let device = x.device();
    let back = op.forward.rotation.back();
    let mut operands = Operands::new(&op.forward, &back, args, tables)?;
    operands.params.weights = op.weights.into();
    let (params, dim) = (operands.params, operands.heads[0].heads.dim);
    let counts: Vec<usize> = (0..op.outputs())
        .map(|i| args[i].1.shape().elem_count())
        .collect();
    let outs = counts.iter().map(|&n| alloc(device, n, dtype));
    let outs = outs.collect::<Result<Vec<_>>>()?;
    let sums = alloc(device, (2 * params.parts as usize * dim).max(1), DType::F32)?;
    // Without rows the sums are still to be written.
    if dim > 0 && (op.weights || operands.rows() > 0) {
        let groups = grid::row_per_threadgroup(params.parts as usize, THREADS, 1).times(2);
        operands
            .launch("bwd", x)?
            .output(&outs[0])
            .output(&outs[1])
            .output(&sums)
            .params(&params)
            .run(groups)?;
    }
    if op.weights && dim > 0 {
        let kernel = format!("{NAME}_bwd_total_{}", dtype_name(dtype, NAME)?);
        Launch::new(device, &sources::QK_NORM_ROPE, &kernel)?
            .input_buffer(&sums)
            .output(&outs[2])
            .output(&outs[3])
            .params(&params)
            .run(grid::elementwise_rows(2, dim, 1))?;
    }
    let finished = outs.into_iter().zip(counts);
    Ok(finished
        .map(|(out, n)| finish(out, device, n, dtype))
        .collect())
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "qk_norm_rope" QkNormRopeParams {
        q, k, q_grad, k_grad, q_out, k_out, rotary, q_rows, k_rows, q_heads, k_heads, octs, lanes, parts, weights, aligned,
        eps, weight_offset, reserved
    }
}
