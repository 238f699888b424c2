//! The CPU engine: lanes and math, element types, one-pass maps, row reductions.

pub mod act;
pub mod activation_bytes;
pub mod alloc;
pub mod byte_simd;
pub mod column_sums;
pub mod element;
pub mod elementwise;
pub mod fold;
pub mod gather;
#[cfg(all(test, target_os = "linux"))]
pub mod guarded;
pub mod math;
pub mod matmul;
pub mod moments;
pub mod parallel;
pub mod pieces;
pub mod row_view;
pub mod rows;
pub mod scratch;
pub mod simd;
pub mod two_pass;

/// Runs `$body` with `$T` bound to the storage's element type and, in the closure form, `$s` to its `Vec` of elements: by
/// shared or by mutable reference, as the storage is given.
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
