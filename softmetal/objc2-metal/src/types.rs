//! Plain types: sizes, enumerations and option sets.

use std::ops::{BitAnd, BitOr, BitOrAssign};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MTLSize {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

impl MTLSize {
    pub(crate) fn sides(self) -> [usize; 3] {
        [self.width, self.height, self.depth]
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MTLOrigin {
    pub x: usize,
    pub y: usize,
    pub z: usize,
}

macro_rules! enumerations {
    ($($(#[$meta:meta])* $name:ident($type:ty) { $($value:ident = $number:expr),* $(,)? })*) => {$(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $type);

        impl $name {
            $(pub const $value: Self = Self($number);)*
        }
    )*};
}

enumerations! {
    MTLMathMode(isize) { Safe = 0, Relaxed = 1, Fast = 2 }
    MTLMathFloatingPointFunctions(isize) { Fast = 0, Precise = 1 }
    MTLDispatchType(usize) { Serial = 0, Concurrent = 1 }
    MTLCommandBufferStatus(usize) {
        NotEnqueued = 0, Enqueued = 1, Committed = 2, Scheduled = 3, Completed = 4, Error = 5,
    }
    MTLCaptureDestination(isize) { DeveloperTools = 1, GPUTraceDocument = 2 }
    MTLStorageMode(usize) { Shared = 0, Managed = 1, Private = 2, Memoryless = 3 }
    MTLHazardTrackingMode(usize) { Default = 0, Untracked = 1, Tracked = 2 }
    MTLFunctionType(usize) { Kernel = 3 }
    MTLLanguageVersion(usize) {
        Version2_3 = (2 << 16) + 3, Version2_4 = (2 << 16) + 4,
        Version3_0 = 3 << 16, Version3_1 = (3 << 16) + 1, Version3_2 = (3 << 16) + 2,
        Version4_0 = 4 << 16,
    }
    MTLGPUFamily(isize) {
        Apple1 = 1001, Apple2 = 1002, Apple3 = 1003, Apple4 = 1004, Apple5 = 1005, Apple6 = 1006,
        Apple7 = 1007, Apple8 = 1008, Apple9 = 1009, Apple10 = 1010,
        Mac1 = 2001, Mac2 = 2002, Common1 = 3001, Common2 = 3002, Common3 = 3003,
        Metal3 = 5001, Metal4 = 5002,
    }
    MTLDataType(usize) {
        None = 0, Float = 3, Half = 16, Int = 29, UInt = 33, Short = 37, UShort = 41, Char = 45, UChar = 49, Bool = 53,
        Long = 81, ULong = 85, BFloat = 121,
    }
}

macro_rules! option_sets {
    ($($name:ident { $($value:ident = $number:expr),* $(,)? })*) => {$(
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub usize);

        impl $name {
            $(pub const $value: Self = Self($number);)*

            pub const fn empty() -> Self {
                Self(0)
            }

            pub const fn bits(&self) -> usize {
                self.0
            }

            pub const fn from_bits_retain(bits: usize) -> Self {
                Self(bits)
            }

            pub const fn contains(&self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            pub const fn is_empty(&self) -> bool {
                self.0 == 0
            }
        }

        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }
    )*};
}

option_sets! {
    MTLResourceOptions {
        CPUCacheModeDefaultCache = 0, CPUCacheModeWriteCombined = 1,
        StorageModeShared = 0, StorageModeManaged = 0x10, StorageModePrivate = 0x20, StorageModeMemoryless = 0x30,
        HazardTrackingModeDefault = 0, HazardTrackingModeUntracked = 0x100, HazardTrackingModeTracked = 0x200,
    }
    MTLBarrierScope { Buffers = 1, Textures = 2, RenderTargets = 4 }
    MTLResourceUsage { Read = 1, Write = 2, Sample = 4 }
}
