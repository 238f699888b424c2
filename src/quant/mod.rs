//! Quantised tensors: which numbers codes stand for ([`Scheme`]), how codes are packed into bytes ([`Packing`]), and codes with
//! their scales as one value ([`Quantized`]). The ops that make and use them are in [`ops`](crate::ops).

mod code_rows;
mod kv_codes;
mod packing;
mod quantized;
mod scheme;

pub(crate) use code_rows::CodeRows;
pub use kv_codes::KvCodes;
pub(crate) use packing::{pack, unpack};
pub use quantized::Quantized;
pub use scheme::{Levels, Packing, Rounding, ScaleScope, Scheme};
