//! Attention on Metal.

use super::backward::AttendBwd;
use super::{composed, Attend};
use crate::op::{Args, OpResults};
use candle_core::{MetalStorage, Storage};

/// `(q, k, v[, mask][, sinks][, key_lengths])`, as `op.roles(args)` names them, → the result of shape
/// `op.geometry(..).output()` in q's dtype, and the log-sum-exps of shape `log_sums()` in f32, both dense; and, if `op.keeps_wide` and q is of
/// 16 bits, the result in f32 too: without it the backward starts from the rounded one.
pub fn forward(op: &Attend, args: Args<MetalStorage>) -> OpResults<MetalStorage> {
    composed::forward(op, args, Storage::Metal)
}

/// `(y, log-sum-exps, grad_out, ..the arguments of forward)` → a dense gradient, in the input's shape and dtype, of each input
/// of `forward` that is `wanted`.
pub fn backward(bwd: &AttendBwd, args: Args<MetalStorage>) -> OpResults<MetalStorage> {
    composed::backward(bwd, args, Storage::Metal)
}
