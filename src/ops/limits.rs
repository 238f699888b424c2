//! Limits for references. Candle's own `maximum`, `minimum` and `clamp` would add 160 KB of its code to a program with every op; a
//! comparison and a choice, which its backward needs anyway, compute the same.

use candle_core::{Result, Tensor};

/// x, or the limit where x is less. A NaN stays.
pub(crate) fn at_least(x: &Tensor, limit: f64) -> Result<Tensor> {
    x.lt(limit)?.where_cond(&(x.zeros_like()? + limit)?, x)
}

/// x, or the limit where x is more. A NaN stays.
pub(crate) fn at_most(x: &Tensor, limit: f64) -> Result<Tensor> {
    x.gt(limit)?.where_cond(&(x.zeros_like()? + limit)?, x)
}
