//! [`candle_nn::kv_cache`] without copies of the past, and a cache of fixed capacity for serving.
//!
//! All caches here are written in place: an append costs as much as writing the new tokens, however many are cached. The types
//! that `candle_nn` has too have the same names, signatures and results, with these differences:
//!
//! - The new tokens may have any layout: no `contiguous()` is needed in front of `append`.
//! - A clone shares the memory of its original until one of them writes, which then copies it first. With stock's caches both
//!   would write into the same memory. So a clone is a fork, for beams and for prompts with a common beginning.
//! - A tensor that tracks gradients is never detached in silence. An empty cache hands it on as it is, so that a model can be
//!   trained on whole sequences with a cache that is reset in between. Behind other tokens it is an error: the past in the
//!   cache would get no gradient.
//! - k and v of different lengths, and a failed append of v behind one of k, leave the cache as it was.
//! - [`ConcatKvCache`] and [`InterleavedKvCache`] grow by doubling instead of concatenating for each token. They
//!   return views of memory with room for more, which need not be contiguous.
//! - [`ScatteredKvCache`] does not touch sequences that take no part in a step; stock overwrites their oldest token. Of a chunk
//!   that is longer than its context it keeps the end; stock keeps nothing.
//!
//! An append returns views of the cache. A later append changes none of the tokens in them, unless slots are used
//! again: by a rotating or scattered cache, by a [`FixedKvCache`] with a window or after a `reset`, or after a `truncate`. A
//! graph keeps the views that it reads for its backward: where queries, masks or sinks track gradients and the keys do not,
//! give it a copy of keys and values (`force_contiguous`) if slots may be used again before the backward. The layers of
//! [`transformer`](crate::nn::transformer) do so.
//!
//! [`FixedKvCache`] is this crate's own: errors instead of growth, a length for each sequence of the batch, a sliding window,
//! and int8 or int4 codes with scales for groups.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_fused::nn::kv_cache::KvCache;
//!
//! let mut cache = KvCache::new(2, 128);
//! let prompt = Tensor::randn(0f32, 1., (1, 8, 5, 64), &Device::Cpu)?;
//! cache.append(&prompt, &prompt)?;
//! let mut beam = cache.fork();
//! let token = Tensor::randn(0f32, 1., (1, 8, 1, 64), &Device::Cpu)?;
//! let (k, _v) = beam.append(&token, &token)?;
//! assert_eq!(k.dims(), [1, 8, 6, 64]);
//! assert_eq!(cache.current_seq_len(), 5);
//! # candle_core::Result::Ok(())
//! ```

mod buffer;
mod concat;
mod fixed;
mod growing;
mod methods;
mod rotating;
mod scattered;
mod store;

pub use crate::quant::KvCodes;
pub use candle_nn::kv_cache::*;
pub use concat::{ConcatKvCache, InterleavedKvCache};
pub(crate) use fixed::Counts;
pub use fixed::{FixedKvCache, FixedKvConfig};
pub use growing::{Cache, KvCache};
pub use rotating::{RotatingCache, RotatingKvCache};
pub use scattered::{IndicesAndMask, ScatteredCacheBuilder, ScatteredKvCache};

use crate::check;
use candle_core::{Result, Tensor};

/// k and v have the same number of tokens.
fn same_tokens(name: &str, k: &Tensor, v: &Tensor, dim: usize) -> Result<()> {
    let k = check::tokens(name, "k", k, dim)?;
    let v = check::tokens(name, "v", v, dim)?;
    let message = format_args!("got {k} tokens of k and {v} of v, expected as many of each");
    check::ensure(k == v, name, message)
}
