//! The gradients, from the log-sum-exps.

use super::call::{Call, Rows, BLOCK};
use super::params::Params;
use crate::metal::sources::{ATTENTION_BWD, ATTENTION_BWD_REST};
use crate::metal::{alloc, finish, grid, Launch, Operand};
use crate::op::on_metal::{Args, OpResults};
use crate::ops::attention::backward::{AttendBwd, FIRST};
use crate::ops::attention::composed;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Result, Storage};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

/// `(y, log-sum-exps, grad_out, ..the arguments of forward)` → a dense gradient, in the input's shape and dtype, of each input
/// of `forward` that is `wanted`.
pub fn backward(bwd: &AttendBwd, args: Args) -> OpResults {
    let (saved, inputs) = args.split_at(FIRST);
    let mut call = Call::new(&bwd.op, inputs)?;
    let (y, grad) = (
        Rows::new(&call.geometry, saved[0])?,
        Rows::new(&call.geometry, saved[2])?,
    );
    call.add_grad(&grad);
    call.params.y = y.strides;
    // The forward has kept a result in f32, unless there is none.
    let wide = saved[0].0.dtype() == DType::F32 || saved[0].1.shape().elem_count() == 0;
    if !wide || !grad.is_near() || !call.fits() {
        return composed::backward(bwd, args, Storage::Metal);
    }
    let (device, dtype) = (call.device, call.dtype);
    let wants: Vec<(bool, usize)> = bwd
        .wanted
        .iter()
        .zip(inputs)
        .map(|(&wanted, (_, layout))| (wanted, layout.shape().elem_count()))
        .collect();
    // A gradient for each input that wants one and has elements.
    let mut grads: Vec<Option<Arc<Buffer>>> = Vec::new();
    for &(wanted, count) in &wants {
        grads.push(match wanted {
            true => Some(alloc(device, count, dtype)?),
            false => None,
        });
    }
    let numbers: Vec<usize> = (0..inputs.len()).collect();
    let roles = bwd.op.roles(&numbers);
    let of = |i: usize| grads[i].as_deref().filter(|_| wants[i].1 > 0);
    let pass = Pass {
        log_sums: Operand::contiguous(saved[1].0, saved[1].1)?,
        delta: alloc(device, call.geometry.rows(), DType::F32)?,
        y,
        grad,
        call,
    };
    pass.run(
        of(0),
        [of(1), of(2)],
        [roles.mask.and_then(of), roles.sinks.and_then(of)],
    )?;
    let outputs = grads.into_iter().zip(&wants).zip(inputs);
    let outputs = outputs.filter_map(|((grad, &(_, count)), (storage, layout))| {
        let grad = finish(grad?, device, count, storage.dtype());
        Some((grad, layout.shape().clone()))
    });
    Ok(outputs.collect())
}

struct Pass<'a> {
    call: Call<'a>,
    y: Rows<'a>,
    grad: Rows<'a>,
    log_sums: Operand<'a>,
    delta: Arc<Buffer>,
}

impl Pass<'_> {
    /// Launches what the gradients need that are here.
    fn run(
        &self,
        dq: Option<&Buffer>,
        [dk, dv]: [Option<&Buffer>; 2],
        [dmask, dsinks]: [Option<&Buffer>; 2],
    ) -> Result<()> {
        let (call, g) = (&self.call, &self.call.geometry);
        let rows = g.batch * g.heads * g.queries;
        if rows > 0
            && [dq, dk, dv, dmask, dsinks]
                .iter()
                .any(|grad| grad.is_some())
        {
            call.launch(&ATTENTION_BWD_REST, "bwd_delta")?
                .input(&self.y.operand)
                .input(&self.grad.operand)
                .output(&self.delta)
                .params(&call.params)
                .run(grid::row_per_simdgroup(rows, 4))?;
        }
        let width = call.width();
        if dk.is_some() || dv.is_some() {
            let params = Params {
                wants_k: u32::from(dk.is_some()),
                wants_v: u32::from(dv.is_some()),
                ..call.params
            };
            let launch = self.inputs(&format!("bwd_keys_{width}"))?;
            let launch = self.output_or(self.output_or(launch, dk), dv);
            launch.params(&params).run(call.grid(
                call.most_keys,
                g.kv_heads,
                g.dim.max(g.value_dim),
            ))?;
        }
        if let Some(dq) = dq {
            self.inputs(&format!("bwd_queries_{width}"))?
                .output(dq)
                .params(&call.params)
                .run(call.grid(call.most_queries, g.heads, g.dim))?;
        }
        if dmask.is_none() && dsinks.is_none() {
            return Ok(());
        }
        let params = Params {
            wants_mask: u32::from(dmask.is_some()),
            wants_sinks: u32::from(dsinks.is_some()),
            ..call.params
        };
        let [batch, heads, queries, keys] = params.mask_dims.map(|n| n as usize);
        let mut groups = [g.heads, 1, 0];
        if dmask.is_some() {
            groups = [keys.div_ceil(BLOCK), queries.div_ceil(BLOCK), batch * heads];
        }
        groups[2] += usize::from(dsinks.is_some());
        let q = &call.q.operand;
        let launch = call
            .launch(&ATTENTION_BWD_REST, "bwd_rest")?
            .input(q)
            .input(&call.k.operand)
            .input(&call.v.operand)
            .input_or(call.additive_mask(), q)
            .input_or(call.sinks.as_ref(), q)
            .input_or(call.lengths.as_ref(), q)
            .input(&self.grad.operand)
            .input(&self.log_sums)
            .input_buffer(&self.delta);
        let launch = self.output_or(self.output_or(launch, dmask), dsinks);
        launch.params(&params).run(grid::counted(groups, 4))
    }

    fn inputs(&self, kernel: &str) -> Result<Launch<'_>> {
        let (call, q) = (&self.call, &self.call.q.operand);
        let launch = call.launch(&ATTENTION_BWD, kernel)?;
        let launch = call
            .scored(launch)
            .input_or(call.lengths.as_ref(), q)
            .input(&self.grad.operand)
            .input(&self.log_sums)
            .input_buffer(&self.delta);
        Ok(launch)
    }

    /// The next argument: a gradient, or what stands in for one that the kernel won't write.
    fn output_or<'a>(&'a self, launch: Launch<'a>, grad: Option<&'a Buffer>) -> Launch<'a> {
        match grad {
            Some(grad) => launch.output(grad),
            None => launch.input_buffer(&self.delta),
        }
    }
}
