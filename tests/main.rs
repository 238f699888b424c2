//! All integration tests, in one binary.

mod cases;
mod conv;
mod devices;
mod dropout;
mod errors;
mod golden;
mod grid;
mod layers;
mod lora;
#[cfg(feature = "metal")]
mod mps;
mod products;
mod training;
