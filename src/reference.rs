//! The compositions of stock Candle ops that the ops must equal, by op: the specification, for tests and benchmarks. Not
//! part of the public interface.

/// Stamps a module for each op.
macro_rules! references {
    ($($op:ident: $($name:ident),+;)+) => {$(
        pub mod $op {
            pub use crate::ops::$op::{$($name),+};
        }
    )+};
}

references! {
    activation: reference;
    affine_act: reference;
    binary_act: reference;
    bitlinear: reference;
    conv2d: reference, transposed_reference;
    dropout: reference, reference_add;
    glu: reference, reference_packed;
    group_norm: reference;
    linear: reference;
    lora: reference, reference_with;
    lora_gather: reference;
    matmul_act: reference;
    mixed_matmul: reference;
    quantize: reference, reference_dequantize, reference_quantize;
    reduce: reference_all, reference_last_dim;
    row_norm: reference_l2, reference_layer, reference_rms;
    softmax: reference, reference_log, reference_masked;
}
