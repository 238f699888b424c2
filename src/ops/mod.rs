//! The ops. Each module holds one op's public functions, its CustomOps and its composed reference.

pub mod activation;
pub mod affine_act;
mod affine_norm;
pub mod binary_act;
pub mod bitlinear;
pub mod conv2d;
pub mod dropout;
pub mod glu;
pub mod group_norm;
pub mod linear;
pub mod lora;
pub mod matmul_act;
pub mod mixed_matmul;
mod packed;
pub mod quantize;
pub mod reduce;
pub mod row_norm;
pub mod softmax;

pub use activation::{
    activation, activation_inplace, gelu, gelu_erf, leaky_relu, relu, relu2, sigmoid, silu,
    softplus, tanh, Act,
};
pub use affine_act::{affine_act, affine_act_inplace};
pub use binary_act::{
    add_act, add_act_inplace, add_relu, bias_act, bias_act_inplace, mul_act, mul_act_inplace,
    mul_relu, BinaryOp,
};
pub use bitlinear::bitlinear;
pub use conv2d::{
    conv1d, conv2d, conv2d_with, conv_transpose1d, conv_transpose2d, ConvAlgo, Window,
};
pub use dropout::{dropout, dropout_add, dropout_inplace, relu_dropout, relu_dropout_inplace};
pub use glu::{
    geglu, geglu_packed, glu, glu_inplace, glu_packed, reglu, reglu_packed, swiglu, swiglu_packed,
};
pub use group_norm::{group_norm, group_norm_inplace};
pub use linear::{frozen_linear, linear};
pub use lora::{lora, lora_gather, lora_with, Adapter, Base};
pub use matmul_act::{linear_act, matmul_act};
pub use mixed_matmul::mixed_matmul;
pub use quantize::{dequantize, fake_quantize, fake_quantize_clipped, quantize, Quantized};
pub use reduce::{
    max_all, max_last_dim, mean_all, mean_last_dim, sum_all, sum_last_dim, Reduction,
};
pub use row_norm::{
    add_layer_norm, add_rms_norm, l2_norm, l2_norm_inplace, layer_norm, layer_norm_inplace,
    rms_norm, rms_norm_inplace,
};
pub use softmax::{
    log_softmax, log_softmax_last_dim_inplace, masked_softmax, masked_softmax_inplace, softmax,
    softmax_last_dim, softmax_last_dim_inplace, Mask,
};
