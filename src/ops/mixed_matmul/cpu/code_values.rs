//! The numbers that codes stand for, in the form that the integer GEMV computes with.

use crate::quant::{Levels, Scheme};

/// A code stands for `(code − center) · factor · scale + base`, where `scale` and `offset` are the group's and
/// `base = (a + b · offset) · scale + c · offset` is the value of the center code.
#[derive(Clone, Copy)]
pub struct CodeValues {
    /// A fixed zero point, half way up the codes. It is subtracted from all codes, so that products around 0 sum up to numbers
    /// around 0 and lose no digits to a large common part.
    pub center: f32,
    pub factor: f32,
    pub a: f32,
    pub b: f32,
    pub c: f32,
}

impl CodeValues {
    pub fn new(scheme: &Scheme) -> Self {
        let [center, factor, a, b, c] = match scheme.levels {
            Levels::Ternary => [1.0, 1.0, 0.0, 0.0, 0.0],
            Levels::Sign { .. } => [0.0, 2.0, -1.0, 0.0, 0.0],
            // Signed bytes are made unsigned by adding 128.
            Levels::Int8 => [128.0, 1.0, 0.0, 0.0, 0.0],
            Levels::ZeroPoint { bits } => {
                let center = (1 << (bits - 1)) as f32;
                [center, 1.0, center, -1.0, 0.0]
            }
            Levels::Affine { bits } => {
                let center = (1 << (bits - 1)) as f32;
                [center, 1.0, center, 0.0, 1.0]
            }
        };
        CodeValues {
            center,
            factor,
            a,
            b,
            c,
        }
    }
}
