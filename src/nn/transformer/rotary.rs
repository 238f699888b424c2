//! [`RotaryTables`]: the cosines and sines by which attention rotates its queries and keys.

use crate::check;
use crate::ops::{qk_norm_rope, rope_qk, QkNormRope, Rope, RopeLayout, RopePairs, RopePositions};
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
        check::ensure(dim.is_multiple_of(2), "RotaryTables::new", message)?;
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

    /// The same tables outside any graph.
    pub(super) fn detached(&self) -> Self {
        RotaryTables {
            cos: self.cos.detach(),
            sin: self.sin.detach(),
            pairs: self.pairs,
        }
    }

    /// `[positions, rotary dims / 2]`
    pub fn cos(&self) -> &Tensor {
        &self.cos
    }

    /// `[positions, rotary dims / 2]`
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
        let rotated = rope_qk(q, k, &self.cos, &self.sin, &self.rope(positions))?;
        Ok(self.apart(rotated, [&[q], &[k]]))
    }

    /// As [`rotate`](Self::rotate), behind norms with these weights.
    pub(super) fn norm_and_rotate(
        &self,
        (q, k): (&Tensor, &Tensor),
        (of_q, of_k): (&Tensor, &Tensor),
        eps: f32,
        positions: RopePositions,
    ) -> Result<(Tensor, Tensor)> {
        let norm = QkNormRope {
            eps,
            weight_offset: 0.0,
            rope: self.rope(positions),
        };
        let rotated = qk_norm_rope(q, k, of_q, of_k, &self.cos, &self.sin, &norm)?;
        Ok(self.apart(rotated, [&[q, of_q], &[k, of_k]]))
    }

    /// Both results of an op on q and k track gradients if any argument of the op does. A result whose own arguments track none
    /// gets no gradient in any case: it leaves the graph, so that a cache takes keys when only the queries are trained.
    fn apart(&self, (q, k): (Tensor, Tensor), own: [&[&Tensor]; 2]) -> (Tensor, Tensor) {
        let tables = [&self.cos, &self.sin];
        let tracked = |own: &[&Tensor]| own.iter().chain(&tables).any(|t| t.track_op());
        let settled = |y: Tensor, own: &[&Tensor]| if tracked(own) { y } else { y.detach() };
        (settled(q, own[0]), settled(k, own[1]))
    }

    fn rope(&self, positions: RopePositions) -> Rope {
        Rope {
            pairs: self.pairs,
            layout: RopeLayout::PositionsFirst,
            positions,
            sections: None,
        }
    }
}
