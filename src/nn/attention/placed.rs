//! Attention of queries whose positions are given, and ALiBi's bias by position, without a tensor of queries × keys.

use crate::check;
use crate::ops::{attention, AttentionConfig, AttentionLayout};
use candle_core::{Device, Result, Tensor, WithDType, D};

/// Attention on behalf of the function `name`, where query i is at position `first + i`. The config's windows are relative to
/// that; with a left window, no query may be behind the last key.
///
/// [`attention`] itself puts the last query at the last key. So the keys that no query sees are cut off, and the windows are
/// moved by the distance that is left:
///
/// ```text
/// causal, first = 1, 3 queries and 5 keys           first = 3, 3 queries and 5 keys
///   j  0 1 2 3 4                                       j  0 1 2 3 4
/// i=0  × ×       |                                   i=0  × × × ×      attention() has query 0 at position 2:
/// i=1  × × ×     |  the last key is cut off          i=1  × × × × ×    a window of 1 key to the right
/// i=2  × × × ×   |                                   i=2  × × × × ×
/// ```
pub(super) fn attend(
    name: &'static str,
    [q, k, v]: [&Tensor; 3],
    first: i64,
    config: &AttentionConfig,
) -> Result<Tensor> {
    let dim = sequence_dim(config);
    let (queries, keys) = (q.dims()[dim] as i64, k.dims()[dim] as i64);
    let right = match config.causal {
        true => Some(0),
        false => config.window_right,
    };
    // A window that reaches behind the last key hides none.
    let right = right.map(|right| i64::try_from(right).unwrap_or(i64::MAX));
    let seen = right.map_or(keys, |right| {
        (first + queries).saturating_add(right).clamp(0, keys)
    });
    let cut = |x: &Tensor, dim: usize| match seen < keys {
        true => x.narrow(dim, 0, seen as usize),
        false => Ok(x.clone()),
    };
    // A mask without dims is the same for all keys.
    let cut_mask = |mask: &Tensor| match mask.rank().checked_sub(1) {
        Some(last) => cut(mask, last),
        None => Ok(mask.clone()),
    };
    let moved = first - (seen - queries);
    let config = AttentionConfig {
        causal: false,
        window_left: config.window_left.map(|left| {
            let back = (-moved).max(0) as usize;
            left.saturating_add(back)
        }),
        window_right: right.map(|right| right.saturating_add(moved).max(0) as usize),
        mask: config.mask.as_ref().map(cut_mask).transpose()?,
        ..config.clone()
    };
    let y = attention(q, &cut(k, dim)?, &cut(v, dim)?, &config);
    check::on_behalf_of(name, "attention", y)
}

/// Queries that are attended to at once with ALiBi's bias. More make the table of the bias larger, fewer make attention begin anew
/// more often.
const BLOCK: usize = 64;

/// The queries of a block. In a backward pass, the gradients of all keys and values exist for each block at the same time. This
/// number makes these gradients about as large as the table, which has a row for each query of a block.
fn block_of([q, k, v]: [&Tensor; 3], queries: usize) -> usize {
    let tracked = [q, k, v].iter().any(|t| t.track_op());
    let dim = q.dims().last().copied().unwrap_or(1);
    match tracked {
        true => ((queries as f64 * dim as f64).sqrt() as usize).max(1),
        false => BLOCK,
    }
    .next_multiple_of(BLOCK)
}

/// [`attend`] with ALiBi's bias: `−slope · |position − j|` is added to the score of key j, with a slope for each head, `[heads]` in
/// f32, which may be trained. The config has no mask.
///
/// The bias of row r of a block of queries depends on r and on the key's distance from the block alone, so that one table
/// `[heads, block, queries + keys]` serves all blocks, each by a view that begins where its keys do.
pub(super) fn attend_with_slopes(
    name: &'static str,
    [q, k, v]: [&Tensor; 3],
    first: i64,
    slopes: &Tensor,
    config: &AttentionConfig,
) -> Result<Tensor> {
    let dim = sequence_dim(config);
    let (queries, keys) = (q.dims()[dim], k.dims()[dim]);
    if queries == 0 || keys == 0 {
        return attend(name, [q, k, v], first, config);
    }
    let block = block_of([q, k, v], queries);
    // The first query of the last block.
    let last = (queries - 1) / block * block;
    let distance =
        |row: usize, column: usize| (first + (last + row) as i64 - column as i64).abs() as f32;
    let rows = queries.min(block);
    let distances = table(rows, last + keys, q.device(), |i, j| -distance(i, j))?;
    let bias = slopes.reshape(((), 1, 1))?.broadcast_mul(&distances)?;
    let bias = bias.to_dtype(q.dtype())?;
    let mut outputs = Vec::with_capacity(last / block + 1);
    for start in (0..=last).step_by(block) {
        let count = (queries - start).min(block);
        let of_block = bias.narrow(1, 0, count)?;
        let config = AttentionConfig {
            mask: Some(of_block.narrow(D::Minus1, last - start, keys)?),
            ..config.clone()
        };
        let q = q.narrow(dim, start, count)?;
        outputs.push(attend(name, [&q, k, v], first + start as i64, &config)?);
    }
    Tensor::cat(&outputs, dim)
}

/// The dim of queries and of keys.
fn sequence_dim(config: &AttentionConfig) -> usize {
    match config.layout {
        AttentionLayout::Bhsd => 2,
        AttentionLayout::Bshd => 1,
    }
}

/// `[queries, keys]` of a function of both.
pub(in crate::nn) fn table<T: WithDType>(
    queries: usize,
    keys: usize,
    device: &Device,
    f: impl Fn(usize, usize) -> T,
) -> Result<Tensor> {
    let f = &f;
    let values = (0..queries).flat_map(|i| (0..keys).map(move |j| f(i, j)));
    Tensor::from_vec(values.collect::<Vec<_>>(), (queries, keys), device)
}
