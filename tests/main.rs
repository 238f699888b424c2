//! All integration tests, in one binary.

mod bitnet;
mod cases;
mod conv;
mod devices;
mod dropout;
mod errors;
mod fixtures;
mod golden;
mod grid;
mod layers;
mod lora;
#[cfg(feature = "metal")]
mod mps;
mod products;
mod quantize;
mod stacks;
mod training;
