//! Attention over quantised keys and values. It is compiled for f32 alone: q and a mask of 16 bits are widened, and so is the
//! result rounded, as a whole, which is little beside the keys.

use super::call::Call;
use super::code_rows::CodeRows;
use super::compute;
use crate::check;
use crate::cpu::element::Element;
use crate::op::on_cpu::{Arg, Args, OpResult};
use crate::op::Spec;
use crate::ops::attention::codes::{with_layouts, AttentionCodes, NAME};
use crate::ops::attention::geometry::Roles;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, Result};

pub fn forward_codes(op: &AttentionCodes, q: Arg, held: Args) -> OpResult {
    match op.bits() {
        Some(4) => forward::<4>(op, q, held),
        _ => forward::<8>(op, q, held),
    }
}

fn forward<const BITS: usize>(op: &AttentionCodes, q: Arg, held: Args) -> OpResult {
    let dtype = q.0.dtype();
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(check::unsupported_dtype(NAME, dtype));
    }
    let spec = Spec { layout: q.1, dtype };
    let geometry = op.geometry(NAME, spec)?;
    let [keys, values, rest] = op.parts(held);
    let attend = op.op();
    let given = [&[q][..], rest].concat();
    let wide = given.iter().map(|arg| match arg.0.dtype() == dtype {
        true => widened(*arg),
        false => Ok(None),
    });
    let wide = wide.collect::<Result<Vec<_>>>()?;
    let read = given.iter().zip(&wide).map(|(arg, wide)| match wide {
        Some((storage, layout)) => (storage, layout),
        None => *arg,
    });
    let read: Vec<Arg> = read.collect();
    // `Attend` counts k and v behind q, which are rows of codes here.
    let args = [&read[..1], &read[..1], &read].concat();
    let roles: Roles<Arg> = attend.roles(&args);
    let (key_layouts, value_layouts) = (op.layouts(keys)?, op.layouts(values)?);
    let k = CodeRows::<BITS>::new(geometry.axes, &op.keys, &with_layouts(keys, &key_layouts))?;
    let v = CodeRows::<BITS>::new(
        geometry.axes,
        &op.values,
        &with_layouts(values, &value_layouts),
    )?;
    let call = Call::<f32, _>::with_rows(&attend, geometry, &roles, (k, v))?;
    let (y, _, _) = compute(&call, false);
    let (y, dims) = (f32::wrap(y), geometry.output());
    let y = match dtype {
        DType::F32 => y,
        dtype => y.to_dtype(&Layout::contiguous(dims.as_slice()), dtype)?,
    };
    Ok((y, dims.into()))
}

/// A copy in f32 of an argument of 16 bits.
fn widened((storage, layout): Arg) -> Result<Option<(CpuStorage, Layout)>> {
    if storage.dtype() == DType::F32 {
        return Ok(None);
    }
    let wide = storage.to_dtype(layout, DType::F32)?;
    Ok(Some((wide, Layout::contiguous(layout.shape()))))
}
