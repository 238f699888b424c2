//! The signatures of candle-nn that the snippets use.

pub use candle_core::Module;

pub fn linear() {}

pub mod ops {
    use candle_core::{Dim, Result, Tensor};

    pub fn softmax(x: &Tensor, _: impl Dim) -> Result<Tensor> {
        Ok(x.clone())
    }

    pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}
