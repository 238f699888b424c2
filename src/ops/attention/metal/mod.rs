//! Attention on Metal: launches of kernels/attention*.metal.
//!
//! Many queries go through tiles of simdgroup matrices in one dispatch. Few queries, as of a decoder's next token, leave the
//! parallelism to their keys: these are cut into parts, and a second dispatch merges the parts. The gradients take a dispatch
//! for the queries' deltas, one for k and v, one for q, and one for the mask and the sinks, each if it is wanted.

mod backward;
mod call;
mod codes;
mod forward;
mod params;

pub use backward::backward;
pub use codes::forward_codes;
pub use forward::forward;
