//! `candle_nn`'s optimisers, with an AdamW that takes one pass over each variable; clipping and accumulation of gradients.
//!
//! ```
//! use candle_core::{DType, Device, Result, Tensor};
//! use candle_fused::nn::optim::{clip_grad_norm, AdamW, GradAccumulator, Optimizer};
//! use candle_fused::nn::{linear, Module, VarBuilder, VarMap};
//!
//! # fn main() -> Result<()> {
//! let vars = VarMap::new();
//! let layer = linear(4, 1, VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
//! let mut adam = AdamW::from_varmap(&vars, Default::default(), Default::default())?;
//! let mut sum = GradAccumulator::new(&vars.all_vars())?;
//! for _step in 0..2 {
//!     // Two small batches for each step.
//!     for _batch in 0..2 {
//!         let x = Tensor::randn(0f32, 1., (8, 4), &Device::Cpu)?;
//!         let loss = layer.forward(&x)?.sqr()?.mean_all()?;
//!         sum.add(&loss.backward()?)?;
//!     }
//!     let mut grads = sum.finish()?;
//!     let norm = clip_grad_norm(&mut grads, &vars.all_vars(), 1.0)?;
//!     assert!(norm.is_finite());
//!     adam.step(&grads)?;
//! }
//! assert_eq!(adam.step_count(), 2);
//! # Ok(())
//! # }
//! ```

mod accumulate;
mod adamw;
mod clip;
mod options;
mod saved;

pub use accumulate::GradAccumulator;
pub use adamw::AdamW;
pub use candle_nn::optim::{Optimizer, ParamsAdamW, SGD};
pub use clip::{clip_grad_norm, clip_grad_value};
pub use options::{AdamWOptions, Moments, Rounding};

use crate::check;
use candle_core::{Result, Tensor, Var};
use std::fmt::Display;

/// Refuses a gradient that does not suit `var`, which errors call "variable `label`".
fn check_gradient(name: &'static str, label: impl Display, var: &Var, grad: &Tensor) -> Result<()> {
    let (got, expected) = (grad.shape(), var.shape());
    let message =
        format_args!("got a gradient of shape {got:?} for variable {label}, expected {expected:?}");
    check::ensure(got == expected, name, message)?;
    check::same_device(name, &["a variable", "its gradient"], &[var, grad])?;
    check::is_float(name, grad)
}
