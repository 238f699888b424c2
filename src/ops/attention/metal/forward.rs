//! The result and the log-sum-exps.

use super::call::Call;
use super::codes::Codes;
use crate::metal::sources::{ATTENTION, ATTENTION_CODES, ATTENTION_DECODE};
use crate::metal::{alloc, finish, grid, Launch};
use crate::op::on_metal::{Args, OpResults};
use crate::ops::attention::{composed, Attend};
use candle_core::{DType, Result, Storage};
use candle_metal_kernels::metal::Buffer;

/// The most queries of a sequence that are taken one by one.
const FEW: usize = 8;
/// Simdgroups of attention_decode.metal.
const DECODE_SIMDGROUPS: usize = 8;
/// The fewest keys of a part, and how many threadgroups parts are made for. Results depend on the sizes alone.
const PART: usize = 128;
const WANTED: usize = 512;

/// `(q, k, v[, mask][, sinks][, key_lengths])`, as `op.roles(args)` names them, → the result of shape
/// `op.geometry(..).output()` in q's dtype, and the log-sum-exps of shape `log_sums()` in f32, both dense; and, if `op.keeps_wide` and q is of
/// 16 bits, the result in f32 too.
pub fn forward(op: &Attend, args: Args) -> OpResults {
    let mut call = Call::new(op, args)?;
    if !call.fits() {
        return composed::forward(op, args, Storage::Metal);
    }
    let keeps_wide = op.keeps_wide && call.dtype != DType::F32;
    compute(&mut call, None, keeps_wide)
}

/// The result, the log-sum-exps and, if it is kept, the result in f32. Keys and values are numbers, or codes.
pub fn compute(call: &mut Call, codes: Option<&Codes>, keeps_wide: bool) -> OpResults {
    let (dims, sums) = (call.geometry.output(), call.geometry.log_sums());
    let (count, rows) = (dims.iter().product(), call.geometry.rows());
    let y = alloc(call.device, count, call.dtype)?;
    let log_sums = alloc(call.device, 2 * rows, DType::F32)?;
    let wide = match keeps_wide {
        true => Some(alloc(call.device, count, DType::F32)?),
        false => None,
    };
    call.params.wants_wide = u32::from(wide.is_some());
    let to = Outputs {
        y: &y,
        log_sums: &log_sums,
        wide: wide.as_deref(),
    };
    if rows > 0 {
        match call.most_queries <= FEW {
            true => decode(call, codes, rows, to)?,
            false => tile(call, codes, to)?,
        }
    }
    let device = call.device;
    let mut outputs = vec![
        (finish(y, device, count, call.dtype), dims.clone().into()),
        (
            finish(log_sums, device, 2 * rows, DType::F32),
            (&sums).into(),
        ),
    ];
    outputs.extend(wide.map(|wide| (finish(wide, device, count, DType::F32), dims.into())));
    Ok(outputs)
}

#[derive(Clone, Copy)]
struct Outputs<'a> {
    y: &'a Buffer,
    log_sums: &'a Buffer,
    /// The result in f32.
    wide: Option<&'a Buffer>,
}

impl<'a> Outputs<'a> {
    /// The next three arguments.
    fn bind(self, launch: Launch<'a>, call: &'a Call) -> Launch<'a> {
        let launch = launch.output(self.y).output(self.log_sums);
        match self.wide {
            Some(wide) => launch.output(wide),
            // Stands in for what the kernel won't write.
            None => launch.input_buffer(call.q.operand.buffer()),
        }
    }
}

fn tile(call: &Call, codes: Option<&Codes>, to: Outputs) -> Result<()> {
    let (g, width) = (&call.geometry, call.width());
    let launch = match codes {
        None => call.launch(&ATTENTION, &format!("fwd_tile_{width}"))?,
        Some(_) => call.launch(&ATTENTION_CODES, &format!("codes_tile_{width}"))?,
    };
    let launch = to.bind(inputs(call, codes, launch), call);
    params(call, codes, launch).run(call.grid(call.most_queries, g.heads, g.value_dim))
}

/// What the first dispatch reads.
fn inputs<'a>(call: &'a Call, codes: Option<&'a Codes>, launch: Launch<'a>) -> Launch<'a> {
    let q = &call.q.operand;
    let launch = match codes {
        None => call.scored(launch),
        Some(codes) => call.masked(codes.bind(launch.input(q), call)),
    };
    launch
        .input_or(call.sinks.as_ref(), q)
        .input_or(call.lengths.as_ref(), q)
}

/// Its last arguments.
fn params<'a>(call: &'a Call, codes: Option<&'a Codes>, launch: Launch<'a>) -> Launch<'a> {
    let launch = launch.params(&call.params);
    match codes {
        None => launch,
        Some(codes) => launch.params(&codes.params),
    }
}

fn decode(call: &mut Call, codes: Option<&Codes>, rows: usize, to: Outputs) -> Result<()> {
    let wanted = (call.most_keys / PART).clamp(1, WANTED.div_ceil(rows));
    let part = call.most_keys.div_ceil(wanted).next_multiple_of(32).max(32);
    let parts = call.most_keys.div_ceil(part).max(1);
    (call.params.parts, call.params.part) = (parts as u32, part as u32);
    let (call, g) = (&*call, call.geometry);
    // One part leaves nothing to merge.
    let partial = match parts {
        1 => 1,
        _ => rows * parts * (g.value_dim + 2),
    };
    let partial = alloc(call.device, partial, DType::F32)?;
    let dims = match g.dim.max(g.value_dim) {
        ..=128 => 128,
        _ => 512,
    };
    let launch = match codes {
        None => call.launch(&ATTENTION_DECODE, &format!("fwd_decode_{dims}"))?,
        Some(_) => call.launch(&ATTENTION_CODES, &format!("codes_few_{dims}"))?,
    };
    let launch = to.bind(inputs(call, codes, launch), call).output(&partial);
    params(call, codes, launch).run(grid::counted(
        [parts, g.heads, call.segments * call.most_queries],
        DECODE_SIMDGROUPS,
    ))?;
    if parts == 1 {
        return Ok(());
    }
    let launch = call
        .launch(&ATTENTION_DECODE, "fwd_merge")?
        .input_buffer(&partial)
        .input_or(call.sinks.as_ref(), &call.q.operand);
    to.bind(launch, call)
        .params(&call.params)
        .run(grid::row_per_threadgroup(rows, g.value_dim, 1))
}
