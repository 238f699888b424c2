//! How far a result may be from the exact one: |got − want| ≤ rel·|want| + abs·max(scale, max|want|).

use crate::cases::Class;
use candle_core::DType;

#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub rel: f64,
    pub abs: f64,
    /// The size of the terms, where all of the result may be what is left of them.
    pub scale: f64,
}

impl Tolerance {
    pub fn with_scale(self, scale: f64) -> Self {
        Tolerance { scale, ..self }
    }
}

/// The one table. Ops compute in f32 and round once at the end, so f16 and bf16 get half a unit in
/// the last place (2⁻¹¹ and 2⁻⁸ of the value) on top of what f32 gets.
pub fn tolerance(dtype: DType, class: Class) -> Tolerance {
    let half_ulp = match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 0.0,
    };
    let (rel, abs) = match class {
        // Two ulp (1.2e-7) of the vector functions; the absolute part is for gelu's left tail.
        Class::Elementwise => (half_ulp + 3e-7, 1e-7),
        // Some more where two of them are subtracted.
        Class::Derivative => (half_ulp + 2e-6, 3e-7),
        // Sums of n terms in lanes lose about √n ulp of the largest sum.
        Class::Reduction => (half_ulp + 5e-6, 2e-6),
        // Tensors in between round each term of what may then cancel.
        Class::Stepwise => (3.0 * half_ulp + 5e-6, 2.0 * half_ulp + 2e-6),
    };
    let scale = 0.0;
    Tolerance { rel, abs, scale }
}
