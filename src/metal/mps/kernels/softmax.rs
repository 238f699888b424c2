//! `MPSMatrixSoftMax`

use super::MpsKernel;
use crate::metal::mps::cache;
use crate::metal::mps::matrix::{accesses, check_same, Matrix};
use crate::metal::mps::order::Access;
use candle_core::Result;
use objc2::runtime::ProtocolObject;
use objc2::AnyThread;
use objc2_metal::MTLCommandBuffer;
use objc2_metal_performance_shaders::MPSMatrixSoftMax;

/// The softmax of each row of the input, by `MPSMatrixSoftMax`.
#[derive(Clone, Copy, Debug)]
pub struct SoftMax<'a> {
    pub input: Matrix<'a>,
    pub result: Matrix<'a>,
}

impl<'a> MpsKernel<'a> for SoftMax<'a> {
    fn encode(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Result<()> {
        check_same("MPSMatrixSoftMax", &self.input, &self.result)?;
        let device = commands.device();
        // SAFETY: any device will do.
        let make =
            || unsafe { MPSMatrixSoftMax::initWithDevice(MPSMatrixSoftMax::alloc(), &device) };
        // SAFETY: `check_same` has accepted both.
        let (input, result) = unsafe { (self.input.matrix(), self.result.matrix()) };
        cache::with_cached_kernel(&device, [0; 6], make, |kernel: &MPSMatrixSoftMax| {
            // SAFETY: both matrices have the same shape, as was checked.
            unsafe {
                kernel.encodeToCommandBuffer_inputMatrix_resultMatrix(commands, &input, &result)
            }
        });
        Ok(())
    }

    fn accesses(&self) -> Vec<Access> {
        accesses([self.input], self.result)
    }
}
