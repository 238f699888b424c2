//! [`candle_nn::moe`], whose kernels are for CUDA and inference alone: arguments that track gradients are an error.

use crate::check;
use candle_core::quantized::QTensor;
use candle_core::{DType, Result, Tensor};

/// Defines stock's function of the same name and arguments behind a check that none of the `frozen` tensors tracks gradients,
/// which the kernel would not pass on.
macro_rules! without_gradients {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),+) frozen $frozen:expr) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "stock's signature")]
        pub fn $name($($arg: $type),+) -> Result<Tensor> {
            let frozen: &[Option<&Tensor>] = $frozen;
            let tracked = frozen.iter().flatten().any(|t| t.track_op());
            let message = "got a tensor that tracks gradients, expected detached ones: the kernel passes no gradient on";
            check::ensure(!tracked, stringify!($name), message)?;
            candle_nn::moe::$name($($arg),+)
        }
    };
}

without_gradients! {
    /// Stock's product of tokens with the weights of their experts, on CUDA. An error for tensors that track gradients.
    fn moe_gemm(
        input: &Tensor,
        weights: &Tensor,
        topk_weights: &Option<Tensor>,
        sorted_token_ids: &Tensor,
        experts_ids: &Tensor,
        topk: usize,
        is_prefill: bool
    ) frozen &[Some(input), Some(weights), topk_weights.as_ref()]
}

without_gradients! {
    /// Stock's product of tokens with the quantised weights of their experts, on CUDA. An error for tensors that track
    /// gradients.
    fn moe_gemm_gguf(
        input: &Tensor,
        weights: &QTensor,
        topk_weights: &Option<Tensor>,
        sorted_token_ids: &Tensor,
        experts_ids: &Tensor,
        topk: usize,
        is_prefill: bool,
        dtype: DType
    ) frozen &[Some(input), topk_weights.as_ref()]
}
