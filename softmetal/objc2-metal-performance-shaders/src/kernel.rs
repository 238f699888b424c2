//! What all kernels have.

use crate::types::MPSKernelOptions;
use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::{NSObject, ProtocolObject};
use objc2::Message;
use objc2_foundation::NSString;
use objc2_metal::{MTLDevice, MTLOrigin};
use softmetal::mps::{self, Batch, Origin};
use std::cell::{Cell, RefCell};

/// A kernel of any class.
pub(crate) struct KernelState {
    label: RefCell<Option<Retained<NSString>>>,
    options: Cell<MPSKernelOptions>,
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    pub(crate) primary: Cell<MTLOrigin>,
    pub(crate) secondary: Cell<MTLOrigin>,
    pub(crate) result: Cell<MTLOrigin>,
    pub(crate) batch_start: Cell<usize>,
    pub(crate) batch_size: Cell<usize>,
    pub(crate) kernel: Kernel,
}

/// What is special about a class.
pub(crate) enum Kernel {
    Multiplication(mps::Multiplication),
    VectorMultiplication(mps::VectorMultiplication),
    SoftMax(RefCell<mps::SoftMax>),
    SoftMaxGradient(RefCell<mps::SoftMaxGradient>),
    Neuron(RefCell<mps::Neuron>),
    FullyConnected(RefCell<mps::FullyConnected>),
}

impl State for KernelState {}

impl KernelState {
    pub(crate) fn make<T: Message>(
        device: &ProtocolObject<dyn MTLDevice>,
        kernel: Kernel,
    ) -> Retained<T> {
        object::new(Self {
            label: RefCell::default(),
            options: Cell::default(),
            device: Message::retain(device),
            primary: Cell::default(),
            secondary: Cell::default(),
            result: Cell::default(),
            batch_start: Cell::new(0),
            batch_size: Cell::new(usize::MAX),
            kernel,
        })
    }

    pub(crate) fn batch(&self) -> Batch {
        Batch {
            start: self.batch_start.get(),
            size: self.batch_size.get(),
        }
    }
}

pub(crate) fn origin(cell: &Cell<MTLOrigin>) -> Origin {
    let MTLOrigin { x, y, z } = cell.get();
    Origin {
        row: x,
        column: y,
        z,
    }
}

/// Getters and setters of plain properties.
macro_rules! properties {
    ($class:ident { $($get:ident, $set:ident: $field:ident $type:ty;)* }) => {
        impl $class {
            $(
                pub unsafe fn $get(&self) -> $type {
                    self.state().$field.get()
                }

                pub unsafe fn $set(&self, value: $type) {
                    self.state().$field.set(value);
                }
            )*
        }
    };
}
pub(crate) use properties;

objc2::class!(
    /// A kernel.
    MPSKernel: NSObject, KernelState
);

impl MPSKernel {
    pub unsafe fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>> {
        self.state().device.clone()
    }

    pub unsafe fn label(&self) -> Option<Retained<NSString>> {
        self.state().label.borrow().clone()
    }

    pub unsafe fn setLabel(&self, label: Option<&NSString>) {
        *self.state().label.borrow_mut() = label.map(Message::retain);
    }
}

properties!(MPSKernel { options, setOptions: options MPSKernelOptions; });

objc2::class!(
    /// A kernel with one matrix for input.
    MPSMatrixUnaryKernel: MPSKernel, KernelState
);

properties!(MPSMatrixUnaryKernel {
    sourceMatrixOrigin, setSourceMatrixOrigin: primary MTLOrigin;
    resultMatrixOrigin, setResultMatrixOrigin: result MTLOrigin;
    batchStart, setBatchStart: batch_start usize;
    batchSize, setBatchSize: batch_size usize;
});

objc2::class!(
    /// A kernel with two matrices for input.
    MPSMatrixBinaryKernel: MPSKernel, KernelState
);

properties!(MPSMatrixBinaryKernel {
    primarySourceMatrixOrigin, setPrimarySourceMatrixOrigin: primary MTLOrigin;
    secondarySourceMatrixOrigin, setSecondarySourceMatrixOrigin: secondary MTLOrigin;
    resultMatrixOrigin, setResultMatrixOrigin: result MTLOrigin;
    batchStart, setBatchStart: batch_start usize;
    batchSize, setBatchSize: batch_size usize;
});
