//! Sum, mean and max over the last dim, over any dims or over all elements. Backward: sum `dx = g`, mean
//! `dx = g / n`, max `dx = g` for every element that equals the maximum and 0 elsewhere.
//!
//! Sums run in f32 whatever the dtype, in an order that depends on the shape alone: the same input
//! gives the same bits on every run and with any number of threads. A maximum is NaN only where the
//! first element is, and passes over other NaNs, as stock Candle's.

mod cpu;
mod dims;
#[cfg(feature = "metal")]
mod metal;
#[cfg(test)]
mod tests;

use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use candle_core::{Result, Shape, Tensor, D};
pub(crate) use dims::sum_to;
use dims::{divided, ReduceDims};
pub use dims::{max, max_keepdim, mean, mean_keepdim, reference_dims, sum, sum_keepdim};

const NAME: &str = "reduce";

/// How elements are reduced to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Σ x
    Sum,
    /// Σ x / n
    Mean,
    /// The largest x
    Max,
}

/// Which elements are reduced to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Each row; the last dim is dropped.
    LastDim,
    /// All of them; the result is a scalar.
    All,
}

impl Over {
    /// The reduced groups and the elements of each.
    fn split(self, shape: &Shape) -> (usize, usize) {
        match (self, shape.dims().split_last()) {
            (Over::LastDim, Some((&cols, rows))) => (rows.iter().product(), cols),
            _ => (1, shape.elem_count()),
        }
    }

    fn shape(self, shape: &Shape) -> Shape {
        match self {
            Over::LastDim => shape.dims()[..shape.rank() - 1].into(),
            Over::All => ().into(),
        }
    }

    /// A view of a reduced tensor that has the shape it was reduced from.
    fn expand(self, reduced: &Tensor, shape: &Shape) -> Result<Tensor> {
        match self {
            Over::LastDim => reduced.unsqueeze(D::Minus1)?.broadcast_as(shape),
            Over::All => reduced.broadcast_as(shape),
        }
    }
}

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident = $reduction:ident $over:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &Tensor) -> Result<Tensor> {
            let (reduction, over) = (Reduction::$reduction, Over::$over);
            op::apply(stringify!($name), Reduce { reduction, over }, &[x])
        }
    )*};
}

named! {
    /// Σ x over the last dim, which is dropped. For f32, f16 and bf16 of any layout.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_fused::ops::sum_last_dim;
    /// let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
    /// assert_eq!(sum_last_dim(&x)?.to_vec1::<f32>()?, [6., 15.]);
    /// # candle_core::Result::Ok(())
    /// ```
    sum_last_dim = Sum LastDim;
    /// The mean over the last dim, which is dropped.
    mean_last_dim = Mean LastDim;
    /// The maximum over the last dim, which is dropped.
    max_last_dim = Max LastDim;
    /// Σ x over all elements, as a scalar.
    sum_all = Sum All;
    /// The mean of all elements, as a scalar.
    mean_all = Mean All;
    /// The maximum of all elements, as a scalar.
    max_all = Max All;
}

/// The reductions as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct Reduce {
    /// How elements are reduced to one.
    pub reduction: Reduction,
    /// Which elements are.
    pub over: Over,
}

custom_op!(Reduce: CustomOp1);

impl Op for Reduce {
    signature!(NAME(x));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        if self.over == Over::LastDim {
            check::has_dims(name, args[0].layout)?;
        }
        let shape = args[0].shape();
        check::ensure(
            self.reduction != Reduction::Max || shape.elem_count() > 0,
            name,
            format_args!("got x of shape {shape:?}, expected elements to take the maximum of"),
        )
    }
    kernels!(self, args => device::forward(*self, args[0]));
    fn bwd(&self, inputs: &[&Tensor], y: &Tensor, g: &Tensor) -> Grads {
        let x = inputs[0];
        let (_, n) = self.over.split(x.shape());
        let dx = match self.reduction {
            Reduction::Sum => self.over.expand(g, x.shape()),
            Reduction::Mean => self.over.expand(&divided(g, n)?, x.shape()),
            Reduction::Max => op::apply("reduce_bwd", MaxBwd(self.over), &[x, y, g]),
        };
        Ok(vec![Some(dx?)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        match self.over {
            Over::LastDim => reference_last_dim(args[0], self.reduction),
            Over::All => reference_all(args[0], self.reduction),
        }
    }
}

/// `(x, y, g) → g where x = y, else 0`, y and g being reduced.
#[derive(Clone, Copy, Debug)]
struct MaxBwd(Over);

impl Op for MaxBwd {
    signature!("reduce_bwd"(x, y, grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        if self.0 == Over::LastDim {
            check::has_dims(name, args[0].layout)?;
        }
        let reduced = self.0.shape(args[0].shape());
        check::has_shape(name, "y", args[1].layout, reduced.dims())?;
        check::has_shape(name, "grad_out", args[2].layout, reduced.dims())
    }
    kernels!(self, args => device::max_backward(self.0, args));
}

/// The stock ops that the reductions over the last dim replace.
pub fn reference_last_dim(x: &Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::Sum => x.sum(D::Minus1),
        Reduction::Mean => x.mean(D::Minus1),
        Reduction::Max => x.max(D::Minus1),
    }
}

/// The stock ops that the reductions over all elements replace.
pub fn reference_all(x: &Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::Sum => x.sum_all(),
        Reduction::Mean => x.mean_all(),
        Reduction::Max => x.max_all(),
    }
}
