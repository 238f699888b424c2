//! How far a result may be from the exact one: |got − want| ≤ rel·|want| + abs·max|want|.

use crate::cases::Class;
use candle_core::DType;

#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub rel: f64,
    pub abs: f64,
}

/// The one table. Every op computes in f32 and rounds once, so f16 and bf16 get half a unit in the
/// last place (2⁻¹¹ and 2⁻⁸ of the value) on top of what f32 gets.
///
/// f32, elementwise: a few ulp (2⁻²³ ≈ 1.2e-7) of the vector exp, tanh and erf, and an absolute part
/// for results that come from a cancellation, such as gelu's left tail.
/// f32, reductions: sums of n terms in lanes lose about √n ulp of the largest sum.
pub fn tolerance(dtype: DType, class: Class) -> Tolerance {
    let Tolerance { rel, abs } = match class {
        Class::Elementwise => Tolerance {
            rel: 2e-6,
            abs: 2e-7,
        },
        Class::Reduction => Tolerance {
            rel: 5e-6,
            abs: 2e-6,
        },
    };
    let rounding = match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 0.0,
    };
    Tolerance {
        rel: rel + rounding,
        abs,
    }
}
