//! Launches of kernels/adamw.metal.

use super::codes::{Table, BLOCK};
use super::{Coefficients32, Rounding, Step, Targets, NAME};
use crate::check;
use crate::metal::sources::ADAMW;
use crate::metal::{aligned4, dtype_name, grid, update, Launch, Operand};
use crate::op::on_metal::Arg;
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalStorage, Result};

/// Elements that a thread takes.
const PER_THREAD: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct AdamwParams {
    n: u64,
    c: Coefficients32,
    seed_low: u32,
    seed_high: u32,
    /// Whether the gradient is in f32, whatever the parameter is in.
    wide_grad: u32,
    aligned: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AdamwCodesParams {
    step: AdamwParams,
    signed_magnitudes: [f32; 129],
    unsigned_magnitudes: [f32; 256],
}

fn rounding_name(rounding: Rounding, dtype: DType) -> &'static str {
    match (dtype, rounding) {
        (DType::F32, _) | (_, Rounding::Nearest) => "nearest",
        (_, Rounding::Stochastic { .. }) => "chance",
        (_, Rounding::Master) => "master",
    }
}

pub fn step(step: &Step, targets: Targets<MetalStorage>, grad: Arg) -> Result<()> {
    let [param, floats, codes @ ..] = targets else {
        return Err(check::error(NAME, "a parameter has a state"));
    };
    let floats = Operand::contiguous(&*floats.0, floats.1)?;
    let codes = codes
        .first()
        .map(|codes| Operand::contiguous(&*codes.0, codes.1));
    let codes = codes.transpose()?;
    let grad = Operand::contiguous(grad.0, grad.1)?;
    let layout = param.1;
    update((&mut *param.0, layout), |storage, param| {
        let (n, dtype) = (param.count(), param.dtype());
        let moment = if codes.is_some() {
            n.div_ceil(BLOCK)
        } else {
            n
        };
        let has_master = step.rounding == Rounding::Master;
        let fits = floats.count() == 2 * moment + if has_master { n } else { 0 }
            && codes.as_ref().is_none_or(|codes| codes.count() == 2 * n)
            && grad.count() == n;
        check::ensure(fits, NAME, "got a state of another parameter's size")?;
        let seed = match step.rounding {
            Rounding::Stochastic { seed } => seed,
            _ => 0,
        };
        let whole = aligned4(&[param, &floats, &grad]) == 1 && n.is_multiple_of(PER_THREAD);
        let params = AdamwParams {
            n: n as u64,
            c: step.coefficients.into(),
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            wide_grad: u32::from(grad.dtype() == DType::F32),
            // The second moment begins n elements behind the first, the master behind both or behind scales.
            aligned: u32::from(whole && (2 * moment).is_multiple_of(PER_THREAD)),
        };
        let (rounding, dtype_name) = (
            rounding_name(step.rounding, dtype),
            dtype_name(dtype, NAME)?,
        );
        let kernel = |moments: &str| format!("adamw_{moments}_{rounding}_{dtype_name}");
        match &codes {
            None => Launch::new(storage.device(), &ADAMW, &kernel("floats"))?
                .inout(param)
                .input(&grad)
                .inout(&floats)
                .params(&params)
                .run(grid::elementwise(n, PER_THREAD)),
            Some(codes) => {
                let params = with_tables(params);
                Launch::new(storage.device(), &ADAMW, &kernel("codes"))?
                    .inout(param)
                    .input(&grad)
                    .inout(&floats)
                    .inout(codes)
                    .params(&params)
                    .run(grid::counted(
                        [moment, 1, 1],
                        BLOCK / PER_THREAD / grid::SIMD,
                    ))
            }
        }
    })
}

fn with_tables(step: AdamwParams) -> AdamwCodesParams {
    let mut params = AdamwCodesParams {
        step,
        signed_magnitudes: [0.0; 129],
        unsigned_magnitudes: [0.0; 256],
    };
    params
        .signed_magnitudes
        .copy_from_slice(&Table::signed().magnitudes);
    params
        .unsigned_magnitudes
        .copy_from_slice(&Table::unsigned().magnitudes);
    params
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    AdamwParams => "adamw" AdamwParams { n, c, seed_low, seed_high, wide_grad, aligned }
    Coefficients32 => "adamw" Coefficients { decay, beta1, gain1, beta2, gain2, rate, scale_v, eps }
    AdamwCodesParams => "adamw" AdamwCodesParams { step, signed_magnitudes, unsigned_magnitudes }
}
