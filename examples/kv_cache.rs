//! What an append of one token costs, by the number of cached tokens: 10,000 appends each, beside the time that a plain copy of
//! the token's bytes takes, and beside stock's caches.
//!
//!     cargo run --release --example kv_cache

use candle_core::{DType, Device, Result, Tensor};
use candle_fused::nn::kv_cache::{ConcatKvCache, FixedKvCache, FixedKvConfig, KvCache};
use candle_nn::kv_cache as stock;
use std::hint::black_box;
use std::time::Instant;

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const APPENDS: usize = 10_000;

fn tokens(count: usize, dtype: DType) -> Result<Tensor> {
    let dims = (1, HEADS, count, HEAD_DIM);
    Tensor::randn(0f32, 1., dims, &Device::Cpu)?.to_dtype(dtype)
}

/// Nanoseconds of one append of k and v, the best of three rounds.
fn time(count: usize, mut append: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        for i in 0..count {
            append(i)?;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / count as f64);
    }
    Ok(best)
}

fn row(name: &str, cached: usize, nanoseconds: f64) {
    println!("{name:24} {cached:8} {:10.0} ns", nanoseconds);
}

fn main() -> Result<()> {
    println!("{:24} {:>8} {:>13}", "cache", "cached", "one append");
    let token = tokens(1, DType::F32)?;
    let data: Vec<f32> = token.flatten_all()?.to_vec1()?;
    for cached in [0, 4096, 16_384] {
        let room = cached + APPENDS;
        // As an append does it: each head's part to its own place.
        let mut memory = vec![0f32; 2 * HEADS * room * HEAD_DIM];
        let copied = time(APPENDS, |i| {
            for head in 0..2 * HEADS {
                let at = (head * room + cached + i) * HEAD_DIM;
                let from = head % HEADS * HEAD_DIM;
                memory[at..at + HEAD_DIM].copy_from_slice(&data[from..from + HEAD_DIM]);
            }
            black_box(&memory[0]);
            Ok(())
        })?;
        row("plain copy", cached, copied);

        let past = tokens(cached, DType::F32)?;
        let mut cache = KvCache::new(2, room);
        cache.append(&past, &past)?;
        let nanoseconds = time(APPENDS, |i| {
            if i == 0 {
                cache.truncate(cached)?;
            }
            cache.append(&token, &token).map(drop)
        })?;
        row("KvCache", cached, nanoseconds);

        let mut cache = stock::KvCache::new(2, room);
        if cached > 0 {
            cache.append(&past, &past)?;
        }
        let start = Instant::now();
        for _ in 0..APPENDS {
            cache.append(&token, &token)?;
        }
        row(
            "stock KvCache",
            cached,
            start.elapsed().as_nanos() as f64 / APPENDS as f64,
        );

        let mut cache = ConcatKvCache::new(2);
        cache.append(&past, &past)?;
        let start = Instant::now();
        for _ in 0..APPENDS {
            cache.append(&token, &token)?;
        }
        row(
            "ConcatKvCache",
            cached,
            start.elapsed().as_nanos() as f64 / APPENDS as f64,
        );

        let mut cache = stock::ConcatKvCache::new(2);
        if cached > 0 {
            cache.append(&past, &past)?;
        }
        let start = Instant::now();
        for _ in 0..20 {
            cache.append(&token, &token)?;
        }
        row(
            "stock ConcatKvCache",
            cached,
            start.elapsed().as_nanos() as f64 / 20.0,
        );

        let config = FixedKvConfig::new(1, HEADS, HEAD_DIM, room);
        for (name, config, dtype) in [
            ("FixedKvCache f32", config, DType::F32),
            ("FixedKvCache bf16", config, DType::BF16),
            ("FixedKvCache int8", config.with_int8(64), DType::F32),
            ("FixedKvCache int4", config.with_int4(64), DType::F32),
        ] {
            let mut cache = FixedKvCache::new(config, dtype, &Device::Cpu)?;
            let (past, token) = (past.to_dtype(dtype)?, token.to_dtype(dtype)?);
            cache.append(&past, &past)?;
            let nanoseconds = time(APPENDS, |i| {
                if i == 0 {
                    cache.truncate(0, cached)?;
                }
                cache.append(&token, &token)
            })?;
            row(name, cached, nanoseconds);
        }
    }
    Ok(())
}
