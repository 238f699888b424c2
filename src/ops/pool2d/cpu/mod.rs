//! Pooling on the CPU. The rows of a window are joined to one first, whole vectors at a time, then its columns.

mod avg_backward;
mod forward;
mod max_backward;

pub use avg_backward::backward as avg_backward;
pub use forward::forward;
pub use max_backward::backward as max_backward;

use super::geometry::Geometry;

/// Means divide by this much: rows and columns have a factor each.
struct Divisors {
    include_pad: bool,
    /// Of each output's columns; of its rows too, if all windows have the same.
    columns: Vec<f32>,
}

impl Divisors {
    fn new(g: &Geometry, include_pad: bool) -> Self {
        let of_all = (1.0 / (g.kernel[0] * g.kernel[1]) as f64) as f32;
        let factor = |o: usize| match include_pad {
            true => of_all,
            false => 1.0 / g.window(1, o).len() as f32,
        };
        Divisors {
            include_pad,
            columns: (0..g.output[1]).map(factor).collect(),
        }
    }

    /// What a window of so many rows is multiplied by beside its columns' factor.
    fn of_rows(&self, rows: usize) -> f32 {
        match self.include_pad {
            true => 1.0,
            false => 1.0 / rows as f32,
        }
    }
}
