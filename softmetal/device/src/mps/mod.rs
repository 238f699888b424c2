//! Metal Performance Shaders: the kernels for matrices, computed by the host's own arithmetic.
//!
//! Every kernel checks what Apple documents of its arguments when it is encoded; MPS itself aborts the process there.
//! Sums are taken in f32.

mod array;
mod multiplication;
mod neuron;
mod softmax;

pub use array::{DataType, Matrix, MatrixDescriptor, Vector, VectorDescriptor};
pub use multiplication::{Multiplication, VectorMultiplication};
pub use neuron::{FullyConnected, Neuron, NeuronKind};
pub use softmax::{SoftMax, SoftMaxGradient};

use crate::command::{Command, HostWork, Pass, PassKind};
use crate::command_buffer::CommandBuffer;
use crate::finding::{kind, Finding};
use array::Region;
use std::ops::Range;

/// Where in a matrix a kernel starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub row: usize,
    pub column: usize,
    /// Must be 0.
    pub z: usize,
}

/// Which matrices of a batch a kernel works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub start: usize,
    /// `usize::MAX` for all there are.
    pub size: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            start: 0,
            size: usize::MAX,
        }
    }
}

/// A kernel while its arguments are checked.
struct Encoding<'a> {
    buffer: &'a CommandBuffer,
    kernel: &'static str,
    fails: bool,
}

impl<'a> Encoding<'a> {
    fn new(buffer: &'a CommandBuffer, kernel: &'static str) -> Self {
        Self {
            buffer,
            kernel,
            fails: false,
        }
    }

    /// Reports a condition that is not met.
    fn require(&mut self, condition: bool, otherwise: impl FnOnce() -> String) {
        if !condition {
            self.fails = true;
            self.buffer
                .misuse(Finding::new(kind::MPS, otherwise()).in_kernel(self.kernel));
        }
    }

    fn note(&self, text: String) {
        self.buffer
            .misuse(Finding::new(kind::MPS, text).in_kernel(self.kernel).note());
    }

    /// A part of a matrix that must be there.
    fn region(
        &mut self,
        name: &str,
        matrix: &Matrix,
        origin: Origin,
        rows: usize,
        columns: usize,
    ) -> Region {
        for problem in matrix.problems() {
            self.require(false, || format!("{name}: {problem}"));
        }
        self.require(origin.z == 0, || {
            format!("{name}: the z of its origin is {}", origin.z)
        });
        let fits = |start: usize, size: usize, has: usize| {
            start.checked_add(size).is_some_and(|end| end <= has)
        };
        let MatrixDescriptor {
            rows: has_rows,
            columns: has_columns,
            ..
        } = matrix.descriptor;
        self.require(
            fits(origin.row, rows, has_rows) && fits(origin.column, columns, has_columns),
            || {
                format!(
                    "{name}: {rows}×{columns} elements from ({}, {}) on are not in {has_rows}×{has_columns}",
                    origin.row, origin.column
                )
            },
        );
        Region {
            matrix: matrix.clone(),
            row: origin.row,
            column: origin.column,
            rows,
            columns,
        }
    }

    /// The matrices to work on, which all arguments must have.
    fn batch(&mut self, batch: Batch, matrices: &[&Matrix]) -> Range<usize> {
        let has = matrices
            .iter()
            .map(|matrix| matrix.descriptor.matrices)
            .min()
            .unwrap_or(0);
        let end = match batch.size {
            usize::MAX => has,
            size => batch.start.saturating_add(size),
        };
        self.require(batch.start < end && end <= has, || {
            format!("matrices {}..{end} of a batch of {has}", batch.start)
        });
        batch.start..end
    }

    fn require_apart(&mut self, name: &str, input: &Region, result: &Region, batch: &Range<usize>) {
        let same = std::sync::Arc::ptr_eq(&input.matrix.buffer, &result.matrix.buffer);
        let overlap =
            same && !self.fails && input.ranges(batch).overlap(&result.ranges(batch)).is_some();
        self.require(!overlap, || format!("the result overlaps {name}"));
    }

    fn require_float(&mut self, matrices: &[(&str, DataType)]) {
        let (first, kind) = matrices[0];
        self.require(matches!(kind, DataType::F32 | DataType::F16), || {
            format!("{first} is {kind:?}: expected F32 or F16")
        });
        for (name, other) in &matrices[1..] {
            self.require(*other == kind, || {
                format!("{name} is {other:?} and {first} is {kind:?}")
            });
        }
    }

    /// Adds the kernel to the command buffer, as an encoder of its own.
    fn finish(
        self,
        batch: Range<usize>,
        inputs: &[&Region],
        result: &Region,
        work: impl Fn(usize) + Send + 'static,
    ) {
        if self.fails {
            return;
        }
        let reads: Vec<_> = inputs
            .iter()
            .map(|input| (input.matrix.buffer.clone(), input.ranges(&batch)))
            .collect();
        let writes = vec![(result.matrix.buffer.clone(), result.ranges(&batch))];
        let (inputs, outputs, kernel) = (reads.clone(), writes.clone(), self.kernel);
        let work = move || {
            let missing = inputs.iter().find_map(|(buffer, ranges)| {
                let range = ranges
                    .iter()
                    .find(|range| !buffer.memory().is_initialised((*range).clone()))?;
                Some((buffer, range.clone()))
            });
            if let Some((buffer, range)) =
                missing.filter(|(buffer, _)| buffer.device().settings.check)
            {
                let detail = format!("bytes in {range:?} of {buffer} were never written");
                let finding = Finding::new(kind::UNINITIALISED, detail).in_kernel(kernel);
                return Err(finding.at_offset(range.start).into());
            }
            batch.clone().for_each(&work);
            for (buffer, ranges) in &outputs {
                ranges
                    .iter()
                    .for_each(|range| buffer.memory().mark_initialised(range.clone()));
            }
            Ok(())
        };
        let work = HostWork {
            name: kernel.to_string(),
            reads,
            writes,
            work: Box::new(work),
        };
        let commands = vec![Command::Host(Box::new(work))];
        self.buffer.encode(
            "a Metal Performance Shader",
            Pass {
                kind: PassKind::Serial,
                commands,
            },
        );
    }
}

/// How many of `wanted` there are from `start` on.
fn available(wanted: usize, start: usize, has: usize) -> usize {
    wanted.min(has.saturating_sub(start))
}
