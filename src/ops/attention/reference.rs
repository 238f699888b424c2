//! Attention as a composition of stock ops, with the whole matrix of scores.

use super::config::{AttentionConfig, AttentionLayout};
use super::geometry::{roles, segments, Geometry, Roles, Rules, Segment};
use crate::op::Spec;
use crate::ops::limits::at_least;
use crate::philox;
use candle_core::{DType, Result, Tensor, D};

/// The composition of stock ops that [`attention`](super::attention) replaces.
pub fn reference(q: &Tensor, k: &Tensor, v: &Tensor, config: &AttentionConfig) -> Result<Tensor> {
    Ok(with_log_sums(q, k, v, config)?.0)
}

/// The result, and the log-sum-exp of each query's scores as the kernels save it: `[batch, heads, queries, 2]`, the maximum
/// and the logarithm of the sum of the exponentials below it, which is +∞ for a query without keys.
pub fn with_log_sums(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    config: &AttentionConfig,
) -> Result<(Tensor, Tensor)> {
    let rules = Rules::of(config);
    let roles = roles([q, k, v], config);
    let specs = Roles {
        q: Spec::from(q),
        k: Spec::from(k),
        v: Spec::from(v),
        mask: roles.mask.map(Spec::from),
        sinks: roles.sinks.map(Spec::from),
        key_lengths: roles.key_lengths.map(Spec::from),
    };
    let packed = config.packed.as_ref();
    let geometry = Geometry::new(super::NAME, &rules, packed, &specs)?;
    let lengths = roles.key_lengths.map(lengths).transpose()?;
    let segments = segments(&geometry, packed, lengths.as_deref());
    let whole = Whole {
        rules,
        geometry,
        config,
    };
    if packed.is_none() {
        let heads_first = |t: &Tensor| match config.layout {
            AttentionLayout::Bhsd => Ok(t.clone()),
            AttentionLayout::Bshd => t.transpose(1, 2),
        };
        let (y, sums) = whole.attend(
            &segments,
            [heads_first(q)?, heads_first(k)?, heads_first(v)?],
        )?;
        return Ok((heads_first(&y)?, sums));
    }
    let (mut outputs, mut sums) = (Vec::new(), Vec::new());
    for segment in &segments {
        let part = |t: &Tensor, start, len| -> Result<Tensor> {
            t.narrow(0, start, len)?.transpose(0, 1)?.unsqueeze(0)
        };
        let args = [
            part(q, segment.query, segment.queries)?,
            part(k, segment.key, segment.keys)?,
            part(v, segment.key, segment.keys)?,
        ];
        let (y, sum) = whole.attend(&[*segment], args)?;
        outputs.push(y.squeeze(0)?.transpose(0, 1)?);
        sums.push(sum);
    }
    match outputs.is_empty() {
        true => Ok((
            Tensor::zeros(geometry.output(), q.dtype(), q.device())?,
            Tensor::zeros(&geometry.log_sums(), q.dtype(), q.device())?,
        )),
        false => Ok((Tensor::cat(&outputs, 0)?, Tensor::cat(&sums, 2)?)),
    }
}

/// The numbers of keys that a tensor of lengths gives.
pub fn lengths(lengths: &Tensor) -> Result<Vec<usize>> {
    let lengths = lengths.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    Ok(lengths.into_iter().map(|n| n.max(0) as usize).collect())
}

struct Whole<'a> {
    rules: Rules,
    geometry: Geometry,
    config: &'a AttentionConfig,
}

impl Whole<'_> {
    /// Of `[batch, heads, sequence, dim]`, a segment for each batch row.
    fn attend(&self, segments: &[Segment], [q, k, v]: [Tensor; 3]) -> Result<(Tensor, Tensor)> {
        let (b, h, queries, dim) = q.dims4()?;
        let (_, kv_heads, keys, value_dim) = v.dims4()?;
        if b * queries * keys == 0 {
            let y = Tensor::zeros((b, h, queries, value_dim), q.dtype(), q.device())?;
            let sums = Tensor::full(f32::INFINITY, (b, h, queries, 2), q.device())?;
            return Ok((y, sums.to_dtype(q.dtype())?));
        }
        let rows = h / kv_heads * queries;
        let q = q.contiguous()?.reshape((b, kv_heads, rows, dim))?;
        let scores = q.matmul(&k.t()?.contiguous()?)?;
        let scores = scores.reshape((b, h, queries, keys))?;
        let scores = self.masked(segments, (scores * f64::from(self.rules.scale(dim)))?)?;
        // Finite even where all is −∞; no gradient goes through it, as the softmax doesn't depend on it.
        let lowest = match scores.dtype() {
            DType::F16 => half::f16::MIN.to_f64(),
            DType::BF16 => half::bf16::MIN.to_f64(),
            _ => f32::MIN as f64,
        };
        let max = at_least(&scores.max_keepdim(D::Minus1)?.detach(), lowest)?;
        let sinks = match &self.config.sinks {
            Some(sinks) => Some(sinks.reshape((1, h, 1, 1))?.broadcast_as(max.shape())?),
            None => None,
        };
        let max = match &sinks {
            Some(sinks) => sinks.gt(&max)?.where_cond(&sinks.detach(), &max)?,
            None => max,
        };
        let e = scores.broadcast_sub(&max)?.exp()?;
        let sum = e.sum_keepdim(D::Minus1)?;
        let sum = match &sinks {
            Some(sinks) => (sum + (sinks - &max)?.exp()?)?,
            None => sum,
        };
        let infinite = (sum.zeros_like()? + f64::INFINITY)?;
        let log = sum.eq(0f64)?.where_cond(&infinite, &sum.log()?)?;
        let sums = Tensor::cat(&[&max, &log], 3)?;
        // At least 1, except in a row without scores.
        let weights = e.broadcast_div(&at_least(&sum, 0.5)?)?;
        let weights = self.dropped(segments, weights)?;
        let weights = weights.reshape((b, kv_heads, rows, keys))?;
        let y = weights.matmul(&v.contiguous()?)?;
        Ok((y.reshape((b, h, queries, value_dim))?, sums))
    }

    /// The scores with a cap, with the mask added, and −∞ where a query does not see the key.
    fn masked(&self, segments: &[Segment], scores: Tensor) -> Result<Tensor> {
        let scores = match self.rules.softcap {
            Some(cap) => ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?,
            None => scores,
        };
        let hidden = (scores.zeros_like()? + f64::NEG_INFINITY)?;
        let scores = match &self.config.mask {
            Some(mask) if mask.dtype() == DType::U8 => {
                let allowed = mask.broadcast_as(scores.shape())?.contiguous()?;
                allowed.where_cond(&scores, &hidden)?
            }
            Some(mask) => scores.broadcast_add(mask)?,
            None => scores,
        };
        let (b, _, queries, keys) = scores.dims4()?;
        let mut visible = Vec::with_capacity(b * queries * keys);
        for segment in segments {
            for i in 0..queries {
                let (start, end) = segment.visible(&self.rules, i);
                visible.extend((0..keys).map(|j| u8::from((start..end).contains(&j))));
            }
        }
        if visible.iter().all(|&v| v == 1) {
            return Ok(scores);
        }
        let visible = Tensor::from_vec(visible, (b, 1, queries, keys), scores.device())?;
        let visible = visible.broadcast_as(scores.shape())?.contiguous()?;
        visible.where_cond(&scores, &hidden)
    }

    fn dropped(&self, segments: &[Segment], weights: Tensor) -> Result<Tensor> {
        let Some(dropout) = self.rules.dropout else {
            return Ok(weights);
        };
        let mask = philox::Mask::new(dropout.p, dropout.seed);
        let (_, h, queries, keys) = weights.dims4()?;
        let mut factors = Vec::with_capacity(weights.elem_count());
        for segment in segments {
            for row in 0..h * queries {
                let (head, i) = (row / queries, segment.query + row % queries);
                let row = (segment.batch * h + head) * self.geometry.queries + i;
                let start = row * self.geometry.dropout_row();
                factors.extend((0..keys).map(|j| mask.factor(start + j)));
            }
        }
        let factors = Tensor::from_vec(factors, weights.shape(), weights.device())?;
        let factors = factors.to_dtype(weights.dtype())?;
        weights * factors
    }
}
