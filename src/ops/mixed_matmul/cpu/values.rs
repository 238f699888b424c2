//! What the codes of a scheme stand for, in the terms of a product.

use crate::ops::quantize::{Grid, Scheme};

/// What codes stand for: `(code − middle) · factor · scale`, and what the middle one stands for,
/// `(a + b · offset) · scale + c · offset`.
#[derive(Clone, Copy)]
pub struct Values {
    /// The code that is subtracted from all others, so that small sums stay small.
    pub middle: f32,
    pub factor: f32,
    pub a: f32,
    pub b: f32,
    pub c: f32,
}

impl Values {
    pub fn of(scheme: &Scheme) -> Self {
        let [middle, factor, a, b, c] = match scheme.grid {
            Grid::Ternary => [1.0, 1.0, 0.0, 0.0, 0.0],
            Grid::Sign { .. } => [0.0, 2.0, -1.0, 0.0, 0.0],
            // They are raised by as much.
            Grid::Int8 => [128.0, 1.0, 0.0, 0.0, 0.0],
            Grid::ZeroPoint { bits } => {
                let middle = (1 << (bits - 1)) as f32;
                [middle, 1.0, middle, -1.0, 0.0]
            }
            Grid::Affine { bits } => {
                let middle = (1 << (bits - 1)) as f32;
                [middle, 1.0, middle, 0.0, 1.0]
            }
        };
        Values {
            middle,
            factor,
            a,
            b,
            c,
        }
    }
}
