//! All integration tests, in one binary.

mod cases;
mod errors;
