//! All integration tests, in one binary.

mod cases;
mod devices;
mod errors;
mod grid;
