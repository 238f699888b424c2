//! `MPSMatrixSoftMax`, `MPSMatrixLogSoftMax` and their gradients

use super::{available, Batch, Encoding, Matrix, Origin};
use crate::command_buffer::CommandBuffer;

/// result = softmax or log-softmax of each row
#[derive(Clone, Debug)]
pub struct SoftMax {
    pub log: bool,
    /// `usize::MAX` for all there are.
    pub rows: usize,
    pub columns: usize,
    pub source_origin: Origin,
    pub result_origin: Origin,
    pub batch: Batch,
}

impl SoftMax {
    pub fn new(log: bool) -> Self {
        Self {
            log,
            rows: usize::MAX,
            columns: usize::MAX,
            source_origin: Origin::default(),
            result_origin: Origin::default(),
            batch: Batch::default(),
        }
    }

    pub fn encode(&self, buffer: &CommandBuffer, input: &Matrix, result: &Matrix) {
        let name = if self.log {
            "MPSMatrixLogSoftMax"
        } else {
            "MPSMatrixSoftMax"
        };
        let mut encoding = Encoding::new(buffer, name);
        let rows = available(self.rows, self.source_origin.row, input.descriptor.rows);
        let columns = available(
            self.columns,
            self.source_origin.column,
            input.descriptor.columns,
        );
        encoding.require(rows > 0 && columns > 0, || {
            format!("{rows}×{columns} elements are empty")
        });
        let x = encoding.region("the input matrix", input, self.source_origin, rows, columns);
        let y = encoding.region(
            "the result matrix",
            result,
            self.result_origin,
            rows,
            columns,
        );
        let batch = encoding.batch(self.batch, &[input, result]);
        encoding.require_float(&[
            ("the input matrix", input.descriptor.data_type),
            ("the result matrix", result.descriptor.data_type),
        ]);

        let (log, input, result) = (self.log, x.clone(), y.clone());
        encoding.finish(batch, &[&x], &y, move |index| {
            let mut values = input.load(index);
            values
                .chunks_exact_mut(columns)
                .for_each(|row| softmax(row, log));
            result.store(index, &values);
        });
    }
}

fn softmax(row: &mut [f32], log: bool) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = row.iter().map(|value| (value - largest).exp()).sum();
    for value in row {
        *value = if log {
            *value - largest - sum.ln()
        } else {
            (*value - largest).exp() / sum
        };
    }
}

/// The gradient of a softmax: y · (g − Σ g·y); of a log-softmax: g − exp(y) · Σ g
#[derive(Clone, Debug)]
pub struct SoftMaxGradient {
    pub log: bool,
    /// `usize::MAX` for all there are.
    pub rows: usize,
    pub columns: usize,
    pub gradient_origin: Origin,
    pub output_origin: Origin,
    pub result_origin: Origin,
    pub batch: Batch,
}

impl SoftMaxGradient {
    pub fn new(log: bool) -> Self {
        Self {
            log,
            rows: usize::MAX,
            columns: usize::MAX,
            gradient_origin: Origin::default(),
            output_origin: Origin::default(),
            result_origin: Origin::default(),
            batch: Batch::default(),
        }
    }

    pub fn encode(
        &self,
        buffer: &CommandBuffer,
        gradient: &Matrix,
        output: &Matrix,
        result: &Matrix,
    ) {
        let name = if self.log {
            "MPSMatrixLogSoftMaxGradient"
        } else {
            "MPSMatrixSoftMaxGradient"
        };
        let mut encoding = Encoding::new(buffer, name);
        let fit = |wanted, gradient_start, output_start, gradient_has, output_has| {
            available(
                available(wanted, gradient_start, gradient_has),
                output_start,
                output_has,
            )
        };
        let (g, y) = (gradient.descriptor, output.descriptor);
        let rows = fit(
            self.rows,
            self.gradient_origin.row,
            self.output_origin.row,
            g.rows,
            y.rows,
        );
        let columns = fit(
            self.columns,
            self.gradient_origin.column,
            self.output_origin.column,
            g.columns,
            y.columns,
        );
        encoding.require(rows > 0 && columns > 0, || {
            format!("{rows}×{columns} elements are empty")
        });
        let dy = encoding.region(
            "the gradient matrix",
            gradient,
            self.gradient_origin,
            rows,
            columns,
        );
        let y = encoding.region(
            "the forward output",
            output,
            self.output_origin,
            rows,
            columns,
        );
        let dx = encoding.region(
            "the result matrix",
            result,
            self.result_origin,
            rows,
            columns,
        );
        let batch = encoding.batch(self.batch, &[gradient, output, result]);
        encoding.require_float(&[
            ("the gradient matrix", gradient.descriptor.data_type),
            ("the forward output", output.descriptor.data_type),
            ("the result matrix", result.descriptor.data_type),
        ]);

        let (log, gradient, output, result) = (self.log, dy.clone(), y.clone(), dx.clone());
        encoding.finish(batch, &[&dy, &y], &dx, move |index| {
            let mut values = gradient.load(index);
            let output = output.load(index);
            for (g, y) in values
                .chunks_exact_mut(columns)
                .zip(output.chunks_exact(columns))
            {
                backward(g, y, log);
            }
            result.store(index, &values);
        });
    }
}

fn backward(g: &mut [f32], y: &[f32], log: bool) {
    if log {
        let sum: f32 = g.iter().sum();
        g.iter_mut().zip(y).for_each(|(g, y)| *g -= y.exp() * sum);
    } else {
        let sum: f32 = g.iter().zip(y).map(|(g, y)| g * y).sum();
        g.iter_mut().zip(y).for_each(|(g, y)| *g = y * (*g - sum));
    }
}
