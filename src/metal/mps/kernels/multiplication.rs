//! `MPSMatrixMultiplication` and `MPSMatrixVectorMultiplication`

use super::MpsKernel;
use crate::check;
use crate::metal::mps::cache;
use crate::metal::mps::matrix::{accesses, check_apart, Matrix};
use crate::metal::mps::order::Access;
use crate::metal::mps::policy::Product;
use candle_core::{DType, Result};
use objc2::runtime::ProtocolObject;
use objc2::AnyThread;
use objc2_metal::MTLCommandBuffer;
use objc2_metal_performance_shaders::{MPSMatrixMultiplication, MPSMatrixVectorMultiplication};

/// `result = alpha · op(left)·op(right) + beta · result`, by `MPSMatrixMultiplication`.
///
/// With a `beta` of 0 the result is not read. It may not overlap the others.
#[derive(Clone, Copy, Debug)]
pub struct Multiplication<'a> {
    pub left: Matrix<'a>,
    pub transpose_left: bool,
    pub right: Matrix<'a>,
    pub transpose_right: bool,
    pub result: Matrix<'a>,
    pub alpha: f64,
    pub beta: f64,
}

impl<'a> Multiplication<'a> {
    /// `result = left·right`
    pub fn new(left: Matrix<'a>, right: Matrix<'a>, result: Matrix<'a>) -> Self {
        Self {
            left,
            transpose_left: false,
            right,
            transpose_right: false,
            result,
            alpha: 1.0,
            beta: 0.0,
        }
    }

    fn check(&self) -> Result<Product> {
        const OP: &str = "MPSMatrixMultiplication";
        let &Self {
            left,
            right,
            result,
            ..
        } = self;
        left.check(OP, "left")?;
        right.check(OP, "right")?;
        result.check(OP, "result")?;
        let (m, k) = left.shape(self.transpose_left);
        let (inner, n) = right.shape(self.transpose_right);
        if inner != k || result.shape(false) != (m, n) {
            let what = format!(
                "{m}×{k} by {inner}×{n} to {}×{} given, m×k by k×n to m×n accepted",
                result.rows, result.columns
            );
            return Err(check::error(OP, what));
        }
        check_kinds(OP, &[left, right], result)?;
        let product = Product {
            matrices: result.matrices,
            m,
            n,
            k,
        };
        if !product.fits(result.dtype) {
            let what = format!(
                "{m}×{k} by {k}×{n} given, less than 2^31 bytes of (m + 2k)·n elements accepted"
            );
            return Err(check::error(OP, what));
        }
        Ok(product)
    }
}

impl<'a> MpsKernel<'a> for Multiplication<'a> {
    fn encode(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Result<()> {
        let Product { m, n, k, .. } = self.check()?;
        let &Self {
            transpose_left,
            transpose_right,
            alpha,
            beta,
            ..
        } = self;
        let device = commands.device();
        let flags = u64::from(transpose_left) | u64::from(transpose_right) << 1;
        let [m_, n_, k_] = [m, n, k].map(|size| size as u64);
        let shape = [flags, m_, n_, k_, alpha.to_bits(), beta.to_bits()];
        let make = || {
            let kernel = MPSMatrixMultiplication::alloc();
            // SAFETY: no size is 0, for `check` refuses empty matrices.
            unsafe {
                MPSMatrixMultiplication::initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta(
                    kernel, &device, transpose_left, transpose_right, m, n, k, alpha, beta,
                )
            }
        };
        // SAFETY: `check` has accepted the matrices, and they have the sizes of the kernel.
        cache::with_cached_kernel(&device, shape, make, |kernel| unsafe {
            let [left, right, result] = [self.left, self.right, self.result].map(|x| x.matrix());
            kernel.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix(
                commands, &left, &right, &result,
            )
        });
        Ok(())
    }

    fn accesses(&self) -> Vec<Access> {
        accesses([self.left, self.right], self.result)
    }
}

/// `result = alpha · op(matrix)·vector + beta · result`, by `MPSMatrixVectorMultiplication`; vectors are matrices of one
/// row.
///
/// With a `beta` of 0 the result is not read. It may not overlap the others.
#[derive(Clone, Copy, Debug)]
pub struct VectorMultiplication<'a> {
    pub matrix: Matrix<'a>,
    pub transpose: bool,
    pub vector: Matrix<'a>,
    pub result: Matrix<'a>,
    pub alpha: f64,
    pub beta: f64,
}

impl<'a> VectorMultiplication<'a> {
    /// `result = matrix·vector`
    pub fn new(matrix: Matrix<'a>, vector: Matrix<'a>, result: Matrix<'a>) -> Self {
        Self {
            matrix,
            transpose: false,
            vector,
            result,
            alpha: 1.0,
            beta: 0.0,
        }
    }
}

impl<'a> MpsKernel<'a> for VectorMultiplication<'a> {
    fn encode(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Result<()> {
        const OP: &str = "MPSMatrixVectorMultiplication";
        let &Self {
            matrix,
            transpose,
            vector,
            result,
            alpha,
            beta,
        } = self;
        matrix.check(OP, "matrix")?;
        let (rows, columns) = matrix.shape(transpose);
        vector.check_vector(OP, "vector", columns)?;
        result.check_vector(OP, "result", rows)?;
        check_kinds(OP, &[matrix, vector], result)?;

        let device = commands.device();
        let [rows_, columns_] = [rows, columns].map(|size| size as u64);
        let flag = u64::from(transpose);
        let shape = [flag, rows_, columns_, 0, alpha.to_bits(), beta.to_bits()];
        let make = || {
            let kernel = MPSMatrixVectorMultiplication::alloc();
            // SAFETY: no size is 0, for `check` refuses empty matrices.
            unsafe {
                MPSMatrixVectorMultiplication::initWithDevice_transpose_rows_columns_alpha_beta(
                    kernel, &device, transpose, rows, columns, alpha, beta,
                )
            }
        };
        // SAFETY: all were accepted above, and have the sizes of the kernel.
        cache::with_cached_kernel(&device, shape, make, |kernel| unsafe {
            kernel.encodeToCommandBuffer_inputMatrix_inputVector_resultVector(
                commands,
                &matrix.matrix(),
                &vector.vector(),
                &result.vector(),
            )
        });
        Ok(())
    }

    fn accesses(&self) -> Vec<Access> {
        accesses([self.matrix, self.vector], self.result)
    }
}

/// One dtype and one number of matrices, and a result apart from the inputs.
fn check_kinds(op: &str, inputs: &[Matrix], result: Matrix) -> Result<()> {
    for input in inputs {
        // Inputs of f16 may give a result of f32.
        let wider = result.dtype == DType::F32 && inputs.iter().all(|x| x.dtype == DType::F16);
        if !(input.dtype == result.dtype || wider) || input.matrices != result.matrices {
            let kind = |x: &Matrix| format!("{} matrices of {:?}", x.matrices, x.dtype);
            let what = format!(
                "{} give {}, as many of the same dtype, or f32 of f16, accepted",
                kind(input),
                kind(&result)
            );
            return Err(check::error(op, what));
        }
        check_apart(op, input, &result)?;
    }
    Ok(())
}
