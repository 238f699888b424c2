//! Sum, mean and max over any dims.

use super::cpu;
#[cfg(feature = "metal")]
use super::metal;
use super::{MaxBwd, Over, Reduce, Reduction, NAME};
use crate::check;
use crate::op::{self, kernels, signature, Grads, Op, Spec};
use candle_core::shape::Dims;
use candle_core::{DType, Result, Shape, Tensor, D};

macro_rules! over_dims {
    ($($(#[$doc:meta])* $name:ident, $keepdim:ident = $reduction:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &Tensor, dims: impl Dims) -> Result<Tensor> {
            let dims = sorted(stringify!($name), x, dims)?;
            reduce(stringify!($name), x, &dims, Reduction::$reduction)
        }

        #[doc = concat!("As [`", stringify!($name), "`], with dims of size 1 in the places of those that were reduced.")]
        pub fn $keepdim(x: &Tensor, dims: impl Dims) -> Result<Tensor> {
            let dims = sorted(stringify!($keepdim), x, dims)?;
            let y = reduce(stringify!($keepdim), x, &dims, Reduction::$reduction)?;
            with_dims_of_1(&y, &dims)
        }
    )*};
}

over_dims! {
    /// Σ x over one or several dims, which are dropped. For f32, f16 and bf16 of any layout; added in f32, and rounded once.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, D};
    /// use candle_fused::ops::{mean_keepdim, sum};
    /// let images = Tensor::ones((2, 3, 4, 5), candle_core::DType::F32, &Device::Cpu)?;
    /// assert_eq!(sum(&images, (0, 2, 3))?.to_vec1::<f32>()?, [40., 40., 40.]);
    /// assert_eq!(mean_keepdim(&images, (D::Minus2, D::Minus1))?.dims(), [2, 3, 1, 1]);
    /// # candle_core::Result::Ok(())
    /// ```
    sum, sum_keepdim = Sum;
    /// The mean over one or several dims, which are dropped.
    mean, mean_keepdim = Mean;
    /// The maximum over one or several dims, which are dropped. It is NaN only where the first of its elements is.
    max, max_keepdim = Max;
}

/// The dims' indices in ascending order, each of which x has, and none twice.
fn sorted(name: &'static str, x: &Tensor, dims: impl Dims) -> Result<Vec<usize>> {
    let mut dims = dims.to_indexes(x.shape(), name)?;
    dims.sort_unstable();
    Ok(dims)
}

/// A view of a reduced tensor that has dims of size 1 at these indices, in ascending order.
fn with_dims_of_1(reduced: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let start = reduced.clone();
    dims.iter().try_fold(start, |y, &d| y.unsqueeze(d))
}

/// x reduced over `dims`, in ascending order, which are dropped.
pub(super) fn reduce(
    name: &'static str,
    x: &Tensor,
    dims: &[usize],
    reduction: Reduction,
) -> Result<Tensor> {
    let apply =
        |x: &Tensor, dims: Vec<usize>| op::apply(name, ReduceDims { reduction, dims }, &[x]);
    if dims.len() == x.rank() && !dims.is_empty() {
        let over = Over::All;
        return op::apply(name, Reduce { reduction, over }, &[x]);
    }
    if dims.len() == 1 && dims[0] + 1 == x.rank() {
        let over = Over::LastDim;
        return op::apply(name, Reduce { reduction, over }, &[x]);
    }
    if x.elem_count() > 0 && runs(x.dims(), dims).is_empty() {
        check::is_float(name, x)?;
        let mut dims = dims.iter().rev();
        return dims.try_fold(x.clone(), |y, &d| y.squeeze(d));
    }
    if reduction != Reduction::Max || runs(x.dims(), dims).len() == 1 {
        return apply(x, dims.to_vec());
    }
    // A NaN that comes first must come first in what one pass reduces: the dims are brought side by side.
    let order = kept_first(x.rank(), dims);
    let kept = x.rank() - dims.len();
    apply(&x.permute(&order[..])?, (kept..x.rank()).collect())
}

/// All dims, those that are kept first.
fn kept_first(rank: usize, dims: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).collect();
    order.sort_by_key(|d| dims.contains(d));
    order
}

/// Neighbouring dims that are reduced together: `[outer, n, inner] → [outer, inner]`. What lies behind them has been reduced
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
    /// Whether it is x's last dim and no other.
    pub is_last_dim: bool,
}

/// The runs of `dims` in a tensor of this shape, the last one first. Dims of size 1 are in none.
fn runs(shape: &[usize], dims: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut inner, mut kept_since) = (1, true);
    for (d, &size) in shape.iter().enumerate().rev() {
        if size == 1 {
            continue;
        }
        let outer = shape[..d].iter().product();
        match (dims.contains(&d), runs.last_mut()) {
            (false, _) => inner *= size,
            (true, Some(run)) if !kept_since => {
                run.n *= size;
                run.outer = outer;
                run.is_last_dim = false;
            }
            (true, _) => runs.push(Run {
                outer,
                n: size,
                inner,
                is_last_dim: d + 1 == shape.len(),
            }),
        }
        kept_since = !dims.contains(&d);
    }
    runs
}

/// Reduces over `dims`, in ascending order, which are dropped.
#[derive(Clone, Debug)]
pub(super) struct ReduceDims {
    pub reduction: Reduction,
    pub dims: Vec<usize>,
}

impl ReduceDims {
    pub fn runs(&self, shape: &[usize]) -> Vec<Run> {
        runs(shape, &self.dims)
    }

    pub fn reduced_shape(&self, shape: &[usize]) -> Shape {
        let kept = shape.iter().enumerate();
        let kept = kept.filter(|(d, _)| !self.dims.contains(d));
        Shape::from(kept.map(|(_, &size)| size).collect::<Vec<_>>())
    }

    /// The elements that become one.
    fn count(&self, shape: &[usize]) -> usize {
        self.dims.iter().map(|&d| shape[d]).product()
    }

    /// What a sum is multiplied by.
    pub fn scale(&self, shape: &[usize]) -> f32 {
        match self.reduction {
            Reduction::Mean => 1.0 / self.count(shape) as f32,
            Reduction::Sum | Reduction::Max => 1.0,
        }
    }

    /// The gradient of a maximum: its dims are brought to the end, where they are one.
    fn max_backward(&self, x: &Tensor, y: &Tensor, g: &Tensor) -> Result<Tensor> {
        let order = kept_first(x.rank(), &self.dims);
        let permuted = x.permute(&order[..])?;
        let rows = [y.dims(), &[self.count(x.dims())]].concat();
        let x = permuted.reshape(rows)?;
        let dx: Tensor = op::apply("reduce_bwd", MaxBwd(Over::LastDim), &[&x, y, g])?;
        let mut back: Vec<usize> = (0..order.len()).collect();
        back.sort_unstable_by_key(|&at| order[at]);
        dx.reshape(permuted.shape())?.permute(&back[..])
    }
}

impl Op for ReduceDims {
    signature!("reduce_dims"(x));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (dims, shape) = (&self.dims, args[0].shape());
        let ascending = dims.windows(2).all(|pair| pair[0] < pair[1]);
        check::ensure(
            ascending && dims.iter().all(|&d| d < shape.rank()),
            name,
            format_args!("got dims {dims:?} of x of shape {shape:?}, expected ascending ones"),
        )?;
        let one_pass = self.runs(shape.dims()).len() < 2;
        check::ensure(
            self.reduction != Reduction::Max || (shape.elem_count() > 0 && one_pass),
            name,
            format_args!("got x of shape {shape:?}, expected elements to take the maximum of"),
        )
    }
    kernels!(self, args => device::over_dims(self, args[0]));
    fn bwd(&self, inputs: &[&Tensor], y: &Tensor, g: &Tensor) -> Grads {
        let x = inputs[0];
        let expand = |g: &Tensor| with_dims_of_1(g, &self.dims)?.broadcast_as(x.shape());
        let dx = match self.reduction {
            Reduction::Sum => expand(g),
            Reduction::Mean => expand(&super::divided(g, self.count(x.dims()))?),
            Reduction::Max => self.max_backward(x, y, g),
        };
        Ok(vec![Some(dx?)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference_dims(args[0], &self.dims, self.reduction)
    }
}

/// The stock ops that the reductions over any dims, in ascending order, replace.
pub fn reference_dims(x: &Tensor, dims: &[usize], reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::Sum => x.sum(dims),
        Reduction::Mean => x.mean(dims),
        Reduction::Max if dims.is_empty() => Ok(x.clone()),
        // Stock has the maximum over one dim alone.
        Reduction::Max => {
            let order = kept_first(x.rank(), dims);
            let kept = x.rank() - dims.len();
            x.permute(order)?.flatten_from(kept)?.max(D::Minus1)
        }
    }
}

/// Undoes a broadcast: the sums of `grad` over all dims in which `shape` has been expanded to it.
pub(crate) fn sum_to(grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    if grad.shape() == shape {
        return Ok(grad.clone());
    }
    check::is_float(NAME, grad)?;
    let added = grad.rank() - shape.rank();
    let expanded = |d: &usize| *d < added || (shape.dims()[d - added] == 1 && grad.dims()[*d] != 1);
    let dims: Vec<usize> = (0..grad.rank()).filter(expanded).collect();
    reduce(NAME, grad, &dims, Reduction::Sum)?.reshape(shape)
}

/// `g / n` for the gradient of a mean, in f32: stock's f16 would round 1 / n too.
pub(super) fn divided(g: &Tensor, n: usize) -> Result<Tensor> {
    (g.to_dtype(DType::F32)? / n as f64)?.to_dtype(g.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_dims_are_one_run() {
        let of = |shape: &[usize], dims: &[usize]| -> Vec<(usize, usize, usize, bool)> {
            let runs = runs(shape, dims).into_iter();
            runs.map(|r| (r.outer, r.n, r.inner, r.is_last_dim))
                .collect()
        };
        assert_eq!(of(&[2, 3, 4, 5], &[2, 3]), [(6, 20, 1, false)]);
        assert_eq!(of(&[2, 3, 4, 5], &[3]), [(24, 5, 1, true)]);
        assert_eq!(of(&[2, 3, 4, 5], &[1]), [(2, 3, 20, false)]);
        assert_eq!(
            of(&[2, 3, 4, 5], &[0, 2, 3]),
            [(6, 20, 1, false), (1, 2, 3, false)]
        );
        assert_eq!(of(&[2, 3, 1, 5], &[1, 2, 3]), [(2, 15, 1, false)]);
        assert_eq!(of(&[2, 1, 5], &[0, 2]), [(1, 10, 1, false)]);
        assert_eq!(of(&[2, 1, 5], &[1]), []);
    }
}
