//! The ops. Each module holds one op's public functions, its CustomOps and its composed reference.

pub mod activation;
pub mod reduce;
pub mod softmax;

pub use activation::{activation, Act};
pub use reduce::{
    max_all, max_last_dim, mean_all, mean_last_dim, sum_all, sum_last_dim, Reduction,
};
pub use softmax::{log_softmax, masked_softmax, softmax, softmax_last_dim, Mask};
