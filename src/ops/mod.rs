//! The ops. Each module holds one op's public functions, its CustomOps and its composed reference.

pub mod activation;

pub use activation::{activation, Act};
