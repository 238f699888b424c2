//! Launches of kernels/grads.metal.

use super::NAME;
use crate::metal::elementwise::Elementwise;
use crate::metal::sources::GRADS;
use crate::metal::{aligned4, alloc, dtype_name, finish, grid, update, Launch, Operand};
use crate::op::on_metal::{Arg, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Result};

/// Elements that a threadgroup adds up: 16 loads of four for each of 256 threads.
const PART: usize = 16 * 4 * 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct PartialSumsParams {
    n: u64,
    part: u64,
    aligned: u32,
}

pub fn partial_sums((x, l): Arg) -> OpResult {
    let x = Operand::contiguous(x, l).map(|operand| (x, operand))?;
    let (storage, x) = x;
    let (n, device) = (x.count(), storage.device());
    let parts = n.div_ceil(PART);
    let sums = alloc(device, parts, DType::F32)?;
    if parts > 0 {
        let params = PartialSumsParams {
            n: n as u64,
            part: PART as u64,
            aligned: aligned4(&[&x]),
        };
        let kernel = format!("grads_sum_squares_{}", dtype_name(x.dtype(), NAME)?);
        Launch::new(device, &GRADS, &kernel)?
            .input(&x)
            .output(&sums)
            .params(&params)
            .run(grid::row_per_threadgroup(parts, n.min(4096), 16))?;
    }
    Ok((finish(sums, device, parts, DType::F32), parts.into()))
}

pub fn scale(factor: f32, x: ArgMut) -> Result<()> {
    let dtype = dtype_name(x.0.dtype(), NAME)?;
    let kernel = Elementwise {
        source: &GRADS,
        kernel: format!("grads_scale_{dtype}"),
        spread: |_| (),
        op: factor,
    };
    kernel.map_in_place(x, &[])
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AddParams {
    n: u64,
    aligned: u32,
}

pub fn add(sum: ArgMut, (x, xl): Arg) -> Result<()> {
    let kernel = format!("grads_add_{}", dtype_name(x.dtype(), NAME)?);
    let x = Operand::contiguous(x, xl)?;
    update(sum, |storage, sum| {
        let params = AddParams {
            n: sum.count() as u64,
            aligned: aligned4(&[sum, &x]),
        };
        Launch::new(storage.device(), &GRADS, &kernel)?
            .inout(sum)
            .input(&x)
            .params(&params)
            .run(grid::elementwise(sum.count(), 4))
    })
}

#[cfg(test)]
type ScaleParams = crate::metal::elementwise::Params<(), f32>;
#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    PartialSumsParams => "grads" PartialSumsParams { n, part, aligned }
    ScaleParams => "grads" ScaleParams { n, op = "factor", aligned }
    AddParams => "grads" AddParams { n, aligned }
}
