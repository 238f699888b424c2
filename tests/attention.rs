//! What the grid has no arguments for: nothing to attend to, memory that must not be read, long sequences.

use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{attention, Attention, AttentionConfig, AttentionLayout};
use candle_fused::reference::attention::reference;

fn random(dims: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
    let value = |i: u64| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0;
    let values: Vec<f32> = (0..dims.iter().product::<usize>() as u64)
        .map(value)
        .collect();
    Tensor::from_vec(values, dims, device)
}

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

fn assert_close(got: &Tensor, want: &Tensor, what: &str) -> Result<()> {
    assert_within(got, want, what, 2e-5)
}

fn assert_within(got: &Tensor, want: &Tensor, what: &str, within: f32) -> Result<()> {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let want = values(want)?;
    let scale = want.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
    for (i, (got, want)) in values(got)?.into_iter().zip(want).enumerate() {
        assert!(
            (got - want).abs() <= within * scale,
            "{what}: {got} at {i}, expected {want}"
        );
    }
    Ok(())
}

fn causal() -> AttentionConfig {
    AttentionConfig {
        causal: true,
        ..Default::default()
    }
}

#[test]
fn without_keys_there_are_zeros() -> Result<()> {
    for device in devices() {
        for queries in [1, 40] {
            let q = Var::from_tensor(&random(&[2, 2, queries, 8], 1, device)?)?;
            let k = Tensor::zeros((2, 1, 0, 8), DType::F32, &Device::Cpu)?.to_device(device)?;
            let y = attention(&q, &k, &k, &causal())?;
            assert_eq!(y.dims(), [2, 2, queries, 8]);
            assert!(values(&y)?.iter().all(|&x| x == 0.0));
            let grads = y.sum_all()?.backward()?;
            let dq = grads.get(&q).expect("a gradient");
            assert!(values(dq)?.iter().all(|&x| x == 0.0));
        }
    }
    Ok(())
}

/// A cache holds anything beyond its lengths.
#[test]
fn what_lies_beyond_the_lengths_is_not_read() -> Result<()> {
    for device in devices() {
        for queries in [1, 3, 30] {
            let (batch, keys, cut) = (2, 45, 34);
            let garbage = Tensor::full(f32::NAN, (batch, 2, keys - cut, 16), device)?;
            let make = |seed| random(&[batch, 2, cut, 16], seed, device);
            let vars = [1, 2]
                .map(|seed| Var::from_tensor(&make(seed).expect("values")).expect("a variable"));
            let [k, v] = &vars;
            let q = Var::from_tensor(&random(&[batch, 4, queries, 16], 3, device)?)?;
            let lengths = Tensor::new(&[cut as i64; 2], device)?;
            let config = AttentionConfig {
                key_lengths: Some(lengths),
                ..causal()
            };
            let longer = |t: &Tensor| Tensor::cat(&[t, &garbage], 2);
            let got = attention(&q, &longer(k)?, &longer(v)?, &config)?;
            let want = attention(&q, k, v, &causal())?;
            assert_eq!(values(&got)?, values(&want)?, "{queries} queries");
            let got = got.sqr()?.sum_all()?.backward()?;
            let want = want.sqr()?.sum_all()?.backward()?;
            for var in [&q, k, v] {
                let of = |grads: &candle_core::backprop::GradStore| {
                    values(grads.get(var).expect("a gradient"))
                };
                assert_eq!(of(&got)?, of(&want)?, "{queries} queries");
            }
        }
    }
    Ok(())
}

/// Keys and values that are views of a longer buffer give the bits of copies.
#[test]
fn views_of_a_cache_are_read_as_they_are() -> Result<()> {
    for device in devices() {
        let (k, v) = (
            random(&[2, 2, 64, 24], 1, device)?,
            random(&[2, 2, 64, 24], 2, device)?,
        );
        for (queries, keys) in [(1, 37), (20, 37), (1, 64)] {
            let q = random(&[2, 4, queries, 24], 3, device)?;
            let (k, v) = (k.narrow(2, 0, keys)?, v.narrow(2, 0, keys)?);
            let got = attention(&q, &k, &v, &causal())?;
            let want = attention(
                &q,
                &k.force_contiguous()?,
                &v.force_contiguous()?,
                &causal(),
            )?;
            assert_eq!(values(&got)?, values(&want)?);
            // The same heads behind each other in the sequence.
            let config = AttentionConfig {
                layout: AttentionLayout::Bshd,
                ..causal()
            };
            let turned = |t: &Tensor| t.transpose(1, 2);
            let got = attention(&turned(&q)?, &turned(&k)?, &turned(&v)?, &config)?;
            assert_eq!(values(&turned(&got)?)?, values(&want)?);
        }
    }
    Ok(())
}

/// More keys than a block, and than a piece of what one query reads.
#[test]
fn long_sequences_agree_with_the_reference() -> Result<()> {
    let device = &Device::Cpu;
    for queries in [1, 20, 300] {
        let keys = 1100;
        let make = |dims: &[usize], seed| Var::from_tensor(&random(dims, seed, device)?);
        let q = make(&[1, 2, queries, 16], 1)?;
        let k = make(&[1, 1, keys, 16], 2)?;
        let v = make(&[1, 1, keys, 16], 3)?;
        for window_left in [None, Some(500), Some(3)] {
            let config = AttentionConfig {
                window_left,
                ..causal()
            };
            let what = format!("{queries} queries, {window_left:?}");
            let got = attention(&q, &k, &v, &config)?;
            let want = reference(&q, &k, &v, &config)?;
            assert_close(&got, &want, &what)?;
            let got = got.sqr()?.sum_all()?.backward()?;
            let want = want.sqr()?.sum_all()?.backward()?;
            for var in [&q, &k, &v] {
                let of = |grads: &candle_core::backprop::GradStore| {
                    grads.get(var).expect("a gradient").clone()
                };
                assert_close(&of(&got), &of(&want), &what)?;
            }
        }
    }
    Ok(())
}

/// A row whose scores all get a large finite mask, as models hide padding, has the weights of its scores without the mask's
/// size: the log-sum-exp as one number would lose them, and gradients would be too large by the number of keys.
#[test]
fn large_finite_masks_keep_the_weights() -> Result<()> {
    for device in devices() {
        for (queries, keys) in [(1, 4), (3, 4), (20, 40)] {
            for hidden in [-1e4f32, -1e9, f32::MIN] {
                let make = |dims: &[usize], seed| Var::from_tensor(&random(dims, seed, device)?);
                let q = make(&[1, 2, queries, 8], 1)?;
                let k = make(&[1, 1, keys, 8], 2)?;
                let v = make(&[1, 1, keys, 8], 3)?;
                let mask = Tensor::full(hidden, (queries, keys), device)?;
                let config = AttentionConfig {
                    mask: Some(mask),
                    ..Default::default()
                };
                let what = format!("{queries} queries, mask of {hidden}");
                let (got, want) = (
                    attention(&q, &k, &v, &config)?,
                    reference(&q, &k, &v, &config)?,
                );
                let loss = |y: &Tensor| y.sum_all()?.backward();
                let (got_grads, want_grads) = (loss(&got)?, loss(&want)?);
                let of = |grads: &candle_core::backprop::GradStore, var: &Var| {
                    grads.get(var).expect("a gradient").clone()
                };
                // At −1e9 a score is rounded to a multiple of 64: the sums of products decide which, so that only the sum of
                // the weights is the same by any order.
                let ones = |t: &Tensor| t.sum_all()?.to_scalar::<f32>();
                let (got_sum, want_sum) = (ones(&of(&got_grads, &v))?, ones(&of(&want_grads, &v))?);
                assert!(
                    (got_sum - want_sum).abs() < 1e-3 * want_sum.abs(),
                    "{what}: {got_sum}, expected {want_sum}"
                );
                if hidden == f32::MIN {
                    assert_close(&got, &want, &what)?;
                    assert_close(&of(&got_grads, &v), &of(&want_grads, &v), &what)?;
                }
            }
        }
    }
    Ok(())
}

/// The maximum of a row moves from tile to tile, far beyond what its weights are relative to.
#[test]
fn scores_that_grow_agree_with_the_reference() -> Result<()> {
    for device in devices() {
        for queries in [1, 33] {
            let q = Var::from_tensor(&random(&[1, 2, queries, 8], 1, device)?)?;
            let growth = Tensor::arange(0f32, 150., device)?.reshape((1, 1, 150, 1))?;
            let k = random(&[1, 1, 150, 8], 2, device)?.broadcast_mul(&(growth * 0.02)?)?;
            let k = Var::from_tensor(&k)?;
            let v = Var::from_tensor(&random(&[1, 1, 150, 72], 3, device)?)?;
            let config = AttentionConfig {
                sinks: Some(Tensor::new(&[3f32, -3.], device)?),
                ..Default::default()
            };
            let what = format!("{queries} queries");
            let got = attention(&q, &k, &v, &config)?;
            let want = reference(&q, &k, &v, &config)?;
            assert_close(&got, &want, &what)?;
            let got = got.sqr()?.sum_all()?.backward()?;
            let want = want.sqr()?.sum_all()?.backward()?;
            for var in [&q, &k, &v] {
                let of = |grads: &candle_core::backprop::GradStore| {
                    grads.get(var).expect("a gradient").clone()
                };
                assert_close(&of(&got), &of(&want), &what)?;
            }
        }
    }
    Ok(())
}

/// Scores of ±80, whose exponentials span all of f32, against a composition in f64. What f32 can give is measured: the error may
/// be four times that of the composition in f32, and a millionth of the largest number.
#[test]
fn large_scores_agree_with_f64() -> Result<()> {
    for device in devices() {
        for queries in [1, 33] {
            let dims = [[1, 2, queries, 8], [1, 1, 150, 8], [1, 1, 150, 24]];
            let q = random(&dims[0], 1, device)?;
            let (k, v) = (random(&dims[1], 2, device)?, random(&dims[2], 3, device)?);
            let products = q
                .contiguous()?
                .matmul(&k.broadcast_as((1, 2, 150, 8))?.t()?.contiguous()?)?;
            let largest = values(&products)?
                .into_iter()
                .fold(0f32, |m, x| m.max(x.abs()));
            let config = AttentionConfig {
                scale: Some(80.0 / largest),
                ..Default::default()
            };
            let vars = [q, k, v].map(|t| Var::from_tensor(&t));
            let [q, k, v] = vars;
            let (q, k, v) = (q?, k?, v?);
            let wide = |t: &Var| {
                let t = t.as_detached_tensor().to_device(&Device::Cpu)?;
                Var::from_tensor(&t.to_dtype(DType::F64)?)
            };
            let (wide_q, wide_k, wide_v) = (wide(&q)?, wide(&k)?, wide(&v)?);
            let narrow =
                |t: &Var| Var::from_tensor(&t.as_detached_tensor().to_device(&Device::Cpu)?);
            let (narrow_q, narrow_k, narrow_v) = (narrow(&q)?, narrow(&k)?, narrow(&v)?);
            let got = attention(&q, &k, &v, &config)?;
            let composed = reference(&narrow_q, &narrow_k, &narrow_v, &config)?;
            let want = reference(&wide_q, &wide_k, &wide_v, &config)?;
            let check = |got: &Tensor, composed: &Tensor, want: &Tensor, what: &str| {
                let want = want.flatten_all()?.to_vec1::<f64>()?;
                let error = |t: &Tensor| -> Result<f64> {
                    let t = values(&t.to_device(&Device::Cpu)?)?.into_iter();
                    let errors = t.zip(&want).map(|(t, want)| (t as f64 - want).abs());
                    Ok(errors.fold(0.0, f64::max))
                };
                let largest = want.iter().fold(0f64, |m, x| m.max(x.abs()));
                let (ours, theirs) = (error(got)?, error(composed)?);
                assert!(
                    ours <= 4.0 * theirs + 1e-6 * largest,
                    "{what} of {queries} queries: an error of {ours}, the composition in f32 has {theirs}"
                );
                Result::Ok(())
            };
            check(&got, &composed, &want, "the result")?;
            let [got, composed, want] =
                [got, composed, want].map(|y| y.sqr()?.sum_all()?.backward());
            let (got, composed, want) = (got?, composed?, want?);
            for (what, ours, theirs, exact) in [
                ("dq", &q, &narrow_q, &wide_q),
                ("dk", &k, &narrow_k, &wide_k),
                ("dv", &v, &narrow_v, &wide_v),
            ] {
                let grads = [got.get(ours), composed.get(theirs), want.get(exact)];
                let [Some(ours), Some(theirs), Some(exact)] = grads else {
                    panic!("{what} is missing");
                };
                check(ours, theirs, exact, what)?;
            }
        }
    }
    Ok(())
}

/// A boolean mask that a comparison of tracked tensors has made gets no gradient, and the others get theirs.
#[test]
fn a_boolean_mask_of_tracked_tensors_has_no_gradient() -> Result<()> {
    for device in devices() {
        let make = |dims: &[usize], seed| Var::from_tensor(&random(dims, seed, device)?);
        let (q, k, v) = (
            make(&[1, 1, 3, 8], 1)?,
            make(&[1, 1, 4, 8], 2)?,
            make(&[1, 1, 4, 8], 3)?,
        );
        let scores = make(&[3, 4], 4)?;
        let config = AttentionConfig {
            mask: Some(scores.ge(-0.5f64)?),
            ..Default::default()
        };
        let got = attention(&q, &k, &v, &config)?
            .sqr()?
            .sum_all()?
            .backward()?;
        let want = reference(&q, &k, &v, &config)?
            .sqr()?
            .sum_all()?
            .backward()?;
        for var in [&q, &k, &v] {
            let of = |grads: &candle_core::backprop::GradStore| {
                grads.get(var).expect("a gradient").clone()
            };
            assert_close(&of(&got), &of(&want), "a boolean mask")?;
        }
    }
    Ok(())
}

/// Applied by hand, the op gives the function's bits and gradients.
#[test]
fn the_custom_op_is_the_function() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            let make = |dims: &[usize], seed| {
                Var::from_tensor(&random(dims, seed, device)?.to_dtype(dtype)?)
            };
            let q = make(&[1, 4, 19, 16], 1)?;
            let (k, v) = (make(&[1, 2, 23, 16], 2)?, make(&[1, 2, 23, 16], 3)?);
            let config = AttentionConfig {
                sinks: Some(random(&[4], 4, device)?.to_dtype(dtype)?),
                ..causal()
            };
            let by_hand = q.apply_op3(
                &k,
                &v,
                Attention {
                    config: config.clone(),
                },
            )?;
            let function = attention(&q, &k, &v, &config)?;
            assert_eq!(values(&by_hand)?, values(&function)?);
            let got = by_hand.sqr()?.sum_all()?.backward()?;
            let want = function.sqr()?.sum_all()?.backward()?;
            for var in [&q, &k, &v] {
                let of = |grads: &candle_core::backprop::GradStore| {
                    values(grads.get(var).expect("a gradient"))
                };
                assert_eq!(of(&got)?, of(&want)?);
            }
        }
    }
    Ok(())
}
