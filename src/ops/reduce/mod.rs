//! Sum, mean and max over the last dim or over all elements. Backward: sum `dx = g`, mean
//! `dx = g / n`, max `dx = g` for every element that equals the maximum and 0 elsewhere.
//!
//! Sums run in f32 whatever the dtype, in an order that depends on the shape alone: the same input
//! gives the same bits on every run and with any number of threads. A maximum is NaN only where the
//! first element is, and passes over other NaNs, as stock Candle's.

mod cpu;
#[cfg(feature = "metal")]
mod metal;
#[cfg(test)]
mod tests;

use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor, D};

const NAME: &str = "reduce";

/// What becomes of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Σ x
    Sum,
    /// Σ x / n
    Mean,
    /// The largest x
    Max,
}

/// Which elements are taken together.
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

fn reduce(x: &Tensor, reduction: Reduction, over: Over) -> Result<Tensor> {
    check::float(NAME, x)?;
    if over == Over::LastDim {
        check::has_dims(NAME, x)?;
    }
    if x.elem_count() == 0 && reduction == Reduction::Max {
        let shape = x.shape();
        return Err(check::error(
            NAME,
            format_args!("max of no elements: x has shape {shape:?}, no dim may be 0"),
        ));
    }
    if !check::served(x) {
        return match over {
            Over::LastDim => reference_last_dim(x, reduction),
            Over::All => reference_all(x, reduction),
        };
    }
    apply::op1(x, Reduce { reduction, over })
}

/// Σ x over the last dim, which is dropped. For f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::sum_last_dim;
/// let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
/// assert_eq!(sum_last_dim(&x)?.to_vec1::<f32>()?, [6., 15.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn sum_last_dim(x: &Tensor) -> Result<Tensor> {
    reduce(x, Reduction::Sum, Over::LastDim)
}

/// The mean over the last dim, which is dropped.
pub fn mean_last_dim(x: &Tensor) -> Result<Tensor> {
    reduce(x, Reduction::Mean, Over::LastDim)
}

/// The maximum over the last dim, which is dropped.
pub fn max_last_dim(x: &Tensor) -> Result<Tensor> {
    reduce(x, Reduction::Max, Over::LastDim)
}

/// Σ x over all elements, as a scalar.
pub fn sum_all(x: &Tensor) -> Result<Tensor> {
    reduce(x, Reduction::Sum, Over::All)
}

/// The mean of all elements, as a scalar.
pub fn mean_all(x: &Tensor) -> Result<Tensor> {
    reduce(x, Reduction::Mean, Over::All)
}

/// The maximum of all elements, as a scalar.
pub fn max_all(x: &Tensor) -> Result<Tensor> {
    reduce(x, Reduction::Max, Over::All)
}

/// The reductions as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct Reduce {
    pub reduction: Reduction,
    pub over: Over,
}

impl CustomOp1 for Reduce {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        metal::forward(*self, x, l)
    }
    fn bwd(&self, x: &Tensor, y: &Tensor, grad_out: &Tensor) -> Result<Option<Tensor>> {
        let (_, n) = self.over.split(x.shape());
        let dx = match self.reduction {
            Reduction::Sum => self.over.expand(grad_out, x.shape()),
            Reduction::Mean => self.over.expand(&(grad_out / n as f64)?, x.shape()),
            Reduction::Max => apply::op3(x, y, grad_out, MaxBwd(self.over)),
        };
        dx.map(Some)
    }
}

/// `(x, y, g) → g where x = y, else 0`, y and g being reduced.
#[derive(Clone, Copy, Debug)]
pub struct MaxBwd(pub Over);

impl CustomOp3 for MaxBwd {
    fn name(&self) -> &'static str {
        "reduce_bwd"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        y: &CpuStorage,
        yl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::max_backward(self.0, (x, xl), (y, yl), (g, gl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        y: &MetalStorage,
        yl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::max_backward(self.0, (x, xl), (y, yl), (g, gl))
    }
}

/// Σ over all dims but the last: the gradient of a bias that was added to every row.
pub(crate) fn column_sum(x: &Tensor) -> Result<Tensor> {
    check::has_dims(NAME, x)?;
    sum_to(x, &x.dims()[x.rank() - 1].into())
}

/// Undoes a broadcast: the sums of `grad` over all dims in which `shape` has been expanded to it.
pub(crate) fn sum_to(grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    if grad.shape() == shape {
        return Ok(grad.clone());
    }
    check::float(NAME, grad)?;
    let added = grad.rank() - shape.rank();
    let expanded = |d: usize| d < added || (shape.dims()[d - added] == 1 && grad.dims()[d] != 1);
    let size = |dims: std::ops::Range<usize>| grad.dims()[dims].iter().product::<usize>();
    // Runs of neighbouring dims that were broadcast, from the last to the first.
    let (mut sum, mut inner, mut end) = (grad.clone(), 1, grad.rank());
    while end > 0 {
        let kept = (0..end).rev().find(|&d| expanded(d)).map_or(0, |d| d + 1);
        inner *= size(kept..end);
        let start = (0..kept).rev().find(|&d| !expanded(d)).map_or(0, |d| d + 1);
        if start < kept {
            sum = sum_middle(&sum.reshape((size(0..start), size(start..kept), inner))?)?;
        }
        end = start;
    }
    sum.reshape(shape)
}

/// `[outer, n, inner] → [outer, inner]`
fn sum_middle(x: &Tensor) -> Result<Tensor> {
    let (outer, _, inner) = x.dims3()?;
    if x.elem_count() == 0 {
        return Tensor::zeros((outer, inner), x.dtype(), x.device());
    }
    if !check::served(x) {
        return x.sum(1);
    }
    if inner == 1 {
        return sum_last_dim(&x.squeeze(2)?)?.unsqueeze(1);
    }
    apply::op1(x, SumMiddle)
}

/// `[outer, n, inner] → [outer, inner]`, the sum over the middle dim.
#[derive(Clone, Copy, Debug)]
struct SumMiddle;

impl CustomOp1 for SumMiddle {
    fn name(&self) -> &'static str {
        "reduce_columns"
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        cpu::sum_middle(x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        metal::sum_middle(x, l)
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, grad_out: &Tensor) -> Result<Option<Tensor>> {
        grad_out.unsqueeze(1)?.broadcast_as(x.shape()).map(Some)
    }
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
