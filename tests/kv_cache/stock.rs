//! Side by side with stock's caches.

use super::{assert_same, by_heads, flat, says};
use crate::devices::devices;
use crate::tensors::signal;
use candle_core::{DType, Result, Tensor};
use candle_fused::nn::kv_cache as ours;
use candle_nn::kv_cache as stock;

/// The tokens of each append: prompts, single tokens, empty and long chunks.
const STEPS: [usize; 9] = [3, 1, 1, 2, 0, 1, 6, 1, 4];

/// `[batch, heads, tokens, dim]` for dim 2, `[batch, tokens, heads, dim]` for dim 1.
fn chunk(dim: usize, n: usize, seed: u64, device: &candle_core::Device) -> Result<Tensor> {
    let mut dims = [2, 3, 3, 5];
    dims[dim] = n;
    signal(&dims, seed, device)
}

#[test]
fn growing_caches_are_stocks() -> Result<()> {
    for device in devices() {
        for (dim, room) in [(2, 4), (1, 3), (0, 2), (3, 64)] {
            let mut ours = ours::KvCache::new(dim, room);
            let mut stock = stock::KvCache::new(dim, room);
            for (i, &n) in STEPS.iter().filter(|&&n| n > 0).enumerate() {
                let (k, v) = (
                    chunk(dim, n, i as u64, device)?,
                    chunk(dim, n, 50 + i as u64, device)?,
                );
                let got = match dim {
                    // Any layout will do.
                    2 => ours.append(&by_heads(&k)?, &v)?,
                    _ => ours.append(&k, &v)?,
                };
                let want = stock.append(&k, &v)?;
                assert_same(&got.0, &want.0)?;
                assert_same(&got.1, &want.1)?;
                assert_eq!(ours.current_seq_len(), stock.current_seq_len());
                assert_eq!(ours.k_cache().max_seq_len(), stock.k_cache().max_seq_len());
                let all = |data: &Option<Tensor>| data.as_ref().map(|t| t.dims().to_vec());
                assert_eq!(
                    all(ours.v_cache().all_data()),
                    all(stock.v_cache().all_data())
                );
            }
        }
    }
    Ok(())
}

#[test]
fn rotating_caches_are_stocks() -> Result<()> {
    for device in devices() {
        for room in [1, 2, 5, 7] {
            let mut ours = ours::RotatingKvCache::new(2, room);
            let mut stock = stock::RotatingKvCache::new(2, room);
            for (i, &n) in STEPS.iter().filter(|&&n| n > 0).enumerate() {
                // Where there are as many tokens as slots, stock's positions are not those of what it returns.
                if n != room {
                    assert_eq!(ours.positions(n), stock.positions(n), "{n} tokens");
                }
                let masks = (ours.attn_mask(n, device)?, stock.attn_mask(n, device)?);
                if let (Some(got), Some(want)) = &masks {
                    assert_same(got, want)?;
                } else {
                    assert!(masks.0.is_none() && masks.1.is_none());
                }
                let positions = ours.positions(n);
                let k = chunk(2, n, i as u64, device)?;
                let got = ours.append(&by_heads(&k)?, &k)?;
                let want = stock.append(&k, &k)?;
                assert_same(&got.0, &want.0)?;
                assert_same(&got.1, &want.1)?;
                assert_eq!(positions.len(), got.0.dim(2)?);
                assert_eq!(ours.offset(), stock.offset());
                assert_eq!(ours.current_seq_len(), stock.current_seq_len());
                let current = (ours.k()?.expect("keys"), stock.k()?.expect("keys"));
                assert_same(&current.0, &current.1)?;
            }
        }
    }
    Ok(())
}

#[test]
fn caches_by_concatenation_are_stocks() -> Result<()> {
    for device in devices() {
        for dim in [1, 2] {
            let mut ours = ours::ConcatKvCache::new(dim);
            let mut stock = stock::ConcatKvCache::new(dim);
            for (i, n) in STEPS.into_iter().chain([70]).enumerate() {
                let k = chunk(dim, n, i as u64, device)?;
                if n == 0 {
                    ours.append(&k, &k)?;
                    continue;
                }
                let (got, want) = (ours.append(&k, &k)?, stock.append(&k, &k)?);
                assert_same(&got.0, &want.0)?;
                assert_same(&got.1, &want.1)?;
                assert_eq!(ours.current_seq_len(), stock.current_seq_len());
            }
        }
        let mut ours = ours::InterleavedKvCache::new(4);
        let mut stock = stock::InterleavedKvCache::new(4);
        for (i, n) in [3, 1, 1, 80].into_iter().enumerate() {
            let k = signal(&[1, 2, n, 4], i as u64, device)?;
            let v = signal(&[1, 2, n, 4], 9 + i as u64, device)?;
            assert_same(&ours.append(&k, &v)?, &stock.append(&k, &v)?)?;
        }
        assert_eq!(ours.current_seq_len(), 85);
    }
    Ok(())
}

/// While all sequences take part, and no chunk is as long as the context.
#[test]
fn scattered_caches_are_stocks() -> Result<()> {
    for device in devices() {
        let mut ours = ours::ScatteredCacheBuilder::new(2, 5, DType::F32, device)?;
        let mut stock = stock::ScatteredCacheBuilder::new(2, 5, DType::F32, device)?;
        let (mut our_cache, mut stock_cache) = (ours.make_cache(3, 4)?, stock.make_cache(3, 4)?);
        for (i, n) in [3, 1, 1, 4, 2, 1].into_iter().enumerate() {
            if i == 4 {
                ours.reset_batch_index(1);
                stock.reset_batch_index(1);
            }
            let (got, want) = (
                ours.indices_and_mask(n, &[true, true])?,
                stock.indices_and_mask(n, &[true, true])?,
            );
            assert_same(got.mask(), want.mask())?;
            assert_eq!(ours.positions(), stock.positions());
            let k = signal(&[2, 3, n, 4], i as u64, device)?;
            let v = signal(&[2, 3, n, 4], 10 + i as u64, device)?;
            let (got, want) = (
                our_cache.append(&by_heads(&k)?, &by_heads(&v)?, &got)?,
                stock_cache.append(&k, &v, &want)?,
            );
            assert_same(&got.0, &want.0)?;
            assert_same(&got.1, &want.1)?;
            assert_same(our_cache.k(), stock_cache.k())?;
            assert_same(our_cache.v(), stock_cache.v())?;
        }
        // Masks of sequences that take no part, too.
        for (n, active) in [(1, [true, false]), (3, [false, true]), (7, [true, true])] {
            let (got, want) = (
                ours.indices_and_mask(n, &active)?,
                stock.indices_and_mask(n, &active)?,
            );
            assert_same(got.mask(), want.mask())?;
        }
    }
    Ok(())
}

/// Stock writes over the oldest token of a sequence that takes no part, and keeps nothing of a long chunk.
#[test]
fn scattered_caches_lose_nothing() -> Result<()> {
    for device in devices() {
        let mut builder = ours::ScatteredCacheBuilder::new(2, 4, DType::F32, device)?;
        let mut cache = builder.make_cache(1, 2)?;
        let long = [1, 3].map(|seed| signal(&[2, 1, 6, 2], seed, device));
        let [long_k, long_v] = [&long[0], &long[1]].map(|x| x.as_ref().expect("a tensor"));
        let step = builder.indices_and_mask(6, &[true, true])?;
        let (k, v) = cache.append(long_k, long_v, &step)?;
        assert_same(&k, long_k)?;
        assert_same(&v, long_v)?;
        // Tokens 2 to 5 in slots 2, 3, 0, 1.
        let kept = |x: &Tensor| Tensor::cat(&[x.narrow(2, 4, 2)?, x.narrow(2, 2, 2)?], 2);
        let (want_k, want_v) = (kept(long_k)?, kept(long_v)?);
        assert_same(cache.k(), &want_k)?;
        assert_same(cache.v(), &want_v)?;
        let token = signal(&[2, 1, 1, 2], 2, device)?;
        let token_v = signal(&[2, 1, 1, 2], 4, device)?;
        let step = builder.indices_and_mask(1, &[true, false])?;
        let other = cache.clone();
        cache.append(&token, &token_v, &step)?;
        for (now, before, new) in [(cache.k(), &want_k, &token), (cache.v(), &want_v, &token_v)] {
            assert_same(&now.get(1)?, &before.get(1)?)?;
            assert_same(&now.get(0)?.narrow(1, 2, 1)?, &new.get(0)?)?;
        }
        assert_same(other.k(), &want_k)?;
        assert_same(other.v(), &want_v)?;
        assert!(builder.indices_and_mask(1, &[true]).is_err());
        assert!(cache.append(long_k, long_v, &step).is_err());
        // A step of another batch.
        let mut one = ours::ScatteredCacheBuilder::new(1, 4, DType::F32, device)?;
        let step = one.indices_and_mask(1, &[true])?;
        let before = [flat(cache.k())?, flat(cache.v())?];
        let words = [
            "ScatteredKvCache::append: got",
            "2 sequences",
            "1 sequences",
        ];
        says(cache.append(&token, &token, &step), &words);
        assert_eq!([flat(cache.k())?, flat(cache.v())?], before);
    }
    Ok(())
}
