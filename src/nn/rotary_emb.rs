//! [`candle_nn::rotary_emb`] on one fused kernel that is differentiable. x may be a transposed view, which stock's fused
//! functions refuse.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use candle_fused::nn::rotary_emb::rope;
//! // As a model projects its queries: [batch, positions, heads, dim].
//! let q = Var::ones((1, 5, 2, 8), DType::F32, &Device::Cpu)?;
//! let (cos, sin) = (Tensor::zeros((16, 4), DType::F32, &Device::Cpu)?, Tensor::ones((16, 4), DType::F32, &Device::Cpu)?);
//! let y = rope(&q.transpose(1, 2)?, &cos, &sin)?;
//! assert_eq!(y.dims(), [1, 2, 5, 8]);
//! assert!(y.sum_all()?.backward()?.get(&q).is_some());
//! # candle_core::Result::Ok(())
//! ```

use crate::check;
use crate::ops::{self, Rope, RopeLayout, RopePairs};
use candle_core::{Result, Tensor, D};
use candle_nn::rotary_emb as stock;

const HALF: Rope = rope_of(RopePairs::Half, RopeLayout::HeadsFirst);
const INTERLEAVED: Rope = rope_of(RopePairs::Interleaved, RopeLayout::HeadsFirst);
const THD: Rope = rope_of(RopePairs::Half, RopeLayout::PositionsFirst);

const fn rope_of(pairs: RopePairs, layout: RopeLayout) -> Rope {
    Rope {
        pairs,
        layout,
        positions: ops::RopePositions::From(0),
        sections: None,
    }
}

/// Rotates `[batch, heads, positions, dim]` by tables `[positions or more, dim / 2]`, or with a batch in front.
///
/// Unlike stock, the tables of a batch may be longer than x too. Tables for a part of a head, or x without a batch, are for
/// [`ops::rope`].
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated("rope", xs, cos, sin, &HALF)
}

/// [`rope`] of neighbouring elements.
pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated("rope_i", xs, cos, sin, &INTERLEAVED)
}

/// [`rope`] of `[batch, positions, heads, dim]`.
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotated("rope_thd", xs, cos, sin, &THD)
}

/// x has four dims and cos a number for each pair of a head's elements, as stock demands.
fn rotated(name: &str, xs: &Tensor, cos: &Tensor, sin: &Tensor, rope: &Rope) -> Result<Tensor> {
    let (x, table) = (xs.dims(), cos.dims());
    let message = format_args!("got xs of shape {x:?}, expected four dims");
    check::ensure(x.len() == 4, name, message)?;
    let (pairs, dim) = (table.last().copied().unwrap_or(0), x[3]);
    let message =
        format_args!("got cos of shape {table:?}, expected a last dim of half of xs's {dim}");
    check::ensure(dim % 2 == 0 && pairs == dim / 2, name, message)?;
    check::on_behalf_of(name, "rope", ops::rope(xs, cos, sin, rope))
}

/// [`rope`], which is no slower here. Arguments that only stock's composition takes go to it.
pub fn rope_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    match are_plain(x, cos, sin)? {
        true => rotated("rope_slow", x, cos, sin, &HALF),
        false => stock::rope_slow(x, cos, sin),
    }
}

/// [`rope_i`], which is no slower here. Arguments that only stock's composition takes go to it.
pub fn rope_i_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    match are_plain(x, cos, sin)? {
        true => rotated("rope_i_slow", x, cos, sin, &INTERLEAVED),
        false => stock::rope_i_slow(x, cos, sin),
    }
}

/// Whether [`rope`] takes these arguments: x has four dims, and the tables a number for each pair of a head's elements.
fn are_plain(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<bool> {
    if x.rank() != 4 || cos.rank() != 2 || cos.dims() != sin.dims() {
        return Ok(false);
    }
    Ok(2 * cos.dim(1)? == x.dim(D::Minus1)? && cos.dtype() == x.dtype())
}
