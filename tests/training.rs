//! Small models of these ops: gradients reach every variable, also where stock Candle's fused layers
//! lose them, and following them lowers the loss.

use crate::devices::devices;
use candle_core::{Device, Result, Tensor, Var, D};
use candle_fused::ops::*;
use candle_nn::{optim::SGD, Optimizer, VarMap};

struct Model {
    vars: VarMap,
    device: Device,
}

impl Model {
    fn new(device: &Device) -> Self {
        Model {
            vars: VarMap::new(),
            device: device.clone(),
        }
    }

    /// A variable of waves: different everywhere, the same on every run.
    fn var(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let mut vars = self.vars.data().lock().expect("no test panicked in here");
        if let Some(var) = vars.get(name) {
            return Ok(var.as_tensor().clone());
        }
        let phase = name.len() as f32;
        let count = shape.iter().product::<usize>();
        let wave = |i| (i as f32 * 0.7 + phase).sin() * 0.5;
        let values: Vec<f32> = (0..count).map(wave).collect();
        let var = Var::from_tensor(&Tensor::from_vec(values, shape, &self.device)?)?;
        vars.insert(name.into(), var.clone());
        Ok(var.into_inner())
    }

    fn linear(&self, name: &str, x: &Tensor, to: usize) -> Result<Tensor> {
        let from = x.dim(D::Minus1)?;
        x.broadcast_matmul(&self.var(name, &[from, to])?)
    }
}

const WIDTH: usize = 8;

fn input(device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..2 * 5 * WIDTH).map(|i| (i as f32).cos()).collect();
    Tensor::from_vec(values, (2, 5, WIDTH), device)
}

/// A decoder block: norm, causal attention, residual norm, gated MLP.
fn block(model: &Model, x: &Tensor) -> Result<Tensor> {
    let h = rms_norm(x, Some(&model.var("norm_1", &[WIDTH])?), 1e-5)?;
    let query = model.linear("query", &h, WIDTH)?;
    let key = model.linear("key", &h, WIDTH)?;
    let value = model.linear("value", &h, WIDTH)?;
    let scores = query.matmul(&key.t()?)?;
    let attention = masked_softmax(&scores, 0.35, Mask::Causal)?.matmul(&value)?;
    let weight = model.var("norm_2", &[WIDTH])?;
    let bias = model.var("norm_2_bias", &[WIDTH])?;
    let (sum, h) = add_layer_norm(x, &attention, Some(&weight), Some(&bias), 1e-5)?;
    let h = swiglu_packed(&model.linear("gate_up", &h, 4 * WIDTH)?)?;
    let h = bias_act(&h, &model.var("bias", &[2 * WIDTH])?, Act::GeluTanh)?;
    dropout_add(&model.linear("down", &h, WIDTH)?, &sum, 0.1, 3)
}

/// A convolutional head on [batch, channels, length].
fn head(model: &Model, x: &Tensor) -> Result<Tensor> {
    let weight = model.var("group_weight", &[WIDTH])?;
    let bias = model.var("group_bias", &[WIDTH])?;
    let x = group_norm(&x.t()?, 2, Some(&weight), Some(&bias), 1e-5)?;
    let scale = model.var("scale", &[WIDTH, 1])?;
    let shift = model.var("shift", &[WIDTH, 1])?;
    let x = affine_act(&x, &scale, &shift, Act::Silu)?;
    log_softmax(&mean_last_dim(&x)?, 1)
}

fn loss(model: &Model) -> Result<Tensor> {
    let out = head(model, &block(model, &input(&model.device)?)?)?;
    // Both rows belong to the first class.
    sum_all(&out.narrow(1, 0, 1)?)?.neg()
}

#[test]
fn gradients_reach_every_variable() -> Result<()> {
    for device in devices() {
        let model = Model::new(device);
        let grads = loss(&model)?.backward()?;
        for (name, var) in model.vars.data().lock().unwrap().iter() {
            let grad = grads
                .get(var)
                .unwrap_or_else(|| panic!("no gradient to {name}"));
            assert_eq!(grad.dims(), var.dims(), "{name}");
            let size = grad.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(
                size > 1e-6 && size.is_finite(),
                "the gradient to {name} is {size}"
            );
        }
    }
    Ok(())
}

#[test]
fn training_lowers_the_loss() -> Result<()> {
    for device in devices() {
        let model = Model::new(device);
        let before = loss(&model)?.to_scalar::<f32>()?;
        let mut sgd = SGD::new(model.vars.all_vars(), 0.05)?;
        for _ in 0..40 {
            sgd.backward_step(&loss(&model)?)?;
        }
        let after = loss(&model)?.to_scalar::<f32>()?;
        assert!(
            after < 0.5 * before,
            "the loss went from {before} to {after}"
        );
    }
    Ok(())
}
