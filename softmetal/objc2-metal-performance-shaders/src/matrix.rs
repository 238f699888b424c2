//! Matrices and vectors in buffers.

use crate::types::MPSDataType;
use objc2::object::{self, State};
use objc2::rc::{Allocated, Retained};
use objc2::runtime::{NSObject, ProtocolObject};
use objc2::Message;
use objc2_metal::{softmetal as objects, MTLBuffer, MTLCommandBuffer, MTLDevice, MTLResource};
use softmetal::mps::{Matrix, MatrixDescriptor, Vector, VectorDescriptor};
use std::cell::Cell;

struct MatrixShape(Cell<MatrixDescriptor>);
impl State for MatrixShape {}

objc2::class!(
    /// The shape of a matrix, or of several.
    MPSMatrixDescriptor: NSObject, MatrixShape
);

impl MPSMatrixDescriptor {
    pub unsafe fn matrixDescriptorWithRows_columns_rowBytes_dataType(
        rows: usize,
        columns: usize,
        row_bytes: usize,
        data_type: MPSDataType,
    ) -> Retained<Self> {
        let data_type = data_type.get();
        let matrix_bytes = rows.saturating_mul(row_bytes);
        let shape = MatrixDescriptor {
            rows,
            columns,
            matrices: 1,
            row_bytes,
            matrix_bytes,
            data_type,
        };
        object::new(MatrixShape(Cell::new(shape)))
    }

    #[deprecated]
    pub unsafe fn matrixDescriptorWithDimensions_columns_rowBytes_dataType(
        rows: usize,
        columns: usize,
        row_bytes: usize,
        data_type: MPSDataType,
    ) -> Retained<Self> {
        // SAFETY: nothing is asked of the caller.
        unsafe {
            Self::matrixDescriptorWithRows_columns_rowBytes_dataType(
                rows, columns, row_bytes, data_type,
            )
        }
    }

    pub unsafe fn matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType(
        rows: usize,
        columns: usize,
        matrices: usize,
        row_bytes: usize,
        matrix_bytes: usize,
        data_type: MPSDataType,
    ) -> Retained<Self> {
        let data_type = data_type.get();
        let shape = MatrixDescriptor {
            rows,
            columns,
            matrices,
            row_bytes,
            matrix_bytes,
            data_type,
        };
        object::new(MatrixShape(Cell::new(shape)))
    }

    pub unsafe fn rowBytesForColumns_dataType(columns: usize, data_type: MPSDataType) -> usize {
        MatrixDescriptor::recommended_row_bytes(columns, data_type.get())
    }

    #[deprecated]
    pub unsafe fn rowBytesFromColumns_dataType(columns: usize, data_type: MPSDataType) -> usize {
        MatrixDescriptor::recommended_row_bytes(columns, data_type.get())
    }

    pub unsafe fn rows(&self) -> usize {
        self.get().rows
    }

    pub unsafe fn setRows(&self, rows: usize) {
        self.state().0.set(MatrixDescriptor { rows, ..self.get() });
    }

    pub unsafe fn columns(&self) -> usize {
        self.get().columns
    }

    pub unsafe fn setColumns(&self, columns: usize) {
        self.state().0.set(MatrixDescriptor {
            columns,
            ..self.get()
        });
    }

    pub unsafe fn matrices(&self) -> usize {
        self.get().matrices
    }

    pub unsafe fn rowBytes(&self) -> usize {
        self.get().row_bytes
    }

    pub unsafe fn setRowBytes(&self, row_bytes: usize) {
        self.state().0.set(MatrixDescriptor {
            row_bytes,
            ..self.get()
        });
    }

    pub unsafe fn matrixBytes(&self) -> usize {
        self.get().matrix_bytes
    }

    pub unsafe fn dataType(&self) -> MPSDataType {
        MPSDataType::from(self.get().data_type)
    }

    pub unsafe fn setDataType(&self, data_type: MPSDataType) {
        self.state().0.set(MatrixDescriptor {
            data_type: data_type.get(),
            ..self.get()
        });
    }

    fn get(&self) -> MatrixDescriptor {
        self.state().0.get()
    }
}

struct VectorShape(Cell<VectorDescriptor>);
impl State for VectorShape {}

objc2::class!(
    /// The shape of a vector, or of several.
    MPSVectorDescriptor: NSObject, VectorShape
);

impl MPSVectorDescriptor {
    pub unsafe fn vectorDescriptorWithLength_dataType(
        length: usize,
        data_type: MPSDataType,
    ) -> Retained<Self> {
        let data_type = data_type.get();
        let vector_bytes = length.saturating_mul(data_type.size());
        let shape = VectorDescriptor {
            length,
            vectors: 1,
            vector_bytes,
            data_type,
        };
        object::new(VectorShape(Cell::new(shape)))
    }

    pub unsafe fn vectorDescriptorWithLength_vectors_vectorBytes_dataType(
        length: usize,
        vectors: usize,
        vector_bytes: usize,
        data_type: MPSDataType,
    ) -> Retained<Self> {
        let data_type = data_type.get();
        let shape = VectorDescriptor {
            length,
            vectors,
            vector_bytes,
            data_type,
        };
        object::new(VectorShape(Cell::new(shape)))
    }

    pub unsafe fn vectorBytesForLength_dataType(length: usize, data_type: MPSDataType) -> usize {
        MatrixDescriptor::recommended_row_bytes(length, data_type.get())
    }

    pub unsafe fn length(&self) -> usize {
        self.state().0.get().length
    }

    pub unsafe fn vectors(&self) -> usize {
        self.state().0.get().vectors
    }

    pub unsafe fn vectorBytes(&self) -> usize {
        self.state().0.get().vector_bytes
    }

    pub unsafe fn dataType(&self) -> MPSDataType {
        MPSDataType::from(self.state().0.get().data_type)
    }
}

/// What both matrices and vectors have, and how they are made.
macro_rules! array {
    ($class:ident, $state:ident, $array:ident, $descriptor:ident) => {
        pub(crate) struct $state {
            array: $array,
            data: Retained<ProtocolObject<dyn MTLBuffer>>,
        }
        impl State for $state {}

        impl $class {
            pub unsafe fn initWithBuffer_descriptor(
                this: Allocated<Self>,
                buffer: &ProtocolObject<dyn MTLBuffer>,
                descriptor: &$descriptor,
            ) -> Retained<Self> {
                // SAFETY: nothing is asked of the caller.
                unsafe { Self::initWithBuffer_offset_descriptor(this, buffer, 0, descriptor) }
            }

            pub unsafe fn initWithBuffer_offset_descriptor(
                _this: Allocated<Self>,
                buffer: &ProtocolObject<dyn MTLBuffer>,
                offset: usize,
                descriptor: &$descriptor,
            ) -> Retained<Self> {
                let descriptor = descriptor.state().0.get();
                let array = $array {
                    buffer: objects::buffer(buffer).clone(),
                    offset,
                    descriptor,
                };
                object::new($state {
                    array,
                    data: Message::retain(buffer),
                })
            }

            /// Panics if there is not enough memory, as the real one does for a nil.
            pub unsafe fn initWithDevice_descriptor(
                _this: Allocated<Self>,
                device: &ProtocolObject<dyn MTLDevice>,
                descriptor: &$descriptor,
            ) -> Retained<Self> {
                let array = $array::allocate(objects::device(device), descriptor.state().0.get());
                let array =
                    array.expect("softmetal: a matrix or vector that is empty or too large");
                let data = objects::wrap_buffer(array.buffer.clone());
                object::new($state { array, data })
            }

            pub unsafe fn data(&self) -> Retained<ProtocolObject<dyn MTLBuffer>> {
                self.state().data.clone()
            }

            pub unsafe fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>> {
                self.state().data.device()
            }

            pub unsafe fn offset(&self) -> usize {
                self.state().array.offset
            }

            pub unsafe fn dataType(&self) -> MPSDataType {
                MPSDataType::from(self.state().array.descriptor.data_type)
            }

            pub unsafe fn resourceSize(&self) -> usize {
                self.state().array.buffer.length()
            }

            /// Brings managed memory to the host's side. There is only one side here.
            pub unsafe fn synchronizeOnCommandBuffer(
                &self,
                command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
            ) {
                objects::command_buffer(command_buffer);
            }

            pub(crate) fn get(&self) -> &$array {
                &self.state().array
            }
        }
    };
}

objc2::class!(
    /// A matrix, or several.
    MPSMatrix: NSObject, MatrixState
);
array!(MPSMatrix, MatrixState, Matrix, MPSMatrixDescriptor);

impl MPSMatrix {
    pub unsafe fn rows(&self) -> usize {
        self.get().descriptor.rows
    }

    pub unsafe fn columns(&self) -> usize {
        self.get().descriptor.columns
    }

    pub unsafe fn matrices(&self) -> usize {
        self.get().descriptor.matrices
    }

    pub unsafe fn rowBytes(&self) -> usize {
        self.get().descriptor.row_bytes
    }

    pub unsafe fn matrixBytes(&self) -> usize {
        self.get().descriptor.matrix_bytes
    }
}

objc2::class!(
    /// A vector, or several.
    MPSVector: NSObject, VectorState
);
array!(MPSVector, VectorState, Vector, MPSVectorDescriptor);

impl MPSVector {
    pub unsafe fn length(&self) -> usize {
        self.get().descriptor.length
    }

    pub unsafe fn vectors(&self) -> usize {
        self.get().descriptor.vectors
    }

    pub unsafe fn vectorBytes(&self) -> usize {
        self.get().descriptor.vector_bytes
    }
}
