//! All integration tests, in one binary.

mod architecture;
mod arguments;
mod attention;
mod cases;
mod conv2d;
mod devices;
mod dropout;
mod errors;
mod fixtures;
mod golden;
mod grid;
mod layers;
mod linear;
mod lora;
mod matmul_act;
#[cfg(feature = "metal")]
mod mps;
mod quantize;
mod quantized;
mod rows;
mod tensors;
mod training;
