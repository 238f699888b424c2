//! The ops: each as functions, and as one struct under the op's own name that is a Candle CustomOp.
//!
//! Functions with `_inplace` in their name overwrite their first argument, for inference. They refuse a tensor that tracks
//! gradients; but a tensor that does not, and that an op with another, tracked argument has kept for its backward, is
//! overwritten unnoticed (by stock's in-place ops too): that op's gradient would then be wrong.

pub(crate) mod activation;
pub(crate) mod adamw;
pub(crate) mod affine_act;
mod affine_norm;
pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod binary_act;
pub(crate) mod bitlinear;
pub(crate) mod cast;
pub(crate) mod conv2d;
pub(crate) mod cross_entropy;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod glu;
pub(crate) mod grads;
pub(crate) mod group_norm;
pub(crate) mod kl_div;
pub(crate) mod kv_append;
mod limits;
pub(crate) mod linear;
pub(crate) mod linear_cross_entropy;
pub(crate) mod lora;
pub(crate) mod lora_gather;
pub(crate) mod matmul_act;
pub(crate) mod mixed_matmul;
#[cfg(feature = "metal")]
pub mod mps;
mod packed;
pub(crate) mod pool2d;
pub(crate) mod qk_norm_rope;
pub(crate) mod quantize;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod row_norm;
pub(crate) mod softmax;
mod targets;
pub(crate) mod upsample;
mod widen;

pub use crate::quant::Quantized;

/// Exports what an op offers: `module: names that users see = references`. References are the compositions of stock Candle
/// ops that the op must equal; tests and benchmarks read them under `reference`.
macro_rules! exports {
    ($($op:ident: $($name:ident),+ = $($reference:ident),+;)+) => {
        $(pub use $op::{$($name),+};)+

        #[doc(hidden)]
        pub mod reference {
            $(pub mod $op {
                pub use crate::ops::$op::{$($reference),+};
            })+
        }
    };
}

exports! {
    activation: activation, activation_inplace, gelu, gelu_erf, leaky_relu, relu, relu2, sigmoid, silu, softplus,
        tanh, Act, Activation = reference;
    affine_act: affine_act, affine_act_inplace, AffineAct = reference;
    attention: attention, attention_codes, Attention, AttentionCodes, AttentionConfig, AttentionDropout, AttentionLayout, PackedSequences = reference;
    batch_norm: batch_norm, batch_norm_train, BatchNorm = reference, reference_train;
    binary_act: add_act, add_act_inplace, add_relu, bias_act, bias_act_inplace, mul_act, mul_act_inplace, mul_relu,
        BinaryAct, BinaryOp = reference;
    bitlinear: bitlinear, BitLinear = reference;
    cast: cast, Cast = reference;
    conv2d: conv1d, conv2d, conv2d_with, conv_transpose1d, conv_transpose2d, Conv2d, Conv2dParams, ConvAlgo,
        ConvTranspose2d = reference, transposed_reference;
    cross_entropy: cross_entropy, cross_entropy_inplace, nll, token_log_probs, CrossEntropy, CrossEntropyConfig,
        LossReduction = reference, reference_nll, reference_token_log_probs;
    dropout: dropout, dropout_add, dropout_inplace, relu_dropout, relu_dropout_inplace, Dropout, DropoutAdd =
        reference, reference_add;
    embedding: embedding, Embedding = reference;
    glu: geglu, geglu_packed, glu, glu_inplace, glu_packed, reglu, reglu_packed, swiglu, swiglu_packed, Glu,
        GluPacked = reference, reference_packed;
    group_norm: group_norm, group_norm_inplace, GroupNorm = reference;
    kl_div: kl_div, Distribution, KlDiv = reference;
    linear: frozen_linear, linear, Linear = reference;
    linear_cross_entropy: linear_cross_entropy, linear_cross_entropy_grads, LinearCrossEntropy,
        LinearCrossEntropyConfig = reference;
    lora: lora, lora_trained, lora_with, Adapter, AdapterDropout, FrozenWeight, Lora = reference;
    lora_gather: lora_gather, LoraGather, NO_ADAPTER = reference;
    matmul_act: linear_act, matmul_act, MatmulAct = reference;
    mixed_matmul: mixed_matmul, mixed_matmul_with, Activations, MixedMatmul = reference, reference_with;
    pool2d: avg_pool2d, max_pool2d, AvgPool2d, MaxPool2d, Pool2dParams = reference_avg, reference_max;
    qk_norm_rope: qk_norm_rope, HeadNormRope, QkNormRope = reference;
    quantize: dequantize, fake_quantize, fake_quantize_clipped, quantize, Dequantize, FakeQuantize = reference,
        reference_dequantize, reference_quantize;
    reduce: max, max_all, max_keepdim, max_last_dim, mean, mean_all, mean_keepdim, mean_last_dim, sum, sum_all,
        sum_keepdim, sum_last_dim, Over, Reduce, Reduction = reference_all, reference_dims, reference_last_dim;
    rope: rope, rope_inplace, rope_qk, Rope, RopeLayout, RopePairs, RopePositions, RopeSections = reference;
    row_norm: add_layer_norm, add_rms_norm, l2_norm, l2_norm_inplace, layer_norm, layer_norm_inplace, rms_norm,
        rms_norm_inplace, L2Norm, LayerNorm, RmsNorm = reference_l2, reference_layer, reference_rms;
    softmax: log_softmax, log_softmax_last_dim_inplace, masked_softmax, masked_softmax_inplace, softmax,
        softmax_last_dim, softmax_last_dim_inplace, Mask, MaskedSoftmax, Softmax = reference, reference_log,
        reference_masked;
    upsample: upsample_bilinear2d, upsample_bilinear2d_with_scale, upsample_nearest1d, upsample_nearest2d,
        UpsampleBilinear2d, UpsampleNearest2d = reference_bilinear, reference_nearest;
}
