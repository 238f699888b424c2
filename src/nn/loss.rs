//! [`candle_nn::loss`] on fused kernels.

use crate::ops::{self, Act, CrossEntropyConfig};
use candle_core::{Result, Tensor};

pub use candle_nn::loss::*;

/// Stock's losses have no target that is ignored.
fn every_target() -> CrossEntropyConfig {
    CrossEntropyConfig {
        ignore_index: None,
        ..Default::default()
    }
}

fn check_rank(name: &str, inp: &Tensor) -> Result<()> {
    if inp.rank() != 2 {
        let dims = inp.dims();
        candle_core::bail!("{name}: got inp of shape {dims:?}, expected [batch, classes]");
    }
    Ok(())
}

/// The mean negative log-likelihood of log-probabilities `[batch, classes]` and targets `[batch]`. [`ops::nll`] takes more
/// leading dims, class weights and targets to ignore. A target outside of the classes is an error on the CPU and makes the loss
/// NaN on Metal, the largest number of the targets' dtype too, for which stock gives a loss of 0.
pub fn nll(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    check_rank("nll", inp)?;
    ops::nll(inp, target, &every_target())
}

/// The mean cross-entropy of logits `[batch, classes]` and targets `[batch]`. [`ops::cross_entropy`] takes more leading
/// dims, class weights, targets to ignore, label smoothing and a z-loss.
pub fn cross_entropy(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    check_rank("cross_entropy", inp)?;
    ops::cross_entropy(inp, target, &every_target())
}

/// The mean squared error.
pub fn mse(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    ops::mean_all(&(inp - target)?.sqr()?)
}

/// The mean binary cross-entropy of logits and targets from 0 to 1, as `softplus(x) − x · target`: finite for all finite
/// logits, where stock's logarithm of a sigmoid becomes infinite, or NaN, from 17 on.
pub fn binary_cross_entropy_with_logit(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    let losses = (ops::activation(inp, Act::Softplus)? - (inp * target)?)?;
    ops::mean_all(&losses)
}
