//! The cache of fixed capacity.

use super::{assert_same, by_heads, flat, says};
use crate::devices::devices;
use crate::tensors::{error, signal};
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig};
use candle_fused::ops::{self, AttentionConfig, AttentionLayout};
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

/// `attend` gives what attention over keys, values and mask gives: of numbers and of codes, of all dtypes, in both layouts, for
/// sequences of several lengths, few tokens and many, and windows that wrap.
#[test]
fn attend_reads_what_keys_and_values_give() -> Result<()> {
    for device in devices() {
        let plain = FixedKvConfig::new(2, 2, 16, 40);
        for config in [plain, plain.with_int8(16), plain.with_int4(8)] {
            for (window, dtype) in [
                (None, DType::F32),
                (Some(9), DType::F32),
                (None, DType::F16),
                (Some(9), DType::BF16),
            ] {
                let config = FixedKvConfig { window, ..config };
                let mut cache = FixedKvCache::new(config, dtype, device)?;
                let within = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
                let attends = AttentionConfig {
                    causal: true,
                    window_left: window.map(|n| n - 1),
                    ..Default::default()
                };
                for (i, (n, counts)) in [(24, [24, 20]), (3, [3, 3]), (1, [1, 0]), (12, [12, 12])]
                    .into_iter()
                    .enumerate()
                {
                    let make = |heads: usize, seed: u64| {
                        signal(&[2, heads, n, 16], 10 * i as u64 + seed, device)?.to_dtype(dtype)
                    };
                    let (k, v, q) = (make(2, 1)?, make(2, 2)?, make(4, 3)?);
                    cache.append_counts(&k, &v, &counts)?;
                    let mask = AttentionConfig {
                        mask: Some(cache.mask(n)?),
                        ..Default::default()
                    };
                    let want = ops::attention(&q, &cache.keys()?, &cache.values()?, &mask)?;
                    let got = cache.attend(&q, &attends)?;
                    let turned = AttentionConfig {
                        layout: AttentionLayout::Bshd,
                        ..attends.clone()
                    };
                    let turned = cache.attend(&q.transpose(1, 2)?, &turned)?;
                    for (b, &count) in counts.iter().enumerate() {
                        let part = |x: &Tensor| {
                            let x = x.narrow(0, b, 1)?.narrow(2, 0, count)?;
                            x.to_dtype(DType::F32)
                        };
                        if count > 0 {
                            let what =
                                format!("{window:?} {dtype:?} {:?}, step {i}", config.scheme);
                            let want = part(&want)?;
                            assert!(error(&part(&got)?, &want)? < within, "{what}");
                            let turned = part(&turned.transpose(1, 2)?)?;
                            assert!(error(&turned, &want)? < within, "{what}, turned");
                        }
                    }
                }
                says(
                    cache.attend(
                        &signal(&[2, 4, 1, 16], 1, device)?,
                        &AttentionConfig::default(),
                    ),
                    &["FixedKvCache::attend", "causal"],
                );
            }
        }
    }
    Ok(())
}

/// Queries get the gradient that attention over the dequantised cache gives, though the cache is written before the backward.
#[test]
fn queries_get_their_gradient_through_codes() -> Result<()> {
    for device in devices() {
        let plain = FixedKvConfig::new(1, 1, 8, 4).with_window(3);
        for config in [plain, plain.with_int8(8), plain.with_int4(8)] {
            let mut cache = FixedKvCache::new(config, DType::F32, device)?;
            let attends = AttentionConfig {
                causal: true,
                window_left: Some(2),
                ..Default::default()
            };
            let token = |seed: u64| signal(&[1, 1, 1, 8], seed, device);
            for seed in 0..5 {
                cache.append(&token(seed)?, &token(seed + 10)?)?;
            }
            let q = Var::from_tensor(&signal(&[1, 2, 1, 8], 20, device)?)?;
            let mask = AttentionConfig {
                mask: Some(cache.mask(1)?),
                ..Default::default()
            };
            let copy = |t: Tensor| t.force_contiguous();
            let (k, v) = (copy(cache.keys()?)?, copy(cache.values()?)?);
            let want = ops::attention(&q, &k, &v, &mask)?
                .sqr()?
                .sum_all()?
                .backward()?;
            let y = cache.attend(&q, &attends)?;
            for seed in 30..33 {
                cache.append(&token(seed)?, &token(seed)?)?;
            }
            let got = y.sqr()?.sum_all()?.backward()?;
            let of = |grads: &candle_core::backprop::GradStore| grads.get(&q).cloned();
            let (got, want) = (
                of(&got).expect("a gradient"),
                of(&want).expect("a gradient"),
            );
            assert!(error(&got, &want)? < 1e-5, "{:?}", config.scheme);
        }
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
        let config = FixedKvConfig::new(2, 2, dim, tokens);
        let causal = AttentionConfig {
            causal: true,
            ..Default::default()
        };
        let attend = |config: FixedKvConfig| -> Result<Tensor> {
            let mut cache = FixedKvCache::new(config, DType::F32, device)?;
            for (from, n) in [
                (0, tokens / 2),
                (tokens / 2, tokens / 2 - 4),
                (tokens - 4, 4),
            ] {
                cache.append(&k.narrow(2, from, n)?, &v.narrow(2, from, n)?)?;
            }
            cache.attend(&q, &causal)
        };
        let want = attend(config)?;
        for (config, within) in [(config.with_int8(32), 1e-2), (config.with_int4(32), 0.15)] {
            let got = attend(config)?;
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
