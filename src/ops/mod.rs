//! The ops. Each module holds one op's public functions, its CustomOps and its composed reference.

pub mod activation;
pub mod affine_norm;
pub mod group_norm;
pub mod row_norm;

pub use activation::{activation, Act};
pub use group_norm::{group_norm, group_norm_inplace};
pub use row_norm::{
    add_layer_norm, add_rms_norm, l2_norm, l2_norm_inplace, layer_norm, layer_norm_inplace,
    rms_norm, rms_norm_inplace,
};
