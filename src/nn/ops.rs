//! [`candle_nn::ops`] on fused kernels that are differentiable.

use super::attention::cpu_flash::additive_mask;
use crate::check;
use crate::ops::{self, AttentionConfig};
use candle_core::shape::Dim;
use candle_core::{ModuleT, Result, Tensor};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

pub use candle_nn::ops::*;
pub use ops::{gelu, gelu_erf, relu, relu2, sigmoid, silu, softmax_last_dim, softplus, tanh};

/// Softmax over any dim.
pub fn softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
    ops::softmax(xs, dim)
}

/// Log-softmax over any dim.
pub fn log_softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
    ops::log_softmax(xs, dim)
}

/// `silu(gate) · up` of the two halves of the last dim.
pub fn swiglu(xs: &Tensor) -> Result<Tensor> {
    check::on_behalf_of("swiglu", "swiglu_packed", ops::swiglu_packed(xs))
}

/// x, times the slope where x is negative.
pub fn leaky_relu(xs: &Tensor, negative_slope: f64) -> Result<Tensor> {
    ops::leaky_relu(xs, negative_slope)
}

/// RMS norm over the last dim.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    ops::rms_norm(xs, Some(alpha), eps)
}

/// Layer norm over the last dim.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    ops::layer_norm(xs, Some(alpha), Some(beta), eps)
}

/// Attention of q `[batch, heads, queries, dim]` to k and v `[batch, kv heads, keys, dim]`: [`ops::attention()`] with stock's
/// arguments, on every device, for any head dim, and with gradients to q, k, v and the mask.
///
/// The last causal query is at the last key. A `softcapping` of 1 is none. A mask has q's dtype and is added to the scores;
/// [`ops::attention()`] also takes one of u8.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::nn::ops::sdpa;
/// let q = Tensor::randn(0f32, 1., (1, 4, 3, 48), &Device::Cpu)?;
/// let kv = Tensor::randn(0f32, 1., (1, 2, 7, 48), &Device::Cpu)?;
/// assert_eq!(sdpa(&q, &kv, &kv, None, true, 0.14, 1.0)?.dims(), [1, 4, 3, 48]);
/// # candle_core::Result::Ok(())
/// ```
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    if let Some(mask) = mask {
        additive_mask("sdpa", mask, q)?;
    }
    let config = AttentionConfig {
        scale: Some(scale),
        causal: do_causal,
        mask: mask.cloned(),
        softcap: Some(softcapping).filter(|&cap| cap != 1.0),
        ..Default::default()
    };
    check::on_behalf_of("sdpa", "attention", ops::attention(q, k, v, &config))
}

/// Dropout with a fresh mask at each call. [`ops::dropout()`] takes an explicit seed.
pub fn dropout(xs: &Tensor, drop_p: f32) -> Result<Tensor> {
    ops::dropout(xs, drop_p, fresh_seed())
}

/// A seed that differs from all others of this process, and of other processes. Seeds are far apart: a layer may count up
/// from its seed without meeting another layer's.
pub(super) fn fresh_seed() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    // RandomState is keyed by the operating system's randomness.
    let start = START.get_or_init(|| RandomState::new().build_hasher().finish());
    let count = start.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed));
    // The finaliser of SplitMix64, a permutation.
    let mixed = (count ^ (count >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// [`candle_nn::Dropout`]. The mask is computed again in the backward pass instead of being stored.
#[derive(Clone, Debug)]
pub struct Dropout {
    drop_p: f32,
}

impl Dropout {
    /// With the probability of dropping an element.
    pub fn new(drop_p: f32) -> Dropout {
        Self { drop_p }
    }

    /// Drops elements in training, and returns xs otherwise.
    pub fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            dropout(xs, self.drop_p)
        } else {
            Ok(xs.clone())
        }
    }
}

impl ModuleT for Dropout {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        self.forward(xs, train)
    }
}

#[cfg(test)]
mod tests {
    use super::fresh_seed;

    #[test]
    fn seeds_leave_room_to_count_on() {
        let mut seeds: Vec<u64> = (0..1000).map(|_| fresh_seed()).collect();
        seeds.sort_unstable();
        assert!(seeds.windows(2).all(|pair| pair[1] - pair[0] > 1 << 30));
    }
}
