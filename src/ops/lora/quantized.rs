//! `y = x·Wᵀ + bias` with W in one of Candle's GGUF types: Candle's own product, with the gradient to x that it lacks.
//!
//! Backward: `dx = g·W`, for which W is dequantised a few rows at a time.

use super::{up, NAME};
use crate::ops::linear::{check_bias, matrix, output_shape, scaled};
use crate::{apply, check};
use candle_core::quantized::QTensor;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, D};
use std::borrow::Cow;
use std::sync::Arc;

/// Elements that are dequantised at once: 4 MB of f32.
pub(crate) const PANEL: usize = 1 << 20;

/// The number of outputs.
pub(super) fn check_args(x: &Tensor, w: &QTensor, bias: Option<&Tensor>) -> Result<usize> {
    check::float(NAME, x)?;
    check::has_dims(NAME, x)?;
    let last = x.dim(D::Minus1)?;
    let (a, b) = (w.device().location(), x.device().location());
    if a != b {
        return Err(check::error(
            NAME,
            format_args!("weight is on {a:?}, x is on {b:?}"),
        ));
    }
    match *w.shape().dims() {
        [out, cols] if cols == last => {
            if let Some(bias) = bias {
                check::alike(NAME, x, "bias", bias)?;
            }
            check_bias(NAME, out, bias.map(Tensor::layout)).map(|()| out)
        }
        _ => {
            let shape = w.shape();
            let message = format!(
                "weight has shape {shape:?}, x's last dim is {last}, [out, {last}] accepted"
            );
            Err(check::error(NAME, message))
        }
    }
}

/// Candle's kernels want f32 (on Metal) and rows one behind the other.
pub(super) fn linear(x: &Tensor, w: &Arc<QTensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    let rows = matrix(x)?.to_dtype(DType::F32)?.contiguous()?;
    let y = match rows.elem_count() {
        0 => Tensor::zeros((rows.dim(0)?, w.shape().dims()[0]), DType::F32, x.device())?,
        _ => apply::op1(&rows, QuantizedLinear(w.clone()))?,
    };
    let y = y.to_dtype(x.dtype())?;
    let y = match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    };
    y.reshape(output_shape(x.layout(), w.shape().dims()[0]))
}

/// `x·Wᵀ` of f32 rows as a CustomOp.
#[derive(Clone, Debug)]
pub struct QuantizedLinear(pub Arc<QTensor>);

impl CustomOp1 for QuantizedLinear {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.cpu_fwd(x, l)
    }
    fn cuda_fwd(&self, x: &CudaStorage, l: &Layout) -> Result<(CudaStorage, Shape)> {
        self.0.cuda_fwd(x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        self.0.metal_fwd(x, l)
    }
    fn bwd(&self, _: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let (out, cols) = self.0.shape().dims2()?;
        let rows = (PANEL / cols.max(1)).clamp(1, out.max(1));
        let data = self.0.data()?;
        let mut dx: Option<Tensor> = None;
        for start in (0..out).step_by(rows) {
            let panel = self::rows(&self.0, &data, start, rows.min(out - start))?.t()?;
            let g = g.narrow(D::Minus1, start, panel.dim(1)?)?;
            dx = Some(match dx {
                None => scaled(&g, &panel, 1.0)?,
                Some(dx) => up::up_add(&dx, &g, &panel, 1.0)?,
            });
        }
        Ok(dx)
    }
}

/// So many rows of a quantised weight, as f32; `data` is what [`QTensor::data`] gives.
pub(crate) fn rows(w: &QTensor, data: &[u8], start: usize, count: usize) -> Result<Tensor> {
    let (dtype, cols) = (w.dtype(), w.shape().dims()[1]);
    let bytes = cols / dtype.block_size() * dtype.type_size();
    let rows = Cow::Borrowed(&data[start * bytes..(start + count) * bytes]);
    let values = dtype.from_data(rows).dequantize(count * cols)?;
    Tensor::from_slice(values.as_slice::<f32>()?, (count, cols), &w.device())
}
