//! See [`candle_nn::Linear`].
use candle_core::{Result, Tensor};
use candle_nn as nn;
use candle_nn::{self, linear, Linear, VarBuilder};
use {candle_nn::Module, std::fmt};

/// A layer beside `my_candle_nn::Other`.
pub struct Layer {
    inner: ::candle_nn::Linear,
    candle_nn: usize,
}

macro_rules! act {
    () => {
        candle_nn::Activation::Silu
    };
}

fn path() -> &'static str {
    // candle_nn::Linear in a comment
    "candle_nn::Linear"
}

fn other(x: &Layer) -> usize {
    crate::candle_nn::count() + x.candle_nn + other::candle_nn::COUNT
}

impl<T> ::candle_nn::Module for Wrapper<T> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = <T as candle_nn::Module>::forward(&self.0, x)?;
        let compare = 1 > ::candle_nn::COUNT && Vec::<T>::candle_nn(x);
        match ::candle_nn::Activation::Relu as candle_nn::Kind {
            _ => y.apply(&<T as ::candle_nn::Named>::LAYER),
        }
    }
}

fn each(f: Box<dyn for<'a> ::candle_nn::Visit<'a>>) {}

use ::my_nn as candle_nn;
