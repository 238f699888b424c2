//! A linear layer inside the transformer, in one of three forms.

use candle_core::{DType, Result, Tensor};
use candle_fused::nn::quantized::{SubNorm, SubNormConfig};
use candle_fused::nn::{
    bit_linear_no_bias, BitLinear, BitLinearConfig, Linear, Module, PackedBitLinear, VarBuilder,
};

pub const EPS: f64 = 1e-5;

#[derive(Clone, Copy)]
pub enum Form {
    /// f32 weights that learn, and are rounded to −1, 0 and 1 times a scale at each call.
    Trained,
    /// What they are rounded to, in 2 bits each.
    Packed,
    /// What they are rounded to, as f32 again; the input isn't rounded either. To compare with.
    Float,
}

pub struct Projection {
    path: String,
    layer: Layer,
}

enum Layer {
    Trained(BitLinear),
    Packed(PackedBitLinear),
    Float(Option<SubNorm>, Linear),
}

impl Projection {
    /// From the variables of a training, or the tensors of [`frozen`](Self::frozen) in the other forms.
    pub fn new(from: usize, to: usize, norm: bool, form: Form, vb: VarBuilder) -> Result<Self> {
        let mut config = BitLinearConfig::TERNARY;
        config.norm = norm.then_some(SubNormConfig {
            eps: EPS as f32,
            weight: true,
        });
        let path = vb.prefix();
        let layer = match form {
            Form::Trained => Layer::Trained(bit_linear_no_bias(from, to, config, vb)?),
            Form::Packed => Layer::Packed(PackedBitLinear::load(vb)?),
            Form::Float => {
                let packed = PackedBitLinear::load(vb)?;
                let weight = packed.weight().dequantize(DType::F32)?;
                Layer::Float(packed.norm().cloned(), Linear::new(weight, None))
            }
        };
        Ok(Projection { path, layer })
    }

    /// Where its tensors are.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tensors of its packed form.
    pub fn frozen(&self) -> Result<Vec<(String, Tensor)>> {
        match &self.layer {
            Layer::Trained(layer) => layer.freeze()?.tensors(&self.path),
            Layer::Packed(layer) => layer.tensors(&self.path),
            Layer::Float(..) => candle_core::bail!("{} has no packed form", self.path),
        }
    }

    pub fn weights(&self) -> usize {
        match &self.layer {
            Layer::Trained(layer) => layer.weight().elem_count(),
            Layer::Packed(layer) => layer.weight().shape().elem_count(),
            Layer::Float(_, layer) => layer.weight().elem_count(),
        }
    }

    /// What the weights take in memory.
    pub fn bytes(&self) -> usize {
        match &self.layer {
            Layer::Packed(layer) => layer.weight().bytes(),
            _ => self.weights() * size_of::<f32>(),
        }
    }
}

impl Module for Projection {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.layer {
            Layer::Trained(layer) => layer.forward(x),
            Layer::Packed(layer) => layer.forward(x),
            Layer::Float(Some(norm), layer) => layer.forward(&norm.forward(x)?),
            Layer::Float(None, layer) => layer.forward(x),
        }
    }
}
