//! The numbers of PyTorch, in tests/fixtures/optim.

use super::{close, store};
use crate::devices::devices;
use crate::fixtures::fixture;
use candle_core::{safetensors, DType, Device, Result, Tensor, Var};
use candle_fused::nn::{
    checkpoint, clip_grad_norm, AdamW, GradAccumulator, Optimizer, ParamsAdamW,
};
use std::collections::HashMap;

fn load(device: &Device) -> Result<HashMap<String, Tensor>> {
    safetensors::load(fixture("optim/torch.safetensors"), device)
}

#[test]
fn adamw_takes_its_steps() -> Result<()> {
    let common = ParamsAdamW {
        lr: 0.01,
        ..Default::default()
    };
    let other = ParamsAdamW {
        beta1: 0.8,
        beta2: 0.95,
        eps: 1e-4,
        weight_decay: 0.3,
        ..common.clone()
    };
    for device in devices() {
        let torch = load(&Device::Cpu)?;
        for (name, params, bound) in [
            ("f32", &common, 1e-6),
            ("f64", &common, 1e-14),
            ("other", &other, 1e-6),
            ("bf16", &common, 1e-6),
            ("f16", &common, 1e-6),
        ] {
            if name == "f64" && !device.is_cpu() {
                continue;
            }
            let get = |part: &str| torch[&format!("{name}.{part}")].to_device(device);
            let var = Var::from_tensor(&get("param")?)?;
            let mut adam = AdamW::new(vec![var.clone()], params.clone())?;
            for step in 0..5 {
                adam.step(&store([(&var, &get(&format!("grad_{step}"))?)]))?;
                let want = get(&format!("after_{step}"))?;
                let state = adam.state()?;
                match var.dtype() {
                    DType::F32 | DType::F64 => close(&var, &want, bound)?,
                    dtype => {
                        close(&state["0.master"], &want.flatten_all()?, bound)?;
                        let rounded = state["0.master"].to_dtype(dtype)?;
                        close(&var, &rounded, 0.0)?;
                    }
                }
            }
            for moment in ["m", "v"] {
                close(&adam.state()?[&format!("0.{moment}")], &get(moment)?, 1e-6)?;
            }
        }
    }
    Ok(())
}

#[test]
fn clipping_gives_its_norm_and_gradients() -> Result<()> {
    for device in devices() {
        let torch = load(device)?;
        let grads = [0, 1, 2].map(|i| &torch[&format!("clip.grad_{i}")]);
        let vars = grads.map(|grad| Var::from_tensor(&grad.zeros_like()?));
        let vars = vars.into_iter().collect::<Result<Vec<_>>>()?;
        let mut grads = store(vars.iter().zip(grads));
        let norm = clip_grad_norm(&mut grads, &vars, 0.5)?;
        let want = torch["clip.norm"].to_vec1::<f32>()?[0];
        assert!((norm - f64::from(want)).abs() < 1e-5, "{norm}, {want}");
        for (i, var) in vars.iter().enumerate() {
            let clipped = grads.get(var).expect("a gradient");
            close(clipped, &torch[&format!("clip.clipped_{i}")], 1e-6)?;
        }
    }
    Ok(())
}

#[test]
fn the_mean_of_bf16_gradients_is_that_of_f32() -> Result<()> {
    for device in devices() {
        let torch = load(device)?;
        let var = Var::zeros(33, DType::BF16, device)?;
        let mut sum = GradAccumulator::new(std::slice::from_ref(&var))?;
        for i in 0..4 {
            sum.add(&store([(&var, &torch[&format!("mean.grad_{i}")])]))?;
        }
        let mean = sum.finish()?;
        close(mean.get(&var).expect("a mean"), &torch["mean.mean"], 1e-6)?;
    }
    Ok(())
}

#[test]
fn checkpoints_give_its_gradients() -> Result<()> {
    for device in devices() {
        let torch = load(device)?;
        let var = |name: &str| Var::from_tensor(&torch[&format!("mlp.{name}")]);
        let (x, w1, w2) = (var("x")?, var("w1")?, var("w2")?);
        let (a, b) = (w1.clone(), w2.clone());
        let half = move |x: &Tensor| x.matmul(&a.t()?)?.gelu()?.matmul(&b.t()?)? / 4.0;
        let y = checkpoint(half.clone(), &checkpoint(half, &x)?)?;
        close(&y, &torch["mlp.y"], 1e-5)?;
        let grads = y.sqr()?.sum_all()?.backward()?;
        for (name, var) in [("dx", x), ("dw1", w1), ("dw2", w2)] {
            close(
                grads.get(&var).expect(name),
                &torch[&format!("mlp.{name}")],
                1e-4,
            )?;
        }
    }
    Ok(())
}
