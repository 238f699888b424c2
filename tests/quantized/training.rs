//! Small nets that learn with rounded weights.

use super::*;
use crate::devices::devices;
use candle_core::{Module, ModuleT, Var};
use candle_fused::nn::lora::{LoraConfig, LoraLinear};
use candle_fused::nn::quantized::{PackedLinear, SubNormConfig};
use candle_fused::nn::{bit_linear, BitLinear, BitLinearConfig, QuantLinear, VarBuilder, VarMap};
use candle_fused::ops;
use candle_fused::quant::ScaleScope;
use candle_nn::{AdamW, Optimizer, ParamsAdamW};

struct Net {
    layers: Vec<BitLinear>,
}

impl Net {
    /// With weights that are the same on every run.
    fn new(dims: &[usize], config: BitLinearConfig, device: &Device) -> Result<(Self, Vec<Var>)> {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let layers = dims.windows(2).enumerate();
        let layers = layers.map(|(i, d)| {
            // The first layer's inputs are ±1 as they are.
            let config = if i == 0 {
                BitLinearConfig {
                    norm: None,
                    ..config
                }
            } else {
                config
            };
            bit_linear(d[0], d[1], config, vb.pp(i))
        });
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let data = vars.data().lock().unwrap();
        let mut names: Vec<&String> = data.keys().collect();
        names.sort();
        for (seed, name) in (1..).zip(names) {
            let var = &data[name];
            match name.ends_with("rms_norm.weight") {
                true => {}
                false => {
                    let cols = var.dims().last().copied().unwrap_or(1) as f64;
                    let start = signal(var.dims(), seed, DType::F32, device)?;
                    var.set(&(start * (0.6 / cols.sqrt()))?)?;
                }
            }
        }
        drop(data);
        Ok((Net { layers }, vars.all_vars()))
    }
}

/// One behind the other, with an activation between them.
fn run(layers: &[&dyn Module], x: &Tensor) -> Result<Tensor> {
    let mut y = layers[0].forward(x)?;
    for layer in &layers[1..] {
        y = layer.forward(&ops::relu(&y)?)?;
    }
    Ok(y)
}

fn as_modules<M: Module>(layers: &[M]) -> Vec<&dyn Module> {
    layers.iter().map(|layer| layer as &dyn Module).collect()
}

/// All inputs of so many ±1, and whether an odd number of them is negative.
fn parity(bits: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let cases = 0..1u32 << bits;
    let x = cases
        .clone()
        .flat_map(|case| (0..bits).map(move |i| case >> i & 1));
    let x: Vec<f32> = x.map(|bit| 1. - 2. * bit as f32).collect();
    let y: Vec<f32> = cases
        .map(|case| 1. - 2. * (case.count_ones() & 1) as f32)
        .collect();
    let count = y.len();
    Ok((
        Tensor::from_vec(x, (count, bits), device)?,
        Tensor::from_vec(y, (count, 1), device)?,
    ))
}

fn adam(vars: Vec<Var>, lr: f64) -> Result<AdamW> {
    let weight_decay = 0.;
    AdamW::new(
        vars,
        ParamsAdamW {
            lr,
            weight_decay,
            ..Default::default()
        },
    )
}

/// Follows the gradients. On every device a few steps lower the loss to the first bound, on the CPU many more to the second;
/// both are parts of what it starts at.
fn train(
    device: &Device,
    adam: &mut AdamW,
    loss: impl Fn() -> Result<Tensor>,
    few: (usize, f32),
    many: (usize, f32),
) -> Result<()> {
    let now = || loss()?.to_scalar::<f32>();
    let before = now()?;
    let rounds: &[_] = match device.is_cpu() {
        true => &[few, many],
        false => &[few],
    };
    for &(steps, bound) in rounds {
        for _ in 0..steps {
            adam.backward_step(&loss()?)?;
        }
        let after = now()?;
        assert!(after < bound * before, "from {before} to {after}");
    }
    Ok(())
}

/// Parity, which no layer alone can do.
#[test]
fn a_bitnet_learns_parity() -> Result<()> {
    let norm = SubNormConfig {
        eps: 1e-6,
        weight: true,
    };
    for device in devices() {
        for config in [
            BitLinearConfig::TERNARY,
            BitLinearConfig::SIGN,
            BitLinearConfig::TERNARY.with_norm(norm),
        ] {
            let (net, vars) = Net::new(&[3, 32, 32, 1], config, device)?;
            let (x, target) = parity(3, device)?;
            let loss = || {
                let y = run(&as_modules(&net.layers), &x)?;
                (y - &target)?.sqr()?.mean_all()
            };
            let mut adam = adam(vars, 0.01)?;
            train(device, &mut adam, loss, (12, 0.9), (300, 0.1))?;

            // What has been learnt is packed with it.
            let packed = net.layers.iter().map(BitLinear::freeze);
            let packed = packed.collect::<Result<Vec<_>>>()?;
            let y = run(&as_modules(&packed), &x)?;
            let want = run(&as_modules(&net.layers), &x)?;
            assert_near(&y, &want, 1e-3, "packed")?;
        }
    }
    Ok(())
}

/// An adapter beside a packed layer learns what another adds to it. The base keeps every bit.
#[test]
fn adapters_learn_beside_packed_layers() -> Result<()> {
    for device in devices() {
        let bit = bit_layer(
            (8, 32),
            Scheme::ternary(ScaleScope::Tensor),
            DType::F32,
            device,
        )?;
        let w = signal(&[8, 32], 9, DType::F32, device)?;
        let quant = QuantLinear::new(quantize(&w, Scheme::mlx(4, 32))?, None)?;
        for base in [PackedLinear::from(bit), quant.into()] {
            let kept = base.tensors("")?;
            let x = signal(&[64, 32], 4, DType::F32, device)?;
            let small = |dims: &[usize], seed| signal(dims, seed, DType::F32, device)? * 0.2;
            let low = x.matmul(&small(&[2, 32], 5)?.t()?)?;
            let target = (base.forward(&x)? + low.matmul(&small(&[8, 2], 6)?.t()?)?)?;

            let vars = VarMap::new();
            let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
            let config = LoraConfig {
                rank: 4,
                alpha: 4.,
                ..Default::default()
            };
            let layer = LoraLinear::from_packed(base.clone(), &config, vb)?;
            let adapter = layer.adapters().adapter("default").expect("the adapter");
            adapter.a().set(&small(&[4, 32], 7)?)?;
            let loss = || (layer.forward_t(&x, true)? - &target)?.sqr()?.mean_all();
            let mut adam = adam(layer.adapter_vars(), 0.03)?;
            train(device, &mut adam, loss, (6, 0.9), (150, 0.01))?;
            for ((name, then), (_, now)) in kept.iter().zip(base.tensors("")?) {
                assert_same(&now, then, name)?;
            }
        }
    }
    Ok(())
}
