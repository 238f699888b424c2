//! `candle_nn::linear`, `conv`, `layer_norm`, `group_norm` and `batch_norm`.

use super::cases;
use candle_core::{Device, Module, ModuleT, Result, Tensor};
use candle_nn::VarBuilder;
use std::collections::HashMap;

/// The variables of a layer, as they are.
pub fn vb(tensors: &[(&str, &Tensor)]) -> Result<VarBuilder<'static>> {
    let (dtype, device) = (tensors[0].1.dtype(), tensors[0].1.device().clone());
    let tensors = tensors
        .iter()
        .map(|&(name, t)| (name.to_string(), t.clone()));
    Ok(VarBuilder::from_tensors(
        tensors.collect::<HashMap<_, _>>(),
        dtype,
        &device,
    ))
}

fn weight_and_bias(t: &[Tensor]) -> Result<VarBuilder<'static>> {
    vb(&[("weight", &t[1]), ("bias", &t[2])])
}

/// The mean and the variance of three channels.
fn statistics(device: &Device) -> Result<[Tensor; 2]> {
    Ok([
        Tensor::new(&[0.1f32, -0.2, 0.3], device)?,
        Tensor::new(&[0.5f32, 1.5, 0.8], device)?,
    ])
}

/// By the batch's own statistics, or by given ones.
fn batch_norm(t: &[Tensor], given: Option<[Tensor; 2]>) -> Result<Tensor> {
    let channels = |t: &Tensor| t.reshape((1, 3, 1));
    let over = |t: &Tensor| t.mean_keepdim(0)?.mean_keepdim(2);
    let (mean, var) = match &given {
        Some([mean, var]) => (channels(mean)?, channels(var)?),
        None => {
            let mean = over(&t[0])?;
            let var = over(&t[0].broadcast_sub(&mean)?.sqr()?)?;
            (mean, var)
        }
    };
    let normed = t[0]
        .broadcast_sub(&mean)?
        .broadcast_div(&(var + 1e-3)?.sqrt()?)?;
    match t {
        [_, weight, bias] => normed
            .broadcast_mul(&channels(weight)?)?
            .broadcast_add(&channels(bias)?),
        _ => Ok(normed),
    }
}

fn group_norm(t: &[Tensor]) -> Result<Tensor> {
    let (b, c, n) = t[0].dims3()?;
    let x = t[0].reshape((b, 2, c / 2 * n))?;
    let x = x.broadcast_sub(&x.mean_keepdim(2)?)?;
    let x = x.broadcast_div(&(x.sqr()?.mean_keepdim(2)? + 1e-5)?.sqrt()?)?;
    let x = x.reshape((b, c, n))?;
    x.broadcast_mul(&t[1].reshape((1, c, 1))?)?
        .broadcast_add(&t[2].reshape((1, c, 1))?)
}

fn layer_norm(t: &[Tensor], centred: bool) -> Result<Tensor> {
    let x = match centred {
        true => t[0].broadcast_sub(&t[0].mean_keepdim(1)?)?,
        false => t[0].clone(),
    };
    let x = x.broadcast_div(&(x.sqr()?.mean_keepdim(1)? + 1e-5)?.sqrt()?)?;
    let x = x.broadcast_mul(&t[1])?;
    match t.get(2) {
        Some(bias) => x.broadcast_add(bias),
        None => Ok(x),
    }
}

/// A convolution of one pixel, which is a product, and its bias.
fn pixels(t: &[Tensor], transposed: bool) -> Result<Tensor> {
    let weight = t[1].flatten_from(1)?;
    let weight = if transposed { weight.t()? } else { weight };
    let (b, c) = (t[0].dim(0)?, t[0].dim(1)?);
    let mut dims = t[0].dims().to_vec();
    dims[1] = weight.dim(0)?;
    let y = weight
        .contiguous()?
        .broadcast_matmul(&t[0].reshape((b, c, ()))?)?;
    let y = match t.get(2) {
        Some(bias) => y.broadcast_add(&bias.reshape(((), 1))?)?,
        None => y,
    };
    y.reshape(dims)
}

cases! {
    "linear::Linear: Module", "linear::Linear::new" => [[3, 5], [4, 5], [4]]
        |t| nn::Linear::new(t[1].clone(), Some(t[2].clone())).forward(&t[0]);
    "linear::linear" => [[3, 5], [4, 5], [4]] |t| nn::linear(5, 4, weight_and_bias(t)?)?.forward(&t[0]);
    "linear::linear_no_bias" => [[3, 5], [4, 5]]
        |t| nn::linear_no_bias(5, 4, vb(&[("weight", &t[1])])?)?.forward(&t[0]);
    "linear::linear_b" => [[3, 5], [4, 5], [4]] |t| nn::linear_b(5, 4, true, weight_and_bias(t)?)?.forward(&t[0]);

    "conv::Conv1d: Module", "conv::Conv1d::new" => [[2, 3, 6], [4, 3, 1], [4]]
        |t| nn::Conv1d::new(t[1].clone(), Some(t[2].clone()), Default::default()).forward(&t[0]),
        |t| pixels(t, false);
    "conv::conv1d" => [[2, 3, 6], [4, 3, 1], [4]]
        |t| nn::conv1d(3, 4, 1, Default::default(), weight_and_bias(t)?)?.forward(&t[0]), |t| pixels(t, false);
    "conv::conv1d_no_bias" => [[2, 3, 6], [4, 3, 1]]
        |t| nn::conv1d_no_bias(3, 4, 1, Default::default(), vb(&[("weight", &t[1])])?)?.forward(&t[0]),
        |t| pixels(t, false);
    "conv::Conv2d: Module", "conv::Conv2d::new" => [[2, 3, 4, 5], [4, 3, 1, 1], [4]]
        |t| nn::Conv2d::new(t[1].clone(), Some(t[2].clone()), Default::default()).forward(&t[0]),
        |t| pixels(t, false);
    "conv::conv2d" => [[2, 3, 4, 5], [4, 3, 1, 1], [4]]
        |t| nn::conv2d(3, 4, 1, Default::default(), weight_and_bias(t)?)?.forward(&t[0]), |t| pixels(t, false);
    "conv::conv2d_no_bias" => [[2, 3, 4, 5], [4, 3, 1, 1]]
        |t| nn::conv2d_no_bias(3, 4, 1, Default::default(), vb(&[("weight", &t[1])])?)?.forward(&t[0]),
        |t| pixels(t, false);
    // With more than one pixel: stock's own backward, which is composed of convolutions.
    "conv::Conv2d: Module" => [[1, 2, 5, 5], [3, 2, 3, 3]] |t| {
        let config = nn::Conv2dConfig { padding: 1, stride: 2, ..Default::default() };
        nn::Conv2d::new(t[1].clone(), None, config).forward(&t[0])
    };
    "conv::Conv2d::absorb_bn" => [[2, 3, 4, 5], [3, 3, 1, 1], [3], [3]] |t| {
        let [mean, var] = statistics(t[0].device())?;
        let norm = nn::BatchNorm::new(3, mean, var, t[2].clone(), t[3].clone(), 1e-3)?;
        nn::Conv2d::new(t[1].clone(), None, Default::default()).absorb_bn(&norm)?.forward(&t[0])
    }, |t| {
        let y = pixels(&t[..2], false)?;
        let norm = [y.flatten_from(2)?, t[2].clone(), t[3].clone()];
        batch_norm(&norm, Some(statistics(y.device())?))?.reshape(y.shape())
    };
    // A batch of one: of more, stock's result is wrong.
    "conv::ConvTranspose1d: Module", "conv::ConvTranspose1d::new" => [[1, 3, 6], [3, 4, 1], [4]]
        |t| nn::ConvTranspose1d::new(t[1].clone(), Some(t[2].clone()), Default::default()).forward(&t[0]),
        |t| pixels(t, true);
    "conv::conv_transpose1d" => [[1, 3, 6], [3, 4, 1], [4]]
        |t| nn::conv_transpose1d(3, 4, 1, Default::default(), weight_and_bias(t)?)?.forward(&t[0]),
        |t| pixels(t, true);
    "conv::conv_transpose1d_no_bias" => [[1, 3, 6], [3, 4, 1]]
        |t| nn::conv_transpose1d_no_bias(3, 4, 1, Default::default(), vb(&[("weight", &t[1])])?)?.forward(&t[0]),
        |t| pixels(t, true);
    "conv::ConvTranspose2d: Module", "conv::ConvTranspose2d::new" => [[2, 3, 4, 5], [3, 4, 1, 1], [4]]
        |t| nn::ConvTranspose2d::new(t[1].clone(), Some(t[2].clone()), Default::default()).forward(&t[0]),
        |t| pixels(t, true);
    "conv::conv_transpose2d" => [[2, 3, 4, 5], [3, 4, 1, 1], [4]]
        |t| nn::conv_transpose2d(3, 4, 1, Default::default(), weight_and_bias(t)?)?.forward(&t[0]),
        |t| pixels(t, true);
    "conv::conv_transpose2d_no_bias" => [[2, 3, 4, 5], [3, 4, 1, 1]]
        |t| nn::conv_transpose2d_no_bias(3, 4, 1, Default::default(), vb(&[("weight", &t[1])])?)?.forward(&t[0]),
        |t| pixels(t, true);

    "layer_norm::LayerNorm: Module", "layer_norm::LayerNorm::new" => [[3, 5], [5], [5]]
        |t| nn::LayerNorm::new(t[1].clone(), t[2].clone(), 1e-5).forward(&t[0]), |t| layer_norm(t, true);
    "layer_norm::LayerNorm::new_no_bias" => [[3, 5], [5]]
        |t| nn::LayerNorm::new_no_bias(t[1].clone(), 1e-5).forward(&t[0]), |t| layer_norm(t, true);
    "layer_norm::LayerNorm::rms_norm" => [[3, 5], [5]]
        |t| nn::LayerNorm::rms_norm(t[1].clone(), 1e-5).forward(&t[0]), |t| layer_norm(t, false);
    "layer_norm::layer_norm" => [[3, 5], [5], [5]]
        |t| nn::layer_norm(5, 1e-5, weight_and_bias(t)?)?.forward(&t[0]), |t| layer_norm(t, true);
    "layer_norm::layer_norm_no_bias" => [[3, 5], [5]]
        |t| nn::layer_norm_no_bias(5, 1e-5, vb(&[("weight", &t[1])])?)?.forward(&t[0]), |t| layer_norm(t, true);
    "layer_norm::RmsNorm: Module", "layer_norm::RmsNorm::new" => [[3, 5], [5]]
        |t| nn::RmsNorm::new(t[1].clone(), 1e-5).forward(&t[0]), |t| layer_norm(t, false);
    "layer_norm::RmsNorm::forward_diff" => [[3, 5], [5]]
        |t| nn::RmsNorm::new(t[1].clone(), 1e-5).forward_diff(&t[0]), |t| layer_norm(t, false);
    "layer_norm::RmsNorm::into_inner" => [[3, 5], [5]]
        |t| nn::RmsNorm::new(t[1].clone(), 1e-5).into_inner().forward(&t[0]), |t| layer_norm(t, false);
    "layer_norm::rms_norm" => [[3, 5], [5]]
        |t| nn::rms_norm(5, 1e-5, vb(&[("weight", &t[1])])?)?.forward(&t[0]), |t| layer_norm(t, false);

    "group_norm::GroupNorm: Module", "group_norm::GroupNorm::new" => [[2, 4, 3], [4], [4]]
        |t| nn::GroupNorm::new(t[1].clone(), t[2].clone(), 4, 2, 1e-5)?.forward(&t[0]), |t| group_norm(t);
    "group_norm::group_norm" => [[2, 4, 3], [4], [4]]
        |t| nn::group_norm(2, 4, 1e-5, weight_and_bias(t)?)?.forward(&t[0]), |t| group_norm(t);

    "batch_norm::BatchNorm::forward_train", "batch_norm::BatchNorm::new" => [[4, 3, 5], [3], [3]] |t| {
        let [mean, var] = statistics(t[0].device())?;
        nn::BatchNorm::new(3, mean, var, t[1].clone(), t[2].clone(), 1e-3)?.forward_train(&t[0])
    }, |t| batch_norm(t, None);
    "batch_norm::BatchNorm: ModuleT", "batch_norm::BatchNorm::new_with_momentum" => [[4, 3, 5], [3], [3]] |t| {
        let [mean, var] = statistics(t[0].device())?;
        nn::BatchNorm::new_with_momentum(3, mean, var, t[1].clone(), t[2].clone(), 1e-3, 0.2)?
            .forward_t(&t[0], false)
    }, |t| batch_norm(t, Some(statistics(t[0].device())?));
    "batch_norm::BatchNorm::new_no_bias" => [[4, 3, 5]] |t| {
        let [mean, var] = statistics(t[0].device())?;
        nn::BatchNorm::new_no_bias(3, mean, var, 1e-3)?.forward_t(&t[0], true)
    }, |t| batch_norm(t, None);
    "batch_norm::BatchNorm::new_no_bias_with_momentum" => [[4, 3, 5]] |t| {
        let [mean, var] = statistics(t[0].device())?;
        nn::BatchNorm::new_no_bias_with_momentum(3, mean, var, 1e-3, 0.2)?.forward_t(&t[0], false)
    }, |t| batch_norm(t, Some(statistics(t[0].device())?));
    "batch_norm::batch_norm" => [[4, 3, 5], [3], [3]] |t| {
        let [mean, var] = statistics(t[0].device())?;
        let vb = vb(&[("weight", &t[1]), ("bias", &t[2]), ("running_mean", &mean), ("running_var", &var)])?;
        nn::batch_norm(3, 1e-3, vb)?.forward_t(&t[0], true)
    }, |t| batch_norm(t, None);
}
