//! Dropout by a counter-based generator: `out = mask · act(x) [+ residual]` with act the identity or
//! ReLU and mask either 0 or `1 / (1 − p)`.
//!
//! Whether element i stays depends on (seed, i) alone (Philox4x32-10, word `i % 4` of counter `i / 4`),
//! so the mask is the same on every device and is made again in the backward pass instead of kept:
//! `dx = mask · act′(x) · g`, `dresidual = g`.

pub(crate) mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::activation::{self, grad_through_act, Act};
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::{Result, Tensor};

const NAME: &str = "dropout";

/// Zeroes each element with probability `p` and scales the others by `1 / (1 − p)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::dropout;
/// let x = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
/// assert_eq!(dropout(&x, 0.0, 42)?.to_vec1::<f32>()?, [1., 2., 3.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn dropout(x: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    let relu = false;
    op::apply("dropout", Dropout { relu, p, seed }, &[x])
}

/// `dropout(relu(x))`
pub fn relu_dropout(x: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    let relu = true;
    op::apply("relu_dropout", Dropout { relu, p, seed }, &[x])
}

/// `dropout(x) + residual`
pub fn dropout_add(x: &Tensor, residual: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    op::apply("dropout_add", DropoutAdd { p, seed }, &[x, residual])
}

/// [`dropout`] in x's own memory.
pub fn dropout_inplace(x: &Tensor, p: f32, seed: u64) -> Result<()> {
    let relu = false;
    op::apply_inplace("dropout_inplace", Dropout { relu, p, seed }, x, &[])
}

/// [`relu_dropout`] in x's own memory.
pub fn relu_dropout_inplace(x: &Tensor, p: f32, seed: u64) -> Result<()> {
    let relu = true;
    op::apply_inplace("relu_dropout_inplace", Dropout { relu, p, seed }, x, &[])
}

fn check_p(name: &'static str, p: f32) -> Result<()> {
    let message = format_args!("got p = {p}, expected 0 ≤ p < 1");
    check::ensure((0.0..1.0).contains(&p), name, message)
}

/// [`dropout`] and [`relu_dropout`] as a CustomOp, out of place and in place.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Whether a ReLU comes before the dropout.
    pub relu: bool,
    /// The probability that an element is dropped.
    pub p: f32,
    /// Elements are dropped by this seed and their position alone.
    pub seed: u64,
}

custom_op!(Dropout: CustomOp1, InplaceOp1);

impl Op for Dropout {
    signature!(NAME(x));

    fn check(&self, name: &'static str, _: &[Spec<'_>]) -> Result<()> {
        check_p(name, self.p)
    }
    kernels!(self, args => device::forward(*self, args[0]));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let masked = dropout(g, self.p, self.seed)?;
        let act = if self.relu { Act::Relu } else { Act::Identity };
        let dx = grad_through_act(act, &masked, || Ok(inputs[0].clone()))?;
        Ok(vec![Some(dx)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let act = if self.relu { Act::Relu } else { Act::Identity };
        reference(args[0], act, self.p, self.seed)
    }
}

impl InplaceOp for Dropout {
    kernels!(in place: self, x, _ => device::inplace(*self, x));
}

/// [`dropout_add`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct DropoutAdd {
    /// The probability that an element of x is dropped.
    pub p: f32,
    /// Elements are dropped by this seed and their position alone.
    pub seed: u64,
}

custom_op!(DropoutAdd: CustomOp2);

impl Op for DropoutAdd {
    signature!("dropout_add"(x, residual));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_shape(name, args[0], "residual", args[1])?;
        check_p(name, self.p)
    }
    kernels!(self, args => device::forward_add(*self, args[0], args[1]));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let dx = || dropout(g, self.p, self.seed);
        op::grads(inputs, &[&dx, &|| Ok(g.clone())])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference_add(args[0], args[1], self.p, self.seed)
    }
}

/// The mask as a tensor times stock ops: what [`dropout`] and [`relu_dropout`] replace.
pub fn reference(x: &Tensor, act: Act, p: f32, seed: u64) -> Result<Tensor> {
    let mask = crate::philox::Mask::new(p, seed);
    let factors: Vec<f32> = (0..x.elem_count()).map(|i| mask.factor(i)).collect();
    let factors = Tensor::from_vec(factors, x.shape(), x.device())?.to_dtype(x.dtype())?;
    let dropped = factors.eq(0f64)?;
    // Selected rather than multiplied: a dropped NaN or infinity is 0.
    let y = (activation::reference(x, act)? * factors)?;
    dropped.where_cond(&y.zeros_like()?, &y)
}

/// What [`dropout_add`] replaces.
pub fn reference_add(x: &Tensor, residual: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    reference(x, Act::Identity, p, seed)? + residual
}
