//! The CPU engine: lanes and math, element types, one-pass maps, row reductions.

pub mod alloc;
pub mod codes;
pub mod dot;
pub mod element;
pub mod elementwise;
pub mod gather;
pub mod math;
pub mod matmul;
pub mod moments;
pub mod parallel;
pub mod row_op;
pub mod row_view;
pub mod rows;
pub mod scratch;
pub mod simd;

/// Runs `$body` with `$T` bound to the storage's element type and, in the closure form, `$s` to its
/// elements.
macro_rules! with_float {
    ($op:expr, $storage:expr, |$s:ident: &[$T:ident]| $body:expr) => {
        match $storage {
            candle_core::CpuStorage::F32($s) => {
                type $T = f32;
                $body
            }
            candle_core::CpuStorage::F16($s) => {
                type $T = half::f16;
                $body
            }
            candle_core::CpuStorage::BF16($s) => {
                type $T = half::bf16;
                $body
            }
            other => Err($crate::check::unsupported_dtype(
                $op,
                candle_core::backend::BackendStorage::dtype(other),
            )),
        }
    };
    ($op:expr, $storage:expr, $T:ident => $body:expr) => {
        $crate::cpu::with_float!($op, $storage, |_elements: &[$T]| $body)
    };
}
pub(crate) use with_float;
