//! The result and the log-sum-exps.

use super::call::Call;
use crate::metal::sources::{ATTENTION, ATTENTION_DECODE};
use crate::metal::{alloc, finish, grid};
use crate::op::{Args, OpResults};
use crate::ops::attention::{composed, Attend};
use candle_core::{DType, MetalStorage, Result, Storage};
use candle_metal_kernels::metal::Buffer;

/// The most queries of a sequence that are taken one by one.
const FEW: usize = 8;
/// Simdgroups of attention_decode.metal.
const DECODE_SIMDGROUPS: usize = 8;
/// The fewest keys of a part, and how many threadgroups parts are made for. Results depend on the sizes alone.
const PART: usize = 128;
const WANTED: usize = 512;

/// `(q, k, v[, mask][, sinks][, key_lengths])`, as `op.roles(args)` names them, → the result of shape
/// `op.geometry(..).output()` in q's dtype, and the log-sum-exps of shape `log_sums()` in f32, both dense.
pub fn forward(op: &Attend, args: Args<MetalStorage>) -> OpResults<MetalStorage> {
    let mut call = Call::new(op, args)?;
    if !call.fits(op, args) {
        return composed::forward(op, args, Storage::Metal);
    }
    let (dims, sums) = (call.geometry.output(), call.geometry.log_sums());
    let (count, rows) = (dims.iter().product(), sums.iter().product());
    let y = alloc(call.device, count, call.dtype)?;
    let log_sums = alloc(call.device, rows, DType::F32)?;
    if rows > 0 {
        match call.most_queries <= FEW {
            true => decode(&mut call, rows, &y, &log_sums)?,
            false => tile(&call, &y, &log_sums)?,
        }
    }
    Ok(vec![
        (finish(y, call.device, count, call.dtype), dims.into()),
        (
            finish(log_sums, call.device, rows, DType::F32),
            (&sums).into(),
        ),
    ])
}

fn tile(call: &Call, y: &Buffer, log_sums: &Buffer) -> Result<()> {
    let (g, q) = (&call.geometry, &call.q.operand);
    call.launch(&ATTENTION, &format!("fwd_tile_{}", call.width()))?
        .input(q)
        .input(&call.k.operand)
        .input(&call.v.operand)
        .input_or(call.mask.as_ref(), q)
        .input_or(call.mask.as_ref(), q)
        .input_or(call.sinks.as_ref(), q)
        .input_or(call.lengths.as_ref(), q)
        .output(y)
        .output(log_sums)
        .params(&call.params)
        .run(call.grid(call.most_queries, g.heads, g.value_dim))
}

fn decode(call: &mut Call, rows: usize, y: &Buffer, log_sums: &Buffer) -> Result<()> {
    let wanted = (call.most_keys / PART).clamp(1, WANTED.div_ceil(rows));
    let part = call.most_keys.div_ceil(wanted).next_multiple_of(32).max(32);
    let parts = call.most_keys.div_ceil(part).max(1);
    (call.params.parts, call.params.part) = (parts as u32, part as u32);
    let (call, g) = (&*call, call.geometry);
    let partial = match parts {
        1 => 1,
        _ => rows * parts * (g.value_dim + 2),
    };
    let partial = alloc(call.device, partial, DType::F32)?;
    let dims = if g.dim.max(g.value_dim) <= 128 {
        128
    } else {
        512
    };
    let q = &call.q.operand;
    call.launch(&ATTENTION_DECODE, &format!("fwd_decode_{dims}"))?
        .input(q)
        .input(&call.k.operand)
        .input(&call.v.operand)
        .input_or(call.mask.as_ref(), q)
        .input_or(call.mask.as_ref(), q)
        .input_or(call.sinks.as_ref(), q)
        .input_or(call.lengths.as_ref(), q)
        .output(y)
        .output(log_sums)
        .output(&partial)
        .params(&call.params)
        .run(grid::counted(
            [parts, g.heads, call.segments * call.most_queries],
            DECODE_SIMDGROUPS,
        ))?;
    if parts == 1 {
        return Ok(());
    }
    call.launch(&ATTENTION_DECODE, "fwd_merge")?
        .input_buffer(&partial)
        .input_or(call.sinks.as_ref(), q)
        .output(y)
        .output(log_sums)
        .params(&call.params)
        .run(grid::row_per_threadgroup(rows, g.value_dim, 1))
}
