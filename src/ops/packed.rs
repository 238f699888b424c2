//! What products with a quantised weight have in common.

use super::linear::{self, check_bias, output_shape};
use super::quantize::Quantized;
use crate::check;
use candle_core::{DType, Layout, Result, Shape, Tensor};

/// Shapes and devices of a product with a quantised weight.
pub(crate) fn check_args(op: &str, x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<()> {
    check_shapes(op, x.layout(), w, bias.map(Tensor::layout))?;
    if !x.device().same_device(w.device()) {
        let (a, b) = (w.device().location(), x.device().location());
        return Err(check::error(
            op,
            format!("weight is on {a:?}, x is on {b:?}"),
        ));
    }
    bias.map_or(Ok(()), |bias| check::alike(op, x, "bias", bias))
}

/// The output's shape. Checked here, for those who apply a CustomOp themselves too.
pub(crate) fn check_shapes(
    op: &str,
    x: &Layout,
    w: &Quantized,
    bias: Option<&Layout>,
) -> Result<Shape> {
    match (x.dims().last(), w.shape().dims()) {
        (Some(last), &[out, cols]) if *last == cols => {
            check_bias(op, out, bias)?;
            let shape = output_shape(x, out);
            check::size(op, shape.dims())?;
            Ok(shape)
        }
        (last, shape) => {
            let message = format!(
                "weight has shape {shape:?}, x's last dim is {last:?}, [out, in] and [.., in] accepted"
            );
            Err(check::error(op, message))
        }
    }
}

/// The product of an x without elements, in its own dtype: Candle can't convert nothing on Metal.
pub(crate) fn of_nothing(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    let w = match x.dtype() {
        DType::F64 => w.dequantize(DType::F32)?.to_dtype(DType::F64)?,
        dtype => w.dequantize(dtype)?,
    };
    linear::reference(x, &w, bias)
}

/// The parts of a weight that kernels take: codes, scales, offsets.
pub(crate) type Parts<'a, S> = (
    (&'a S, &'a Layout),
    (&'a S, &'a Layout),
    Option<(&'a S, &'a Layout)>,
);

/// Calls a kernel with a weight's parts.
macro_rules! with_parts {
    ($w:expr, $device:ident, $parts:ident => $body:expr) => {{
        let (codes, scales) = (
            crate::held::held($w.codes()),
            crate::held::held($w.scales()),
        );
        let offsets = $w.offsets().map(crate::held::held);
        let offsets = offsets.as_ref().map(|t| t.$device(NAME)).transpose()?;
        let $parts = (codes.$device(NAME)?, scales.$device(NAME)?, offsets);
        $body
    }};
}
pub(crate) use with_parts;

/// The CustomOps of a struct around a weight: of x, and of x and a bias. It has the methods `cpu` and `metal`.
macro_rules! packed_ops {
    ($op:ident) => {
        impl CustomOp1 for $op {
            fn name(&self) -> &'static str {
                NAME
            }
            fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
                self.cpu((x, l), None)
            }
            #[cfg(feature = "metal")]
            fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
                self.metal((x, l), None)
            }
            fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
                grad_x(x, &self.0, g)
            }
        }

        impl CustomOp2 for $op {
            fn name(&self) -> &'static str {
                NAME
            }
            fn cpu_fwd(
                &self,
                x: &CpuStorage,
                xl: &Layout,
                bias: &CpuStorage,
                bl: &Layout,
            ) -> Result<(CpuStorage, Shape)> {
                self.cpu((x, xl), Some((bias, bl)))
            }
            #[cfg(feature = "metal")]
            fn metal_fwd(
                &self,
                x: &MetalStorage,
                xl: &Layout,
                bias: &MetalStorage,
                bl: &Layout,
            ) -> Result<(MetalStorage, Shape)> {
                self.metal((x, xl), Some((bias, bl)))
            }
            fn bwd(
                &self,
                x: &Tensor,
                bias: &Tensor,
                _: &Tensor,
                g: &Tensor,
            ) -> Result<(Option<Tensor>, Option<Tensor>)> {
                let dbias = bias.track_op().then(|| column_sums(g)).transpose()?;
                Ok((grad_x(x, &self.0, g)?, dbias))
            }
        }
    };
}
pub(crate) use packed_ops;
