//! What attention costs beside what it must: a decoder's next token beside a plain read and a copy of the same keys and values, as
//! f32 and as codes, and causal attention beside full attention.
//!
//!     cargo run --release --example attention_speed

mod bandwidth;

use bandwidth::time_of_pass;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig};
use candle_fused::ops::{attention, AttentionConfig};
use std::time::{Duration, Instant};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const KEYS: usize = 4096;
const DIM: usize = 128;

fn normal(dims: &[usize]) -> Result<Tensor> {
    Tensor::randn(0f32, 1., dims, &Device::Cpu)
}

/// Milliseconds, the median of as many calls as fit into a second.
fn time(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..3 {
        call()?;
    }
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(1) || times.len() < 5 {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<()> {
    let causal = AttentionConfig {
        causal: true,
        ..Default::default()
    };
    println!("1 query of {HEADS} heads, {KEYS} keys of {KV_HEADS} heads of {DIM}");
    println!(
        "{:10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "cache", "ms", "read ms", "share", "memcpy ms", "share"
    );
    let config = FixedKvConfig::new(1, KV_HEADS, DIM, KEYS);
    for (name, config, dtype) in [
        ("f32", config, DType::F32),
        ("bf16", config, DType::BF16),
        ("int8", config.with_int8(64), DType::F32),
        ("int4", config.with_int4(64), DType::F32),
    ] {
        let mut cache = FixedKvCache::new(config, dtype, &Device::Cpu)?;
        let past = normal(&[1, KV_HEADS, KEYS, DIM])?.to_dtype(dtype)?;
        cache.append(&past.narrow(2, 0, KEYS - 1)?, &past.narrow(2, 0, KEYS - 1)?)?;
        let token = past.narrow(2, 0, 1)?;
        cache.append(&token, &token)?;
        let q = normal(&[1, HEADS, 1, DIM])?.to_dtype(dtype)?;
        let ms = time(|| cache.attend(&q, &causal).map(drop))?;
        let [read, copy] = [false, true].map(|copies| time_of_pass(cache.bytes(), copies, 200));
        let share = |pass: f64| 100.0 * pass / ms;
        println!(
            "{name:10} {ms:9.3} {read:9.3} {:7.0} % {copy:9.3} {:7.0} %",
            share(read),
            share(copy)
        );
    }
    println!("\n1 × {HEADS} × 512 × {DIM}");
    for dtype in [DType::F32, DType::BF16] {
        let q = normal(&[1, HEADS, 512, DIM])?.to_dtype(dtype)?;
        let mut times = [0.0; 2];
        // In turns, so that both meet the same clock.
        for _ in 0..3 {
            for (i, config) in [AttentionConfig::default(), causal.clone()]
                .iter()
                .enumerate()
            {
                let ms = time(|| attention(&q, &q, &q, config).map(drop))?;
                times[i] = if times[i] == 0.0 {
                    ms
                } else {
                    ms.min(times[i])
                };
            }
        }
        let [full, half] = times;
        println!(
            "{dtype:?}: full {full:.2} ms, causal {half:.2} ms, {:.2} of it",
            half / full
        );
    }
    Ok(())
}
