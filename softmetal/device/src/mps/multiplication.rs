//! `MPSMatrixMultiplication` and `MPSMatrixVectorMultiplication`

use super::{Batch, DataType, Encoding, Matrix, Origin, Vector};
use crate::command_buffer::CommandBuffer;

/// result = alpha · op(left) · op(right) + beta · result
#[derive(Clone, Debug)]
pub struct Multiplication {
    pub transpose_left: bool,
    pub transpose_right: bool,
    pub rows: usize,
    pub columns: usize,
    pub interior: usize,
    pub alpha: f64,
    pub beta: f64,
    pub left_origin: Origin,
    pub right_origin: Origin,
    pub result_origin: Origin,
    pub batch: Batch,
}

impl Multiplication {
    pub fn new(rows: usize, columns: usize, interior: usize) -> Self {
        Self {
            transpose_left: false,
            transpose_right: false,
            rows,
            columns,
            interior,
            alpha: 1.0,
            beta: 0.0,
            left_origin: Origin::default(),
            right_origin: Origin::default(),
            result_origin: Origin::default(),
            batch: Batch::default(),
        }
    }

    pub fn encode(&self, buffer: &CommandBuffer, left: &Matrix, right: &Matrix, result: &Matrix) {
        let mut encoding = Encoding::new(buffer, "MPSMatrixMultiplication");
        let (m, n, k) = (self.rows, self.columns, self.interior);
        encoding.require(m > 0 && n > 0 && k > 0, || {
            format!("a product of {m}×{k} and {k}×{n} is empty")
        });
        let shape = |transposed, rows, columns| {
            if transposed {
                (columns, rows)
            } else {
                (rows, columns)
            }
        };
        let (rows, columns) = shape(self.transpose_left, m, k);
        let a = encoding.region("the left matrix", left, self.left_origin, rows, columns);
        let (rows, columns) = shape(self.transpose_right, k, n);
        let b = encoding.region("the right matrix", right, self.right_origin, rows, columns);
        let c = encoding.region("the result matrix", result, self.result_origin, m, n);
        let batch = encoding.batch(self.batch, &[left, right, result]);
        check_types(
            &mut encoding,
            left.descriptor.data_type,
            right.descriptor.data_type,
            result.descriptor.data_type,
        );
        encoding.require_apart("the left matrix", &a, &c, &batch);
        encoding.require_apart("the right matrix", &b, &c, &batch);
        let size = left.descriptor.data_type.size() as u128;
        if (m as u128 + 2 * k as u128) * n as u128 * size >= 1 << 31 {
            encoding.note(format!(
                "a product of {m}×{k} and {k}×{n} is so large that some GPUs give garbage: split it"
            ));
        }

        let (alpha, beta) = (self.alpha as f32, self.beta as f32);
        let (transpose_left, transpose_right) = (self.transpose_left, self.transpose_right);
        let mut inputs = vec![&a, &b];
        inputs.extend((beta != 0.0).then_some(&c));
        let (left, right, result) = (a.clone(), b.clone(), c.clone());
        encoding.finish(batch, &inputs, &c, move |index| {
            let a = transposed_if(transpose_left, left.load(index), k, m);
            let b = transposed_if(transpose_right, right.load(index), n, k);
            let mut product = product(&a, &b, m, n, k);
            product.iter_mut().for_each(|value| *value *= alpha);
            if beta != 0.0 {
                let old = result.load(index);
                product
                    .iter_mut()
                    .zip(old)
                    .for_each(|(value, old)| *value += beta * old);
            }
            result.store(index, &product);
        });
    }
}

/// result = alpha · op(matrix) · vector + beta · result
#[derive(Clone, Debug)]
pub struct VectorMultiplication {
    pub transpose: bool,
    pub rows: usize,
    pub columns: usize,
    pub alpha: f64,
    pub beta: f64,
    pub matrix_origin: Origin,
    pub vector_origin: Origin,
    pub result_origin: Origin,
    pub batch: Batch,
}

impl VectorMultiplication {
    pub fn new(rows: usize, columns: usize) -> Self {
        Self {
            transpose: false,
            rows,
            columns,
            alpha: 1.0,
            beta: 0.0,
            matrix_origin: Origin::default(),
            vector_origin: Origin::default(),
            result_origin: Origin::default(),
            batch: Batch::default(),
        }
    }

    pub fn encode(
        &self,
        buffer: &CommandBuffer,
        matrix: &Matrix,
        vector: &Vector,
        result: &Vector,
    ) {
        let mut encoding = Encoding::new(buffer, "MPSMatrixVectorMultiplication");
        let (m, k) = (self.rows, self.columns);
        encoding.require(m > 0 && k > 0, || {
            format!("a product of {m}×{k} and {k} is empty")
        });
        let (rows, columns) = if self.transpose { (k, m) } else { (m, k) };
        let a = encoding.region(
            "the input matrix",
            matrix,
            self.matrix_origin,
            rows,
            columns,
        );
        let (vector, result) = (vector.as_matrix(), result.as_matrix());
        let origin = along(&mut encoding, "the input vector", self.vector_origin);
        let x = encoding.region("the input vector", &vector, origin, 1, k);
        let origin = along(&mut encoding, "the result vector", self.result_origin);
        let y = encoding.region("the result vector", &result, origin, 1, m);
        let batch = encoding.batch(self.batch, &[matrix, &vector, &result]);
        check_types(
            &mut encoding,
            matrix.descriptor.data_type,
            vector.descriptor.data_type,
            result.descriptor.data_type,
        );
        encoding.require_apart("the input matrix", &a, &y, &batch);
        encoding.require_apart("the input vector", &x, &y, &batch);

        let (alpha, beta, transpose) = (self.alpha as f32, self.beta as f32, self.transpose);
        let mut inputs = vec![&a, &x];
        inputs.extend((beta != 0.0).then_some(&y));
        let (matrix, vector, result) = (a.clone(), x.clone(), y.clone());
        encoding.finish(batch, &inputs, &y, move |index| {
            let a = transposed_if(transpose, matrix.load(index), k, m);
            let mut product = product(&a, &vector.load(index), m, 1, k);
            product.iter_mut().for_each(|value| *value *= alpha);
            if beta != 0.0 {
                let old = result.load(index);
                product
                    .iter_mut()
                    .zip(old)
                    .for_each(|(value, old)| *value += beta * old);
            }
            result.store(index, &product);
        });
    }
}

/// The origin of a vector is in x, which is the row of a matrix; y and z must be 0.
fn along(encoding: &mut Encoding<'_>, name: &str, origin: Origin) -> Origin {
    encoding.require(origin.column == 0, || {
        format!("{name}: the y of its origin is {}", origin.column)
    });
    Origin {
        row: 0,
        column: origin.row,
        z: origin.z,
    }
}

fn check_types(encoding: &mut Encoding<'_>, left: DataType, right: DataType, result: DataType) {
    use DataType::{F16, F32, I16, I8};
    encoding.require(left == right, || {
        format!("the inputs are {left:?} and {right:?}")
    });
    let known = [
        (F32, F32),
        (F16, F16),
        (F16, F32),
        (I8, F16),
        (I8, F32),
        (I16, F32),
    ];
    encoding.require(known.contains(&(left, result)), || {
        format!("there is no product of {left:?} with a result of {result:?}")
    });
}

/// A matrix that was stored as `rows`×`columns`, turned if wanted.
fn transposed_if(transposed: bool, values: Vec<f32>, rows: usize, columns: usize) -> Vec<f32> {
    if !transposed {
        return values;
    }
    (0..columns)
        .flat_map(|j| (0..rows).map(move |i| (i, j)))
        .map(|(i, j)| values[i * columns + j])
        .collect()
}

pub(super) fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
    let mut c = vec![0.0; m * n];
    for (a, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
        for (a, b) in a.iter().zip(b.chunks_exact(n)) {
            c.iter_mut().zip(b).for_each(|(c, b)| *c += a * b);
        }
    }
    c
}
