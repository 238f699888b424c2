//! The angles of rotary embeddings.

use crate::check;
use crate::ops::{rope_qk, Rope, RopeLayout, RopePairs, RopePositions};
use candle_core::{DType, Device, Result, Tensor};

/// The cos and sin of all positions, and how heads are rotated by them. Clones share the memory: one serves all layers.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    cos: Tensor,
    sin: Tensor,
    pairs: RopePairs,
}

impl RotaryTables {
    /// For the first `positions` positions: pair j of the first `dim` elements of a head turns by `theta^(−2j / dim)` from each
    /// position to the next.
    pub fn new(
        dim: usize,
        positions: usize,
        theta: f64,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let message = format_args!("got {dim} rotary dims, expected an even number");
        check::ensure(dim % 2 == 0, "RotaryTables::new", message)?;
        let speed = |j: usize| theta.powf(-2.0 * j as f64 / dim as f64);
        let row = |position: usize| (0..dim / 2).map(move |j| position as f64 * speed(j));
        let angles: Vec<f64> = (0..positions).flat_map(row).collect();
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|&angle| f(angle) as f32).collect();
            Tensor::from_vec(values, (positions, dim / 2), device)?.to_dtype(dtype)
        };
        Self::from_tables(table(f64::cos)?, table(f64::sin)?)
    }

    /// From tables `[positions, rotary dims / 2]`, of scaled frequencies say.
    pub fn from_tables(cos: Tensor, sin: Tensor) -> Result<Self> {
        let (of_cos, of_sin) = (cos.dims(), sin.dims());
        check::ensure(
            of_cos.len() == 2 && of_cos == of_sin,
            "RotaryTables::from_tables",
            format_args!(
                "got cos of shape {of_cos:?} and sin of {of_sin:?}, expected the same two dims"
            ),
        )?;
        Ok(RotaryTables {
            cos,
            sin,
            pairs: RopePairs::Half,
        })
    }

    /// Which elements of a head are rotated together.
    pub fn with_pairs(self, pairs: RopePairs) -> Self {
        RotaryTables { pairs, ..self }
    }

    pub fn cos(&self) -> &Tensor {
        &self.cos
    }

    pub fn sin(&self) -> &Tensor {
        &self.sin
    }

    /// q and k `[batch, positions, heads, dim]`, rotated.
    pub(super) fn rotate(
        &self,
        q: &Tensor,
        k: &Tensor,
        positions: RopePositions,
    ) -> Result<(Tensor, Tensor)> {
        let rope = Rope {
            pairs: self.pairs,
            layout: RopeLayout::PositionsFirst,
            positions,
            sections: None,
        };
        rope_qk(q, k, &self.cos, &self.sin, &rope)
    }
}
