//! [`candle_nn::attention`] on [`ops::attention()`](crate::ops::attention()): on every device, with gradients to queries, keys, values,
//! masks and slopes, for any batch.
//!
//! Stock's functions run on the CPU alone and give no gradients. Where stock's own paths differ from each other, these do the
//! same on all of them:
//!
//! - `max_bias` without a mask is ALiBi by distance for every batch size; stock ignores it for a batch of one that is not causal.
//! - `softcap` without `max_bias` adds no bias; stock's decoding of one causal query does.
//! - A mask may differ from head to head and from sequence to sequence; stock reads the first head's for all.
//! - The result of packed sequences always has as many rows as there are queries, with zeros for sequences without keys.
//!
//! As in stock, the result of a batch of one is f32 whatever the inputs are.

pub mod cpu_flash;
mod placed;
mod softmax;
pub mod varlen;

pub use candle_nn::attention::*;
pub use cpu_flash::flash_attn;
pub use cpu_flash::varlen::flash_attn_varlen_cpu;
pub(super) use placed::table;
pub use softmax::softmax_attention;
pub use varlen::flash_attn_varlen_unfused;
