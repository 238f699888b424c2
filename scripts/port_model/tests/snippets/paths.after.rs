//! See [`candle_fused::nn::Linear`].
use candle_core::{Result, Tensor};
use candle_fused::nn as nn;
use candle_fused::nn::{self as candle_nn, linear, Linear, VarBuilder};
use {candle_fused::nn::Module, std::fmt};

/// A layer beside `my_candle_nn::Other`.
pub struct Layer {
    inner: ::candle_fused::nn::Linear,
    candle_nn: usize,
}

macro_rules! act {
    () => {
        candle_fused::nn::Activation::Silu
    };
}

fn path() -> &'static str {
    // candle_nn::Linear in a comment
    "candle_nn::Linear"
}

fn other(x: &Layer) -> usize {
    crate::candle_nn::count() + x.candle_nn + other::candle_nn::COUNT
}

impl<T> ::candle_fused::nn::Module for Wrapper<T> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = <T as candle_fused::nn::Module>::forward(&self.0, x)?;
        let compare = 1 > ::candle_fused::nn::COUNT && Vec::<T>::candle_nn(x);
        match ::candle_fused::nn::Activation::Relu as candle_fused::nn::Kind {
            _ => y.apply(&<T as ::candle_fused::nn::Named>::LAYER),
        }
    }
}

fn each(f: Box<dyn for<'a> ::candle_fused::nn::Visit<'a>>) {}

use ::my_nn as candle_nn;
