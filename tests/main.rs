//! The integration tests in one binary; `custom_ops` and `memory` are binaries of their own.

mod architecture;
mod arguments;
mod attention;
mod attention_codes;
mod cases;
mod conv2d;
mod cross_entropy;
mod devices;
mod dropout;
mod embedding;
mod errors;
mod fixtures;
mod golden;
mod grid;
mod kv_cache;
mod layers;
mod linear;
mod llama;
mod lora;
mod matmul_act;
#[cfg(feature = "metal")]
mod mps;
mod nn_gradients;
mod optim;
mod pooling;
mod pools;
mod quantize;
mod quantized;
mod rope;
mod rows;
mod softmax_attention;
mod tensors;
mod training;
mod transformer;
