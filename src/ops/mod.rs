//! The ops. Each module holds one op's public functions, its CustomOps and its composed reference.

pub mod activation;
pub mod affine_act;
pub mod binary_act;
pub mod dropout;
pub mod glu;
pub mod reduce;

pub use activation::{
    activation, activation_inplace, gelu, gelu_erf, leaky_relu, relu, relu2, sigmoid, silu,
    softplus, tanh, Act,
};
pub use affine_act::{affine_act, affine_act_inplace};
pub use binary_act::{
    add_act, add_act_inplace, add_relu, bias_act, mul_act, mul_act_inplace, mul_relu, BinaryOp,
};
pub use dropout::{dropout, dropout_add, dropout_inplace, relu_dropout};
pub use glu::{
    geglu, geglu_packed, glu, glu_inplace, glu_packed, reglu, reglu_packed, swiglu, swiglu_packed,
};
pub use reduce::{
    max_all, max_last_dim, mean_all, mean_last_dim, sum_all, sum_last_dim, Reduction,
};
