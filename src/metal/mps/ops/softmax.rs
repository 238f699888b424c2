//! Softmax over the last dim by `MPSMatrixSoftMax`; the backward pass is that of [`ops::softmax`](crate::ops::softmax).
//!
//! NaN and rows of −∞ give NaN on softmetal, as [`ops::softmax`](crate::ops::softmax) does; Apple documents neither.

use super::{check_dtype, check_tensor, not_on_metal, Rows};
use crate::metal::mps::{visit, Matrix, SoftMax};
use crate::metal::{alloc, finish};
use crate::ops::softmax::SoftmaxBwd;
use crate::{apply, check};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Tensor};

const NAME: &str = "mps_softmax";

/// Softmax over the last dim of an f32 or f16 tensor on Metal, of any layout.
///
/// [`ops::softmax_last_dim`](crate::ops::softmax_last_dim) does not wait for the GPU, and takes bf16 and other devices.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    check::has_dims(NAME, x)?;
    check_tensor(NAME, x)?;
    apply::op1(x, MpsSoftmax)
}

/// [`softmax`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct MpsSoftmax;

impl CustomOp1 for MpsSoftmax {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Err(not_on_metal(NAME, "the CPU"))
    }
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        check_dtype(NAME, x.dtype())?;
        let count = l.shape().elem_count();
        let out = alloc(x.device(), count, x.dtype())?;
        if count > 0 {
            let rows = Rows::new(x, l)?;
            let input = rows.matrix();
            let result = Matrix::new(&out, x.dtype(), input.rows, input.columns);
            visit(x.device(), NAME, |visit| {
                visit.step(&SoftMax { input, result })
            })?;
        }
        Ok((finish(out, x.device(), count, x.dtype()), l.shape().clone()))
    }
    fn bwd(&self, x: &Tensor, y: &Tensor, grad_out: &Tensor) -> Result<Option<Tensor>> {
        let op = SoftmaxBwd {
            dim: x.rank() - 1,
            log: false,
            scale: 1.0,
        };
        apply::op2(y, grad_out, op).map(Some)
    }
}
