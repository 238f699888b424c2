//! Macros that stamp the methods of an instruction set from a table, one line a method. [`Simd`](super::Simd) and
//! [`ByteSimd`](crate::cpu::byte_simd::ByteSimd) are implemented with them.
//!
//! A table lists `name(arguments) -> result = body;`. One that serves two instruction sets begins with the column that is
//! wanted, `narrow` or `wide`, and has a group of lines `name = narrow intrinsic, wide intrinsic;` for each signature.

/// Methods on registers alone.
macro_rules! intrinsics {
    (narrow: $($args:tt -> $out:ty { $($name:ident = $narrow:expr, $wide:expr;)* })*) => {
        $($(intrinsics! { @call $name $args -> $out = $narrow })*)*
    };
    (wide: $($args:tt -> $out:ty { $($name:ident = $narrow:expr, $wide:expr;)* })*) => {
        $($(intrinsics! { @call $name $args -> $out = $wide })*)*
    };
    (@call $name:ident ($($arg:ident: $ty:ty),*) -> $out:ty = $intrinsic:expr) => {
        intrinsics! { $name($($arg: $ty),*) -> $out = $intrinsic($($arg),*); }
    };
    ($($name:ident $(<$(const $n:ident: $kind:ty),*>)? ($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name $(<$(const $n: $kind),*>)? (self, $($arg: $ty),*) -> $out {
            // SAFETY: the token `self` is made on a CPU that has the instructions, and nowhere else. Arguments are values
            // and references: no intrinsic gets a pointer that could be invalid.
            unsafe { $body }
        }
    )*};
}
pub(in crate::cpu) use intrinsics;

/// Methods that load or store a vector or a part of one, which the traits declare unsafe.
macro_rules! memory_intrinsics {
    (narrow: $($args:tt -> $out:ty { $($name:ident = $narrow:expr, $wide:expr;)* })*) => {
        $($(memory_intrinsics! { @call $name $args -> $out = $narrow })*)*
    };
    (wide: $($args:tt -> $out:ty { $($name:ident = $narrow:expr, $wide:expr;)* })*) => {
        $($(memory_intrinsics! { @call $name $args -> $out = $wide })*)*
    };
    (@call $name:ident ($p:ident: $pointer:ty $(, $arg:ident: $ty:ty)*) -> $out:ty = $intrinsic:expr) => {
        memory_intrinsics! { $name($p: $pointer $(, $arg: $ty)*) -> $out = $intrinsic($p.cast() $(, $arg)*); }
    };
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(self, $($arg: $ty),*) -> $out {
            // SAFETY: the token `self` is made on a CPU that has the instructions, and nowhere else. The trait makes the
            // caller answer for a whole vector behind the pointer, or for `n` elements if the method has an `n`; the body
            // touches no more, by instructions that need no alignment.
            unsafe { $body }
        }
    )*};
}
pub(in crate::cpu) use memory_intrinsics;

/// Functions that run a kernel with an instruction set, in code that is compiled for its CPU features:
/// `function = token, "features";`. They are never inlined, so that kernels can share code by calling it.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_macros))]
macro_rules! entry_points {
    ($kernel:ident: $($run:ident = $token:expr, $features:literal;)*) => {$(
        /// # Safety
        #[doc = concat!("The CPU has ", $features, ".")]
        #[inline(never)]
        #[target_feature(enable = $features)]
        pub unsafe fn $run<K: $kernel>(kernel: K) {
            kernel.run($token)
        }
    )*};
}
pub(in crate::cpu) use entry_points;
