//! Plain types.

use softmetal::mps::{DataType, NeuronKind};

/// The type of an element.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MPSDataType(pub u32);

const FLOAT: u32 = 0x1000_0000;
const SIGNED: u32 = 0x2000_0000;
const ALTERNATE: u32 = 0x8000_0000;

impl MPSDataType {
    pub const Float32: Self = Self(FLOAT | 32);
    pub const Float16: Self = Self(FLOAT | 16);
    pub const BFloat16: Self = Self(ALTERNATE | FLOAT | 16);
    pub const Int8: Self = Self(SIGNED | 8);
    pub const Int16: Self = Self(SIGNED | 16);
    pub const Int32: Self = Self(SIGNED | 32);
    pub const Int64: Self = Self(SIGNED | 64);
    pub const UInt8: Self = Self(8);
    pub const UInt16: Self = Self(16);
    pub const UInt32: Self = Self(32);
    pub const Bool: Self = Self(ALTERNATE | 8);

    /// Panics for types that matrices don't have, where the real framework ends the process.
    pub(crate) fn get(self) -> DataType {
        match self {
            Self::Float32 => DataType::F32,
            Self::Float16 => DataType::F16,
            Self::BFloat16 => DataType::BF16,
            Self::Int8 => DataType::I8,
            Self::Int16 => DataType::I16,
            Self::Int32 => DataType::I32,
            Self::Int64 => DataType::I64,
            Self::UInt8 => DataType::U8,
            Self::UInt16 => DataType::U16,
            Self::UInt32 => DataType::U32,
            Self::Bool => DataType::Bool,
            Self(other) => {
                panic!("softmetal: matrices of MPS data type {other:#x} are not supported")
            }
        }
    }

    pub(crate) fn from(data_type: DataType) -> Self {
        match data_type {
            DataType::F32 => Self::Float32,
            DataType::F16 => Self::Float16,
            DataType::BF16 => Self::BFloat16,
            DataType::I8 => Self::Int8,
            DataType::I16 => Self::Int16,
            DataType::I32 => Self::Int32,
            DataType::I64 => Self::Int64,
            DataType::U8 => Self::UInt8,
            DataType::U16 => Self::UInt16,
            DataType::U32 => Self::UInt32,
            DataType::Bool => Self::Bool,
        }
    }
}

/// Flags of a kernel. They change nothing here.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MPSKernelOptions(pub usize);

impl MPSKernelOptions {
    pub const None: Self = Self(0);
    pub const SkipAPIValidation: Self = Self(1);
    pub const AllowReducedPrecision: Self = Self(2);
}

/// An activation function.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MPSCNNNeuronType(pub i32);

macro_rules! neurons {
    ($($name:ident = $number:literal),* $(,)?) => {
        impl MPSCNNNeuronType {
            $(pub const $name: Self = Self($number);)*
            /// How many there are.
            pub const Count: Self = Self(16);

            /// Panics for functions there are none of, where the real framework ends the process.
            pub(crate) fn get(self) -> NeuronKind {
                match self {
                    $(Self::$name => NeuronKind::$name,)*
                    Self(other) => panic!("softmetal: there is no neuron of type {other}"),
                }
            }

            pub(crate) fn from(kind: NeuronKind) -> Self {
                match kind {
                    $(NeuronKind::$name => Self::$name,)*
                }
            }
        }
    };
}

neurons! {
    None = 0, ReLU = 1, Linear = 2, Sigmoid = 3, HardSigmoid = 4, TanH = 5, Absolute = 6, SoftPlus = 7, SoftSign = 8,
    ELU = 9, PReLU = 10, ReLUN = 11, Power = 12, Exponential = 13, Logarithm = 14, GeLU = 15,
}
