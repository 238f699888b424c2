//! Attention on the CPU.

mod backward;
mod call;
mod code_rows;
mod codes;
mod decode;
mod output;
mod prefill;
mod rows;
mod scores;
mod spans;

use super::backward::{AttendBwd, FIRST};
use super::{Attend, NAME};
use crate::cpu::element::Element;
use crate::cpu::{alloc, with_float};
use crate::op::on_cpu::{Args, OpResults};
use call::Call;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType};
pub use codes::forward_codes;
use output::Output;
use rows::KvRows;

/// The keys of a block: a multiple of every instruction set's rows and columns of a tile.
const KEY_BLOCK: usize = 192;
/// The distance of the rows of a block's scores. Not a power of two, so that rows don't displace one another in the cache.
const SCORE_ROW: usize = KEY_BLOCK + 16;

pub fn forward(op: &Attend, args: Args) -> OpResults {
    with_float!(NAME, args[0].0, T => forward_of::<T>(op, args))
}

fn forward_of<T: Element>(op: &Attend, args: Args) -> OpResults {
    let call = Call::<T>::new(op, args)?;
    let (dims, sums) = (call.geometry.output(), call.geometry.log_sums());
    let keeps_wide = op.keeps_wide && args[0].0.dtype() != DType::F32;
    let (y, log_sums, wide) = compute(&call, keeps_wide);
    let wide_dims = if keeps_wide { dims.clone() } else { vec![0] };
    Ok(vec![
        (T::wrap(y), dims.into()),
        (CpuStorage::F32(log_sums), (&sums).into()),
        (CpuStorage::F32(wide), wide_dims.into()),
    ])
}

/// The result, the log-sum-exps, and the result in f32 if it is kept.
fn compute<T: Element, R: KvRows>(
    call: &Call<T, R>,
    keeps_wide: bool,
) -> (Vec<T>, Vec<f32>, Vec<f32>) {
    let (dims, sums) = (call.geometry.output(), call.geometry.log_sums());
    let count = dims.iter().product();
    let kept = if keeps_wide { count } else { 0 };
    let (mut log_sums, mut wide) = (Vec::new(), Vec::new());
    // SAFETY: all have an element for each result, and every query's are written.
    let y = unsafe {
        alloc::build(count, |y: *mut T| {
            log_sums = alloc::build(sums.iter().product(), |log_sums: *mut f32| {
                let log_sums = log_sums.cast();
                wide = alloc::build(kept, |wide: *mut f32| {
                    let wide = (kept > 0).then_some(wide);
                    let output = Output::new(&call.geometry, y, log_sums, wide);
                    match decode::suits(call) {
                        true => decode::run(call, output),
                        false => prefill::run(call, output),
                    }
                });
            });
        })
    };
    (y, log_sums, wide)
}

pub fn backward(bwd: &AttendBwd, args: Args) -> OpResults {
    with_float!(NAME, args[FIRST].0, T => backward::run::<T>(bwd, args))
}
