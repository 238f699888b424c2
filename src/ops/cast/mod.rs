//! Another floating-point dtype: `y = x`, rounded to nearest even where y has fewer digits. Backward, `dx` is the gradient in
//! x's dtype.
//!
//! On Metal this is Candle's own kernel.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use candle_core::{DType, Result, Tensor};

const NAME: &str = "cast";

/// `x` in another floating-point dtype, as by [`Tensor::to_dtype`], whose loop on the CPU converts one number at a time. f64 is
/// converted by that loop.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::cast;
/// let x = Tensor::new(&[1f32, 1.01], &Device::Cpu)?;
/// let y = cast(&cast(&x, DType::BF16)?, DType::F32)?;
/// assert_eq!(y.to_vec1::<f32>()?, [1., 1.0078125]);
/// # candle_core::Result::Ok(())
/// ```
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    check::is_float(NAME, x)?;
    let message = format_args!("got dtype {dtype:?} to cast to, expected F32, F16, BF16 or F64");
    check::ensure(is_served(dtype) || dtype == DType::F64, NAME, message)?;
    if dtype == x.dtype() {
        return Ok(x.clone());
    }
    match check::is_served(x) && is_served(dtype) {
        true => op::apply(NAME, Cast(dtype), &[x]),
        false => x.to_dtype(dtype),
    }
}

fn is_served(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// [`cast`] between f32, f16 and bf16 as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct Cast(pub DType);

custom_op!(Cast: CustomOp1);

impl Op for Cast {
    signature!(NAME(x));

    fn check(&self, name: &'static str, _: &[Spec<'_>]) -> Result<()> {
        let message = format_args!(
            "got dtype {:?} to cast to, expected F32, F16 or BF16",
            self.0
        );
        check::ensure(is_served(self.0), name, message)
    }
    kernels!(self, args => device::forward(self.0, args[0]));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        Ok(vec![Some(cast(g, inputs[0].dtype())?)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], self.0)
    }
}

/// The composition that [`cast`] must equal. Candle's own cast of nothing panics on Metal.
pub fn reference(x: &Tensor, dtype: DType) -> Result<Tensor> {
    match x.elem_count() {
        0 => Tensor::zeros(x.shape(), dtype, x.device()),
        _ => x.to_dtype(dtype),
    }
}
