//! What a cache must not do to attention, and what attention must not do to a cache.

use super::{says, tables, Weights, HIDDEN, SEPARATE, SIZES};
use crate::devices::devices;
use crate::tensors::{error, signal, var};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig, KvCache};
use candle_fused::nn::transformer::{attention, Attention, RotaryTables};
use candle_fused::nn::{Module, RmsNorm};
use candle_fused::ops::{AttentionConfig, PackedSequences};

fn causal() -> AttentionConfig {
    AttentionConfig {
        causal: true,
        ..Default::default()
    }
}

fn fixed(device: &Device) -> Result<FixedKvCache> {
    FixedKvCache::new(FixedKvConfig::new(2, 2, 6, 9), DType::F32, device)
}

fn gradient(y: &Tensor, to: &Tensor) -> Result<Tensor> {
    let weights = signal(y.dims(), 3, y.device())?;
    let grads = (y * weights)?.sum_all()?.backward()?;
    Ok(grads.get(to).expect("a gradient").clone())
}

/// Queries or sinks that are trained over frozen keys: tokens that take the slots of others change no gradient.
#[test]
fn later_tokens_change_no_gradient() -> Result<()> {
    for device in devices() {
        let w = Weights::new(SEPARATE, device)?;
        let part = |(name, t): (&String, &Tensor)| match name.starts_with("q_proj") {
            true => (name.clone(), t.clone()),
            false => (name.clone(), t.detach()),
        };
        let frozen = Weights(w.0.iter().map(part).collect());
        let by_q = attention(SIZES, frozen.vb(device))?;
        let rotated = by_q.clone().with_rotary(tables(device)?);
        let norm =
            || -> Result<RmsNorm> { Ok(RmsNorm::new(Tensor::ones(6, DType::F32, device)?, 1e-5)) };
        let normed = rotated.clone().with_norms(norm()?, norm()?);
        let sinks = var(&[4], 6, device)?;
        let by_sinks = by_q.detached().with_rotary(tables(device)?);
        let by_sinks = by_sinks.with_config(AttentionConfig {
            sinks: Some(sinks.clone()),
            ..causal()
        });
        let x = signal(&[2, 3, HIDDEN], 5, device)?;
        let other = signal(&[2, 3, HIDDEN], 9, device)?;
        let q = w.get("q_proj.weight");
        for (layer, to) in [(by_q, q), (rotated, q), (normed, q), (by_sinks, &sinks)] {
            let want = gradient(&layer.forward(&x)?, to)?;
            let mut cache = KvCache::new(2, 8);
            let y = layer.forward_with(&x, None, Some(&mut cache))?;
            cache.truncate(0)?;
            layer.forward_with(&other, None, Some(&mut cache))?;
            assert!(error(&gradient(&y, to)?, &want)? < 1e-5);

            let mut cache = fixed(device)?;
            let y = layer.forward_fixed(&x, &mut cache, &[3, 3])?;
            cache.reset();
            layer.forward_fixed(&other, &mut cache, &[3, 3])?;
            assert!(error(&gradient(&y, to)?, &want)? < 1e-5);
        }
    }
    Ok(())
}

/// Each step fails once before it succeeds.
#[test]
fn a_failed_step_leaves_the_cache_as_it_was() -> Result<()> {
    for device in devices() {
        let w = Weights::new(SEPARATE, device)?;
        let layer = attention(SIZES, w.vb(device))?.with_rotary(tables(device)?);
        let window = AttentionConfig {
            window_left: Some(2),
            ..causal()
        };
        let layer = layer.detached().with_config(window.clone());
        // As many sinks as there are no heads.
        let failing = layer.clone().with_config(AttentionConfig {
            sinks: Some(Tensor::zeros(3, DType::F32, device)?),
            ..window
        });
        let x = signal(&[2, 9, HIDDEN], 5, device)?;
        let whole = layer.forward(&x)?;
        let mut growing = KvCache::new(2, 4);
        let config = FixedKvConfig::new(2, 2, 6, 5).with_window(3);
        let mut fixed = FixedKvCache::new(config, DType::F32, device)?;
        let mask = Tensor::zeros((7, 7), DType::F32, device)?;
        let mut start = 0;
        for n in [3, 1, 3, 2] {
            let (chunk, want) = (x.narrow(1, start, n)?, whole.narrow(1, start, n)?);
            let refused = layer.forward_with(&chunk, Some(&mask), Some(&mut growing));
            says(refused, &["attention: got mask of shape [7, 7]"]);
            assert_eq!(growing.current_seq_len(), start);
            let refused = failing.forward_fixed(&chunk, &mut fixed, &[n, n]);
            says(
                refused,
                &["Attention::forward_fixed: got sinks of shape [3]"],
            );
            assert_eq!(fixed.lengths(), [start, start]);
            let got = layer.forward_with(&chunk, None, Some(&mut growing))?;
            assert!(error(&got, &want)? < 1e-5);
            let got = layer.forward_fixed(&chunk, &mut fixed, &[n, n])?;
            assert!(error(&got, &want)? < 1e-5, "{n} tokens behind {start}");
            start += n;
        }
        assert_eq!(growing.v_cache().current_seq_len(), 9);
    }
    Ok(())
}

fn layer(config: AttentionConfig) -> Result<Attention> {
    let device = &Device::Cpu;
    let w = Weights::new(SEPARATE, device)?;
    Ok(attention(SIZES, w.vb(device))?
        .detached()
        .with_config(config))
}

#[test]
fn masks_are_not_replaced() -> Result<()> {
    let device = &Device::Cpu;
    let mask = Tensor::zeros((3, 3), DType::F32, device)?;
    let masked = layer(AttentionConfig {
        mask: Some(mask.clone()),
        ..causal()
    })?;
    let x = signal(&[2, 3, HIDDEN], 5, device)?;
    let words = ["Attention::forward_with: got a mask beside"];
    says(masked.forward_with(&x, Some(&mask), None), &words);
    assert!(error(&masked.forward(&x)?, &layer(causal())?.forward(&x)?)? < 1e-6);
    // What the config hides stays hidden.
    let seen = Tensor::ones((3, 3), DType::U8, device)?;
    let plain = layer(causal())?;
    let got = plain.forward_with(&x, Some(&seen), None)?;
    assert!(error(&got, &plain.forward(&x)?)? < 1e-6);
    let words = [
        "Attention::forward_with: got a mask of dtype U32",
        "F32",
        "u8",
    ];
    let mask = seen.to_dtype(DType::U32)?;
    says(plain.forward_with(&x, Some(&mask), None), &words);
    Ok(())
}

/// A cache with lengths knows of causal attention and left windows alone.
#[test]
fn what_a_fixed_cache_does_not_know_is_refused() -> Result<()> {
    let device = &Device::Cpu;
    let x = signal(&[2, 3, HIDDEN], 5, device)?;
    let refused = |config: AttentionConfig, word: &str| -> Result<()> {
        let mut cache = fixed(device)?;
        let y = layer(config)?.forward_fixed(&x, &mut cache, &[3, 3]);
        says(y, &["Attention::forward_fixed: got", word]);
        assert_eq!(cache.lengths(), [0, 0]);
        Ok(())
    };
    refused(AttentionConfig::default(), "not causal")?;
    let mask = Tensor::zeros((3, 3), DType::F32, device)?;
    let mask = Some(mask);
    refused(AttentionConfig { mask, ..causal() }, "a mask")?;
    let window_right = Some(1);
    let right = AttentionConfig {
        window_right,
        ..causal()
    };
    refused(right, "a right window")?;
    let key_lengths = Some(Tensor::new(&[3u32, 2], device)?);
    let lengths = AttentionConfig {
        key_lengths,
        ..causal()
    };
    refused(lengths, "key_lengths")?;
    let packed = Some(PackedSequences::new(&[0, 3], &[0, 3])?);
    refused(AttentionConfig { packed, ..causal() }, "packed")?;
    let window_left = Some(usize::MAX);
    let left = AttentionConfig {
        window_left,
        ..causal()
    };
    refused(left, "window of None")?;
    let mut cache = fixed(device)?;
    let plain = layer(causal())?;
    let words = ["Attention::forward_fixed: got", "[2, 12]"];
    says(
        plain.forward_fixed(&x.get(0)?.narrow(0, 0, 2)?, &mut cache, &[3, 3]),
        &words,
    );
    let words = ["Attention::forward_fixed: got 2 sequences and 1 counts"];
    says(plain.forward_fixed(&x, &mut cache, &[3]), &words);
    Ok(())
}

#[test]
fn a_cache_along_another_dim_is_refused() -> Result<()> {
    let x = signal(&[2, 3, HIDDEN], 5, &Device::Cpu)?;
    let mut cache = KvCache::new(1, 8);
    let y = layer(causal())?.forward_with(&x, None, Some(&mut cache));
    says(
        y,
        &["Attention::forward_with: got a cache", "[1, 1]", "dim 2"],
    );
    assert_eq!(cache.current_seq_len(), 0);
    Ok(())
}

#[test]
fn a_detached_layer_has_no_graph() -> Result<()> {
    let device = &Device::Cpu;
    let tables = RotaryTables::from_tables(var(&[8, 2], 1, device)?, var(&[8, 2], 2, device)?)?;
    let layer = layer(causal())?.with_rotary(tables);
    let x = signal(&[2, 3, HIDDEN], 5, device)?;
    assert!(layer.forward(&x)?.track_op());
    let detached = layer.detached().forward(&x)?;
    assert!(!detached.track_op());
    assert!(error(&detached, &layer.forward(&x)?)? < 1e-6);
    Ok(())
}
