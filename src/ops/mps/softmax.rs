//! Softmax over the last dim by `MPSMatrixSoftMax`; the backward pass is that of [`ops::softmax`](crate::ops::softmax).
//!
//! NaN and rows of −∞ give NaN on softmetal, as [`ops::softmax`](crate::ops::softmax) does; Apple documents neither.

use super::{apply, check_dtypes, not_on_the_cpu, Rows};
use crate::check;
use crate::metal::mps::{session, Matrix, SoftMax};
use crate::metal::{alloc, finish};
use crate::op::{custom_op, signature, Args, Grads, Op, OpResult, Spec};
use crate::ops::softmax::grad_x;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, MetalStorage, Result, Tensor};

const NAME: &str = "mps_softmax";

/// Softmax over the last dim of an f32 or f16 tensor on Metal, of any layout.
///
/// [`ops::softmax_last_dim`](crate::ops::softmax_last_dim) does not wait for the GPU, and takes bf16 and other devices.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    apply(NAME, MpsSoftmax, &[x])
}

/// [`softmax`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct MpsSoftmax;

custom_op!(MpsSoftmax: CustomOp1);

impl Op for MpsSoftmax {
    signature!(NAME(x));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_dtypes(name, Self::ARGS, args)?;
        check::has_dims(name, args[0].layout)
    }
    fn cpu(&self, _: Args<CpuStorage>) -> OpResult<CpuStorage> {
        not_on_the_cpu::<Self>()
    }
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
        let (x, l) = args[0];
        let count = l.shape().elem_count();
        let out = alloc(x.device(), count, x.dtype())?;
        if count > 0 {
            let rows = Rows::new(x, l)?;
            let input = rows.matrix();
            let result = Matrix::new(&out, x.dtype(), input.rows, input.columns);
            session(x.device(), NAME, |session| {
                session.encode(&SoftMax { input, result })
            })?;
        }
        Ok((finish(out, x.device(), count, x.dtype()), l.shape().clone()))
    }
    fn bwd(&self, inputs: &[&Tensor], y: &Tensor, g: &Tensor) -> Grads {
        Ok(vec![Some(grad_x(inputs[0].rank() - 1, false, 1.0, y, g)?)])
    }
}
