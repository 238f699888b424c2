//! A small network of all these layers learns.

use super::*;
use candle_fused::ops::Act;
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use nn::{Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig};

/// 8×8 images to two classes: down, up again, flat, and as a sequence.
struct Cnn {
    down: nn::Conv2d,
    up: nn::ConvTranspose2d,
    rows: nn::Conv1d,
    spread: nn::ConvTranspose1d,
    classes: nn::Linear,
}

impl Cnn {
    fn new(vb: VarBuilder) -> Result<Self> {
        let halved = Conv2dConfig {
            padding: 1,
            stride: 2,
            ..Default::default()
        };
        let doubled = ConvTranspose2dConfig {
            padding: 1,
            output_padding: 1,
            stride: 2,
            dilation: 1,
        };
        Ok(Cnn {
            down: nn::conv2d(1, 4, 3, halved, vb.pp("down"))?.with_act(Act::Relu),
            up: nn::conv_transpose2d(4, 2, 3, doubled, vb.pp("up"))?.with_act(Act::Silu),
            rows: nn::conv1d(2, 3, 8, strided(8), vb.pp("rows"))?.with_act(Act::GeluTanh),
            spread: nn::conv_transpose1d(3, 2, 2, Default::default(), vb.pp("spread"))?,
            classes: nn::linear(18, 2, vb.pp("classes"))?,
        })
    }
}

fn strided(stride: usize) -> Conv1dConfig {
    Conv1dConfig {
        stride,
        ..Default::default()
    }
}

impl Module for Cnn {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.up.forward(&self.down.forward(x)?)?;
        let x = self.rows.forward(&x.flatten_from(2)?)?;
        let x = self.spread.forward(&x)?;
        self.classes.forward(&x.flatten_from(1)?)
    }
}

/// Horizontal and vertical stripes of different widths.
fn stripes(device: &Device) -> Result<(Tensor, Tensor)> {
    let mut images = Vec::new();
    for i in 0..8usize {
        let rate = 0.6 + 0.1 * (i / 2) as f32;
        for at in 0..64 {
            let along = if i % 2 == 0 { at / 8 } else { at % 8 };
            images.push((along as f32 * rate * 2.0).sin());
        }
    }
    let classes: Vec<u32> = (0..8).map(|i| i % 2).collect();
    Ok((
        Tensor::from_vec(images, (8, 1, 8, 8), device)?,
        Tensor::new(classes, device)?,
    ))
}

/// Starting values that are the same on every run.
fn settle(vars: &VarMap) -> Result<()> {
    for (name, var) in vars.data().lock().unwrap().iter() {
        let phase = name.bytes().map(f32::from).sum::<f32>();
        let count = var.elem_count();
        let fan_in = (count / var.dim(0)?).max(1) as f32;
        let wave = |i| (i as f32 * 1.7 + phase).sin() * fan_in.powf(-0.5);
        let values = (0..count).map(wave).collect::<Vec<f32>>();
        var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
    }
    Ok(())
}

#[test]
fn a_small_network_learns() -> Result<()> {
    for device in devices() {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let model = Cnn::new(vb)?;
        settle(&vars)?;
        let (images, classes) = stripes(device)?;
        let params = ParamsAdamW {
            lr: 0.02,
            ..Default::default()
        };
        let mut adam = AdamW::new(vars.all_vars(), params)?;
        let loss = || nn::loss::cross_entropy(&model.forward(&images)?, &classes);
        let start = loss()?.to_scalar::<f32>()?;
        let (steps, bound) = match device.is_cpu() {
            true => (100, 0.05),
            false => (10, 0.9 * start),
        };
        for _ in 0..steps {
            adam.backward_step(&loss()?)?;
        }
        let end = loss()?.to_scalar::<f32>()?;
        assert!(end < bound, "the loss went from {start} to {end}");
    }
    Ok(())
}
