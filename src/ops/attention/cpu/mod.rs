//! Attention on the CPU.

use super::backward::AttendBwd;
use super::{composed, Attend};
use crate::op::{Args, OpResults};
use candle_core::{CpuStorage, Storage};

pub fn forward(op: &Attend, args: Args<CpuStorage>) -> OpResults<CpuStorage> {
    composed::forward(op, args, Storage::Cpu)
}

pub fn backward(bwd: &AttendBwd, args: Args<CpuStorage>) -> OpResults<CpuStorage> {
    composed::backward(bwd, args, Storage::Cpu)
}
