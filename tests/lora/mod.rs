//! The LoRA ops and layers: against plain Candle, against PEFT's and mlx-lm's own files and numbers, and what they refuse.

mod builder;
mod convolutions;
mod errors;
mod formats;
mod layers;
mod merging;
mod ops;
mod quantized;
mod rounding;
mod saving;
mod states;

use candle_core::{DType, Device, Module, ModuleT, Result, Tensor, Var};
use candle_fused::nn::lora::{Adapters, LoraConfig, LoraConv2d, LoraEmbedding, LoraLinear};
use candle_nn::{Conv2d, Conv2dConfig, Embedding, Linear, VarBuilder, VarMap};
use std::path::{Path, PathBuf};

/// Values that differ everywhere and are the same on every run.
pub fn waves(shape: &[usize], phase: f32, dtype: DType, device: &Device) -> Result<Tensor> {
    let n = shape.iter().product::<usize>();
    let wave = |i| (i as f32 * 0.7 + phase).sin() * 0.5 + (i as f32 * 0.31).cos() * 0.2;
    Tensor::from_vec((0..n).map(wave).collect::<Vec<f32>>(), shape, device)?.to_dtype(dtype)
}

pub fn values(t: &Tensor) -> Result<Vec<f64>> {
    let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    t.flatten_all()?.to_vec1::<f64>()
}

/// Within `bound`, relative where values are above 1.
pub fn assert_close(ours: &Tensor, theirs: &Tensor, bound: f64, what: &str) -> Result<()> {
    assert_eq!(ours.dims(), theirs.dims(), "{what}");
    assert_eq!(ours.dtype(), theirs.dtype(), "{what}");
    for (i, (a, b)) in values(ours)?.into_iter().zip(values(theirs)?).enumerate() {
        let ok = (a - b).abs() <= bound * b.abs().max(1.0);
        assert!(ok, "{what}, element {i}: {a}, {b} expected");
    }
    Ok(())
}

pub fn assert_same(ours: &Tensor, theirs: &Tensor, what: &str) -> Result<()> {
    assert_close(ours, theirs, 0.0, what)
}

fn assert_differ(ours: &Tensor, theirs: &Tensor, what: &str) -> Result<()> {
    let (a, b) = (values(ours)?, values(theirs)?);
    let most = a
        .iter()
        .zip(&b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max);
    assert!(
        most > 1e-2,
        "{what}: the most different elements differ by {most}"
    );
    Ok(())
}

/// An error, without a panic, that contains all of `says`.
pub fn assert_refused<T>(result: Result<T>, says: &[&str]) {
    let text = match result {
        Ok(_) => panic!("accepted; an error with {says:?} expected"),
        Err(error) => error.to_string(),
    };
    for part in says {
        assert!(text.contains(part), "the error lacks {part:?}: {text}");
    }
}

/// A directory that goes away with it.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new(name: &str) -> Self {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("candle-fused-test-{name}-{id}"));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        TempDir(path)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Linear,
    Embedding,
    Conv2d,
}

const SHAPES: [Shape; 3] = [Shape::Linear, Shape::Embedding, Shape::Conv2d];

const CONV: Conv2dConfig = Conv2dConfig {
    padding: 1,
    stride: 2,
    dilation: 1,
    groups: 1,
    cudnn_fwd_algo: None,
};

/// A layer, the stock layer that it adapts, and the variables of both.
struct Built {
    layer: Box<dyn ModuleT>,
    adapters: Adapters,
    stock: Box<dyn Module>,
    weight: Var,
    bias: Option<Var>,
    x: Tensor,
}

fn build(shape: Shape, config: &LoraConfig, dtype: DType, device: &Device) -> Result<Built> {
    build_with(shape, config, (dtype, dtype), device)
}

/// With a dtype each for base and adapter.
fn build_with(
    shape: Shape,
    config: &LoraConfig,
    (dtype, adapter_dtype): (DType, DType),
    device: &Device,
) -> Result<Built> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, adapter_dtype, device);
    let var = |dims: &[usize], phase| Var::from_tensor(&waves(dims, phase, dtype, device)?);
    let x = |dims: &[usize]| waves(dims, 0.2, dtype, device);
    Ok(match shape {
        Shape::Linear => {
            let (weight, bias) = (var(&[9, 7], 1.0)?, var(&[9], 2.0)?);
            let stock = Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()));
            let layer = LoraLinear::new(stock.clone(), config, vb)?;
            let (adapters, bias) = (layer.adapters().clone(), Some(bias));
            let (layer, stock, x) = (Box::new(layer), Box::new(stock), x(&[2, 3, 7])?);
            Built {
                layer,
                adapters,
                stock,
                weight,
                bias,
                x,
            }
        }
        Shape::Embedding => {
            let weight = var(&[11, 6], 1.0)?;
            let stock = Embedding::new(weight.as_tensor().clone(), 6);
            let layer = LoraEmbedding::new(stock.clone(), config, vb)?;
            let (adapters, x) = (
                layer.adapters().clone(),
                Tensor::new(&[[0u32, 3, 10], [3, 7, 1]], device)?,
            );
            let (layer, stock) = (Box::new(layer), Box::new(stock));
            Built {
                layer,
                adapters,
                stock,
                weight,
                bias: None,
                x,
            }
        }
        Shape::Conv2d => {
            // Square: stock Candle, which this is compared with, has no gradient of a stride otherwise.
            let (weight, bias) = (var(&[5, 3, 3, 3], 1.0)?, var(&[5], 2.0)?);
            let (w, b) = (weight.as_tensor().clone(), bias.as_tensor().clone());
            let stock = Conv2d::new(w, Some(b), CONV);
            let layer = LoraConv2d::new(stock.clone(), config, vb)?;
            let (adapters, bias) = (layer.adapters().clone(), Some(bias));
            let (layer, stock, x) = (Box::new(layer), Box::new(stock), x(&[2, 3, 7, 7])?);
            Built {
                layer,
                adapters,
                stock,
                weight,
                bias,
                x,
            }
        }
    })
}

impl Built {
    fn eval(&self) -> Result<Tensor> {
        self.layer.forward_t(&self.x, false)
    }

    /// Moves an adapter away from its start, where it does nothing.
    fn stir(&self, name: &str) -> Result<()> {
        let adapter = self.adapters.adapter(name).expect("the adapter");
        for (phase, var) in (3u8..).zip([adapter.a(), adapter.b()]) {
            let phase = f32::from(phase) + name.len() as f32;
            var.set(&waves(var.dims(), phase, var.dtype(), var.device())?)?;
        }
        if let Some(m) = adapter.magnitude() {
            let factor = waves(m.dims(), 5.0, m.dtype(), m.device())?.affine(0.5, 1.2)?;
            m.set(&(m.as_tensor() * factor)?)?;
        }
        Ok(())
    }

    /// What the active adapter makes of the weight, in plain Candle with everything materialised.
    fn effective_weight(&self) -> Result<Tensor> {
        let name = self.adapters.active_adapter().expect("an active adapter");
        let adapter = self.adapters.adapter(&name).expect("the adapter");
        let flat = |v: &Tensor| v.flatten_from(1);
        let delta = flat(adapter.b())?.matmul(&flat(adapter.a())?)?;
        let delta = (delta * adapter.config().scale())?;
        // As a matrix with the outputs for rows.
        let w = self.weight.as_detached_tensor();
        let embedding = w.rank() == 2 && adapter.a().dims()[1] == w.dims()[0];
        let matrix = if embedding {
            w.t()?
        } else {
            w.flatten_from(1)?
        };
        let mut sum = (matrix + delta)?;
        if let Some(m) = adapter.magnitude() {
            let norms = sum.detach().sqr()?.sum_keepdim(1)?.sqrt()?;
            sum = sum.broadcast_mul(&m.flatten_all()?.unsqueeze(1)?.div(&norms)?)?;
        }
        match embedding {
            true => sum.t()?.contiguous(),
            false => sum.reshape(w.shape()),
        }
    }

    /// The layer with that weight, in plain Candle.
    fn reference(&self, x: &Tensor) -> Result<Tensor> {
        let w = self.effective_weight()?;
        let bias = self.bias.as_ref().map(|b| b.as_detached_tensor());
        match w.rank() {
            4 => Conv2d::new(w, bias, CONV).forward(x),
            _ if self.bias.is_none() => Embedding::new(w, 6).forward(x),
            _ => Linear::new(w, bias).forward(x),
        }
    }
}

/// A rank and scale that are no special case.
fn config() -> LoraConfig {
    LoraConfig {
        rank: 3,
        alpha: 7.0,
        ..Default::default()
    }
}

fn dora() -> LoraConfig {
    LoraConfig {
        use_dora: true,
        ..config()
    }
}
