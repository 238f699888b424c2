//! The cache of fixed capacity.

use super::{assert_same, by_heads, flat, says};
use crate::devices::devices;
use crate::tensors::{error, signal};
use candle_core::{DType, Device, Result, Tensor, D};
use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig};
use candle_fused::quant::{Quantized, ScaleScope, Scheme};

/// softmax(q·kᵀ + mask)·v
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let scale = 1.0 / (q.dim(D::Minus1)? as f64).sqrt();
    let scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? * scale)?;
    let scores = scores.broadcast_add(mask)?;
    candle_nn::ops::softmax(&scores, 3)?.matmul(&v.contiguous()?)
}

/// Sequences of several lengths, step by step, see what they would see alone.
#[test]
fn each_sequence_sees_its_own_tokens() -> Result<()> {
    for device in devices() {
        let config = FixedKvConfig::new(3, 2, 4, 8).with_value_dim(6);
        let mut cache = FixedKvCache::new(config, DType::F32, device)?;
        let mut past: Vec<Vec<(Tensor, Tensor)>> = vec![Vec::new(); 3];
        let steps = [(4, [4, 2, 3]), (1, [1, 1, 0]), (2, [2, 2, 2])];
        for (i, (n, counts)) in steps.into_iter().enumerate() {
            let seed = 10 * i as u64;
            let k = signal(&[3, 2, n, 4], seed, device)?;
            let v = signal(&[3, 2, n, 6], seed + 1, device)?;
            let q = signal(&[3, 2, n, 4], seed + 2, device)?;
            cache.append_counts(&by_heads(&k)?, &by_heads(&v)?, &counts)?;
            let (keys, values) = (cache.keys()?, cache.values()?);
            let got = attention(&q, &keys, &values, &cache.mask(n)?)?;
            for (b, &count) in counts.iter().enumerate() {
                for t in 0..count {
                    let part = |x: &Tensor| x.narrow(0, b, 1)?.narrow(2, t, 1);
                    past[b].push((part(&k)?, part(&v)?));
                    let all = |f: fn(&(Tensor, Tensor)) -> &Tensor| {
                        Tensor::cat(&past[b].iter().map(f).collect::<Vec<_>>(), 2)
                    };
                    let (k, v) = (all(|p| &p.0)?, all(|p| &p.1)?);
                    let none = Tensor::zeros(1, DType::F32, device)?;
                    let want = attention(&part(&q)?, &k, &v, &none)?;
                    assert!(
                        error(&part(&got)?, &want)? < 1e-6,
                        "sequence {b}, token {t}"
                    );
                }
            }
        }
        assert_eq!(cache.lengths(), [7, 5, 5]);
        assert_eq!(cache.key_lengths()?.to_vec1::<u32>()?, [7, 5, 5]);
    }
    Ok(())
}

/// A window of 3 in 5 slots: three at a time at most, and older tokens are out of sight.
#[test]
fn a_window_slides() -> Result<()> {
    for device in devices() {
        let config = FixedKvConfig::new(1, 2, 4, 5).with_window(3);
        let mut cache = FixedKvCache::new(config, DType::F32, device)?;
        let all = signal(&[1, 2, 20, 4], 1, device)?;
        let mut len = 0;
        for n in [2, 3, 1, 3, 1, 1, 2, 3] {
            let (k, q) = (all.narrow(2, len, n)?, all.narrow(2, len, n)?);
            cache.append(&k, &k)?;
            let (keys, values) = (cache.keys()?, cache.values()?);
            let got = attention(&q, &keys, &values, &cache.mask(n)?)?;
            for t in 0..n {
                let end = len + t + 1;
                let seen = all.narrow(2, end.saturating_sub(3), end.min(3))?;
                let none = Tensor::zeros(1, DType::F32, device)?;
                let want = attention(&q.narrow(2, t, 1)?, &seen, &seen, &none)?;
                assert!(error(&got.narrow(2, t, 1)?, &want)? < 1e-6);
            }
            len += n;
        }
        let four = all.narrow(2, 0, 4)?;
        says(
            cache.append(&four, &four),
            &["FixedKvCache::append", "5 slots", "3 that"],
        );
        assert_eq!(cache.lengths(), [16]);
        // Two tokens can be taken back, for two slots are spare; not a third.
        cache.truncate(0, 14)?;
        says(cache.truncate(0, 13), &["FixedKvCache::truncate", "gone"]);
        let token = all.narrow(2, 19, 1)?;
        cache.append(&token, &token)?;
        let got = attention(&token, &cache.keys()?, &cache.values()?, &cache.mask(1)?)?;
        let seen = Tensor::cat(&[all.narrow(2, 12, 2)?, token.clone()], 2)?;
        let none = Tensor::zeros(1, DType::F32, device)?;
        assert!(error(&got, &attention(&token, &seen, &seen, &none)?)? < 1e-6);
    }
    Ok(())
}

/// Attention over codes is near attention over f32, on normal data.
#[test]
fn codes_are_near_the_numbers() -> Result<()> {
    for device in devices() {
        let (tokens, dim) = match device.is_cpu() {
            true => (256, 64),
            false => (32, 64),
        };
        // The same normal numbers on every device.
        let normal = |seed: u64| -> Result<Tensor> {
            let mut rng = Normal(seed);
            let n = 2 * 2 * tokens * dim;
            let values: Vec<f32> = (0..n).map(|_| rng.draw()).collect();
            Tensor::from_vec(values, (2, 2, tokens, dim), device)
        };
        let (k, v, q) = (normal(1)?, normal(2)?, normal(3)?.narrow(2, 0, 4)?);
        let none = Tensor::zeros(1, DType::F32, device)?;
        let want = attention(&q, &k, &v, &none)?;
        let config = FixedKvConfig::new(2, 2, dim, tokens);
        for (config, within) in [(config.with_int8(32), 1e-2), (config.with_int4(32), 0.15)] {
            let mut cache = FixedKvCache::new(config, DType::F32, device)?;
            let half = tokens / 2;
            cache.append(&k.narrow(2, 0, half)?, &v.narrow(2, 0, half)?)?;
            cache.append(&k.narrow(2, half, half)?, &v.narrow(2, half, half)?)?;
            let got = attention(&q, &cache.keys()?, &cache.values()?, &none)?;
            let error = error(&got, &want)?;
            assert!(error < within, "{error} with {:?}", config.scheme);
        }
    }
    Ok(())
}

/// A plain generator and Box and Muller's transform.
struct Normal(u64);

impl Normal {
    fn uniform(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    }
    fn draw(&mut self) -> f32 {
        let (a, b) = (self.uniform(), self.uniform());
        (-2.0 * a.ln()).sqrt() * (std::f32::consts::TAU * b).cos()
    }
}

/// Codes lie as `KvCodes` says: what stands at `[b, h, t]` decodes to the token.
#[test]
fn codes_lie_as_documented() -> Result<()> {
    for device in devices() {
        let config = FixedKvConfig::new(2, 2, 8, 5).with_int8(4);
        for config in [
            config,
            config.with_int4(4),
            config.with_scheme(Scheme::int8(ScaleScope::Row)),
        ] {
            for dtype in [DType::F32, DType::F16] {
                let mut cache = FixedKvCache::new(config, dtype, device)?;
                let k = signal(&[2, 2, 3, 8], 1, device)?.to_dtype(dtype)?;
                let v = signal(&[2, 2, 3, 8], 2, device)?.to_dtype(dtype)?;
                cache.append_counts(&by_heads(&k)?, &v, &[3, 1])?;
                cache.append_counts(&k.narrow(2, 1, 2)?, &v.narrow(2, 1, 2)?, &[0, 2])?;
                for (codes, x) in [(cache.key_codes(), &k), (cache.value_codes(), &v)] {
                    let codes = codes.expect("codes");
                    let scheme = codes.scheme;
                    let q = Quantized::new(
                        codes.codes,
                        codes.scales,
                        codes.offsets,
                        (2, 2, 5, 8),
                        scheme,
                    )?;
                    let all = q.dequantize(dtype)?;
                    let want = candle_fused::ops::quantize(x, scheme)?.dequantize(dtype)?;
                    assert_same(&all.narrow(2, 0, 3)?, &want)?;
                }
                let want = candle_fused::ops::quantize(&k, config.scheme.expect("a scheme"))?;
                assert_same(&cache.keys()?, &want.dequantize(dtype)?)?;
                assert_eq!(cache.keys()?.dtype(), dtype);
            }
        }
    }
    Ok(())
}

#[test]
fn beams_go_apart() -> Result<()> {
    for device in devices() {
        for config in [
            FixedKvConfig::new(2, 1, 4, 4),
            FixedKvConfig::new(2, 1, 4, 4).with_int4(4),
        ] {
            let mut cache = FixedKvCache::new(config, DType::F32, device)?;
            let a = signal(&[2, 1, 2, 4], 1, device)?;
            cache.append(&a, &a)?;
            let keys = flat(&cache.keys()?)?;
            let mut beams = cache.select(&[1, 1, 0])?;
            assert_eq!(beams.lengths(), [2, 2, 2]);
            assert_same(&beams.keys()?.get(0)?, &cache.keys()?.get(1)?)?;
            assert_same(&beams.keys()?.get(2)?, &cache.keys()?.get(0)?)?;
            let b = signal(&[3, 1, 1, 4], 2, device)?;
            beams.append(&b, &b)?;
            let mut fork = cache.fork();
            let c = signal(&[2, 1, 1, 4], 3, device)?;
            fork.append(&c, &c)?;
            fork.reset_sequence(0)?;
            fork.append(&c, &c)?;
            assert_eq!(fork.lengths(), [1, 4]);
            assert_eq!(flat(&cache.keys()?)?, keys);
            says(cache.select(&[2]), &["FixedKvCache::select", "2"]);
            cache.reset();
            assert_eq!(cache.lengths(), [0, 0]);
            assert_eq!(cache.keys()?.dims(), [2, 1, 0, 4]);
        }
    }
    Ok(())
}

#[test]
fn wrong_arguments_are_refused() -> Result<()> {
    for device in devices() {
        let config = FixedKvConfig::new(2, 1, 4, 3);
        let mut cache = FixedKvCache::new(config, DType::F32, device)?;
        let x = |n: usize| signal(&[2, 1, n, 4], 1, device);
        says(
            cache.append(&x(4)?, &x(4)?),
            &["FixedKvCache::append", "4 tokens behind 0", "3 slots"],
        );
        cache.append(&x(2)?, &x(2)?)?;
        says(
            cache.append(&x(2)?, &x(2)?),
            &["2 tokens behind 2", "3 slots"],
        );
        says(cache.append(&x(1)?, &x(2)?), &["1 tokens of k and 2 of v"]);
        let half = x(1)?.to_dtype(DType::F16)?;
        says(cache.append(&half, &half), &["k of dtype F16", "F32"]);
        let thin = signal(&[2, 1, 1, 3], 1, device)?;
        says(cache.append(&x(1)?, &thin), &["v of shape [2, 1, 1, 3]"]);
        says(
            cache.append_counts(&x(1)?, &x(1)?, &[1]),
            &["counts [1]", "2"],
        );
        says(
            cache.append_counts(&x(1)?, &x(1)?, &[2, 0]),
            &["counts [2, 0]"],
        );
        says(cache.truncate(0, 3), &["3", "2 cached"]);
        says(cache.truncate(2, 0), &["sequence 2"]);
        says(cache.reset_sequence(5), &["sequence 5"]);
        assert_eq!(cache.lengths(), [2, 2]);
        let new = |config| FixedKvCache::new(config, DType::F32, device);
        says(
            new(config.with_window(4)),
            &["FixedKvCache::new", "window of 4"],
        );
        says(
            new(config.with_int8(3)),
            &["FixedKvCache::new", "groups of 3"],
        );
        let scheme = Scheme::int8(ScaleScope::Tensor);
        says(
            new(config.with_scheme(scheme)),
            &["FixedKvCache::new", "Tensor"],
        );
        says(FixedKvCache::new(config, DType::U8, device), &["U8"]);
    }
    Ok(())
}

/// More sequences than one launch has places for.
#[test]
fn many_sequences() -> Result<()> {
    for device in devices() {
        let config = FixedKvConfig::new(70, 1, 2, 4);
        let mut cache = FixedKvCache::new(config, DType::F32, device)?;
        let counts: Vec<usize> = (0..70).map(|i| i % 4).collect();
        let x = signal(&[70, 1, 3, 2], 1, device)?;
        cache.append_counts(&x, &x, &counts)?;
        let one = signal(&[70, 1, 1, 2], 2, device)?;
        cache.append(&one, &one)?;
        let (got, x, one) = (
            cache.keys()?.to_device(&Device::Cpu)?,
            x.to_device(&Device::Cpu)?,
            one.to_device(&Device::Cpu)?,
        );
        for (i, &count) in counts.iter().enumerate() {
            let want = Tensor::cat(
                &[
                    x.narrow(0, i, 1)?.narrow(2, 0, count)?,
                    one.narrow(0, i, 1)?,
                ],
                2,
            )?;
            assert_same(&got.narrow(0, i, 1)?.narrow(2, 0, count + 1)?, &want)?;
        }
    }
    Ok(())
}
