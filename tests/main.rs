//! All integration tests, in one binary.

mod cases;
mod devices;
mod dropout;
mod errors;
mod golden;
mod grid;
mod layers;
mod lora;
mod products;
mod training;
