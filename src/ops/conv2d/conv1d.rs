//! Convolutions of sequences, computed as images of one row.

use super::{with_bias, Act, Conv2d, ConvAlgo, ConvTranspose2d};
use crate::check;
use candle_core::{Result, Tensor};
use candle_nn::{Conv1dConfig, ConvTranspose1dConfig};

/// `act(x ∗ w + bias)` for x `[batch, channels, length]`, w `[out, channels / groups, length]` and bias `[out]`,
/// differentiable in all of them.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{conv1d, Act};
/// use candle_nn::Conv1dConfig;
/// let x = Tensor::new(&[[[1f32, 2., 4., 8.]]], &Device::Cpu)?;
/// let w = Tensor::new(&[[[-1f32, 1.]]], &Device::Cpu)?;
/// let y = conv1d(&x, &w, None, Conv1dConfig::default(), Act::Identity)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 2., 4.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn conv1d(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    config: Conv1dConfig,
    act: Act,
) -> Result<Tensor> {
    const NAME: &str = "conv1d";
    let conv = Conv2d::new(config, act, ConvAlgo::Auto);
    let (x, w) = (as_image(NAME, "x", x)?, as_image(NAME, "weight", w)?);
    conv.apply(NAME, &with_bias(&x, &w, bias))?.squeeze(2)
}

/// `act(x ∗ᵀ w + bias)` for x `[batch, channels, length]`, w `[channels, out / groups, length]` and bias `[out]`,
/// differentiable in all of them.
pub fn conv_transpose1d(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    config: ConvTranspose1dConfig,
    act: Act,
) -> Result<Tensor> {
    const NAME: &str = "conv_transpose1d";
    let conv = ConvTranspose2d::new(config, [0, config.output_padding], act);
    let (x, w) = (as_image(NAME, "x", x)?, as_image(NAME, "weight", w)?);
    conv.apply(NAME, &with_bias(&x, &w, bias))?.squeeze(2)
}

/// A sequence as an image of one row.
fn as_image(name: &str, argument: &str, t: &Tensor) -> Result<Tensor> {
    if t.rank() != 3 {
        let shape = t.shape();
        let message = format!("got {argument} of shape {shape:?}, expected rank 3");
        return Err(check::error(name, message));
    }
    t.unsqueeze(2)
}
