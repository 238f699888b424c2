//! What a product with a quantised weight makes of its activations.

use crate::quant::{Quantized, ScaleScope, Scheme};

/// How [`mixed_matmul_with()`](crate::ops::mixed_matmul_with) takes its activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activations {
    /// As they are: a result is as good as that of floats with the decoded weight.
    #[default]
    Exact,
    /// Rounded to integers −127 to 127 times a scale, max |x| / 127 of the columns that share a scale of the weight: of each
    /// group, or of the whole row where the weight has no groups. So does stock Candle's `QMatMul`. A number is off by half a
    /// scale at most, 0.4 % of its group's largest. Gradients pass the rounding as if it were not there.
    ///
    /// On a CPU this is faster than [`Activations::Exact`] from four or five rows on: with AVX-512-VNNI and 4096 × 4096 weights of
    /// 4 bits 1.4 times at 8 rows, 2.7 times at 32 and three times at 128. Fewer rows take the same time. Beside `QMatMul` it is
    /// faster with 4 bits at every number of rows; with 8 bits for one row and from 32 rows on, and up to 1.5 times slower
    /// between. On Metal it is never faster than `Exact`: the GPU multiplies the rounded numbers as floats of x's dtype.
    Int8,
}

impl Activations {
    /// The scheme that x is rounded by for this weight.
    pub(crate) fn scheme(self, w: &Quantized) -> Option<Scheme> {
        let scope = match w.scheme().scope {
            ScaleScope::Group(group) => ScaleScope::Group(group),
            _ => ScaleScope::Row,
        };
        match self {
            Activations::Exact => None,
            Activations::Int8 => Some(Scheme {
                eps: EPS,
                ..Scheme::int8(scope)
            }),
        }
    }
}

/// Numbers of any magnitude are rounded alike.
const EPS: f32 = 1e-30;
