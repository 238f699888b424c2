//! [`candle_nn::moe`], whose kernels are for CUDA and inference alone: arguments that track gradients are an error.

use crate::check;
use candle_core::quantized::QTensor;
use candle_core::{DType, Result, Tensor};

fn untracked(name: &str, args: &[Option<&Tensor>]) -> Result<()> {
    let message = "got a tensor that tracks gradients, expected detached ones: the kernel passes no gradient on";
    let tracked = args.iter().flatten().any(|t| t.track_op());
    check::ensure(!tracked, name, message)
}

/// Stock's product of tokens with the weights of their experts, on CUDA. An error for tensors that track gradients.
pub fn moe_gemm(
    input: &Tensor,
    weights: &Tensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    is_prefill: bool,
) -> Result<Tensor> {
    let args = [Some(input), Some(weights), topk_weights.as_ref()];
    untracked("moe_gemm", &args)?;
    candle_nn::moe::moe_gemm(
        input,
        weights,
        topk_weights,
        sorted_token_ids,
        experts_ids,
        topk,
        is_prefill,
    )
}

/// Stock's product of tokens with the quantised weights of their experts, on CUDA. An error for tensors that track gradients.
#[allow(clippy::too_many_arguments, reason = "stock's signature")]
pub fn moe_gemm_gguf(
    input: &Tensor,
    weights: &QTensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    is_prefill: bool,
    dtype: DType,
) -> Result<Tensor> {
    untracked("moe_gemm_gguf", &[Some(input), topk_weights.as_ref()])?;
    candle_nn::moe::moe_gemm_gguf(
        input,
        weights,
        topk_weights,
        sorted_token_ids,
        experts_ids,
        topk,
        is_prefill,
        dtype,
    )
}
