//! q and k together, one of them alone, and their norms.

use super::{assert_close, tables, values, waves, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Result, Tensor, Var};
use candle_fused::ops::{
    qk_norm_rope, rope, rope_qk, HeadNormRope, QkNormRope, Rope, RopeLayout, RopePairs,
};
use candle_fused::reference::qk_norm_rope as norm_reference;
use candle_nn::rotary_emb as stock;

/// Only what contributed to the loss gets more than zeros, and what is not trained gets nothing.
#[test]
fn one_of_two_outputs_is_enough() -> Result<()> {
    for device in devices() {
        let of = |seed| Var::from_tensor(&waves(&[1, seed, 3, 8], DType::F32, device)?);
        let (q, k) = (of(2)?, of(4)?);
        let [cos, sin] = tables(&[3, 4], DType::F32, device)?;
        let (y, z) = rope_qk(&q, &k, &cos, &sin, &Rope::default())?;
        let grads = y.sqr()?.sum_all()?.backward()?;
        let slow = stock::rope_slow(&q, &cos, &sin)?
            .sqr()?
            .sum_all()?
            .backward()?;
        assert_close(grads.get(&q).unwrap(), slow.get(&q).unwrap(), "q")?;
        let dk = grads.get(&k).map(values).transpose()?.unwrap_or_default();
        assert!(dk.iter().all(|&g| g == 0.0));
        assert!(grads.get(&cos).is_none());
        let grads = z.sqr()?.sum_all()?.backward()?;
        let slow = stock::rope_slow(&k, &cos, &sin)?
            .sqr()?
            .sum_all()?
            .backward()?;
        assert_close(grads.get(&k).unwrap(), slow.get(&k).unwrap(), "k")?;

        let weight = Var::from_tensor(&waves(&[8], DType::F32, device)?)?;
        let norm = QkNormRope {
            eps: 1e-5,
            weight_offset: 0.0,
            rope: Rope::default(),
        };
        let frozen = weight.detach();
        let (_, z) = qk_norm_rope(&q, &k, &frozen, &weight, &cos, &sin, &norm)?;
        let grads = z.sqr()?.sum_all()?.backward()?;
        let slow = norm_reference::reference(&k, &weight, &cos, &sin, &norm)?;
        let slow = slow.sqr()?.sum_all()?.backward()?;
        for var in [&k, &weight] {
            assert_close(
                grads.get(var).unwrap(),
                slow.get(var).unwrap(),
                "the norm's",
            )?;
        }
        assert!(grads.get(&frozen).is_none());
    }
    Ok(())
}

/// Heads that are too long for the Metal kernel, odd ones too.
#[test]
fn long_heads_are_normed_and_rotated() -> Result<()> {
    let lengths = DTYPES.map(|dtype| [(dtype, 600, 300), (dtype, 511, 101)]);
    for device in devices() {
        for (dtype, dim, pairs) in lengths.into_iter().flatten() {
            let q = Var::from_tensor(&waves(&[1, 2, 3, dim], dtype, device)?)?;
            let k = waves(&[1, 1, 3, dim], dtype, device)?;
            let weight = Var::from_tensor(&waves(&[dim], dtype, device)?)?;
            let [cos, sin] = tables(&[3, pairs], dtype, device)?;
            for kind in [RopePairs::Half, RopePairs::Interleaved] {
                let rope = Rope {
                    pairs: kind,
                    layout: RopeLayout::HeadsFirst,
                    ..Rope::default()
                };
                let norm = QkNormRope {
                    eps: 1e-5,
                    weight_offset: 1.0,
                    rope,
                };
                let (y, _) = qk_norm_rope(&q, &k, &weight, &weight, &cos, &sin, &norm)?;
                let want = norm_reference::reference(&q, &weight, &cos, &sin, &norm)?;
                assert_close(&y, &want, "a long head")?;
                // Rounded once, nearly all 16-bit numbers are the same.
                let off = values(&y)?.into_iter().zip(values(&want)?);
                let off = off.filter(|(a, b)| a != b).count();
                assert!(
                    dtype == DType::F32 || off * 50 < y.elem_count(),
                    "{off} differ"
                );
                let got = y.sum_all()?.backward()?;
                let want = want.sum_all()?.backward()?;
                for var in [&q, &weight] {
                    let what = format!("gradient of heads of {dim}");
                    assert_close(got.get(var).unwrap(), want.get(var).unwrap(), &what)?;
                }
            }
        }
    }
    Ok(())
}

/// Neither q nor k needs heads: the other one is rotated as if it were alone.
#[test]
fn one_of_two_may_have_no_heads() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            for (layout, dim) in [(RopeLayout::HeadsFirst, 1), (RopeLayout::PositionsFirst, 2)] {
                let shape = |heads: usize| match layout {
                    RopeLayout::HeadsFirst => [2, heads, 3, 8],
                    RopeLayout::PositionsFirst => [2, 3, heads, 8],
                };
                let x = Var::from_tensor(&waves(&shape(2), dtype, device)?)?;
                let none = x.narrow(dim, 0, 0)?;
                let weight = Var::from_tensor(&waves(&[8], dtype, device)?)?;
                let [cos, sin] = tables(&[3, 4], dtype, device)?;
                let config = Rope {
                    layout,
                    ..Rope::default()
                };
                let norm = QkNormRope {
                    eps: 1e-5,
                    weight_offset: 1.0,
                    rope: config.clone(),
                };
                let alone = rope(&x, &cos, &sin, &config)?;
                let normed = norm_reference::reference(&x, &weight, &cos, &sin, &norm)?;
                for of_k in [false, true] {
                    let [q, k] = if of_k {
                        [&none, x.as_tensor()]
                    } else {
                        [&x, &none]
                    };
                    let pair = rope_qk(q, k, &cos, &sin, &config)?;
                    let detached = rope_qk(&q.detach(), &k.detach(), &cos, &sin, &config)?;
                    let both = qk_norm_rope(q, k, &weight, &weight, &cos, &sin, &norm)?;
                    for ((q, k), want) in [(pair, &alone), (detached, &alone), (both, &normed)] {
                        let (some, empty) = if of_k { (k, q) } else { (q, k) };
                        assert_eq!(empty.dims(), shape(0));
                        assert_close(&some, want, "without a partner")?;
                        if !some.track_op() {
                            continue;
                        }
                        let got = some.sqr()?.sum_all()?.backward()?;
                        let want = want.sqr()?.sum_all()?.backward()?;
                        let of = |grads: &candle_core::backprop::GradStore| grads.get(&x).cloned();
                        assert_close(&of(&got).unwrap(), &of(&want).unwrap(), "its gradient")?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Applied by hand to q or to k, the norm and rotation give what both get together, and the same gradients.
#[test]
fn the_custom_op_trains() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            for (pairs, layout) in [
                (RopePairs::Half, RopeLayout::HeadsFirst),
                (RopePairs::Interleaved, RopeLayout::PositionsFirst),
            ] {
                // Two positions, or two heads, of which there are three at most in all.
                let x = Var::from_tensor(&waves(&[2, 2, 3, 16], dtype, device)?)?;
                let weight = Var::from_tensor(&waves(&[16], dtype, device)?)?;
                let [cos, sin] = tables(&[3, 6], dtype, device)?;
                let norm = QkNormRope {
                    eps: 1e-5,
                    weight_offset: 1.0,
                    rope: Rope {
                        pairs,
                        layout,
                        ..Rope::default()
                    },
                };
                let other = Tensor::zeros_like(&x)?;
                let want = qk_norm_rope(&x, &other, &weight, &weight.detach(), &cos, &sin, &norm)?;
                let op = HeadNormRope { norm, cos, sin };
                let got = x.apply_op2(&weight, op.clone())?;
                assert_eq!(values(&got)?, values(&want.0)?);
                let got = got.sqr()?.sum_all()?.backward()?;
                let want = want.0.sqr()?.sum_all()?.backward()?;
                for var in [&x, &weight] {
                    assert_close(got.get(var).unwrap(), want.get(var).unwrap(), "by hand")?;
                }
                // What is not trained gets nothing.
                let (frozen, fixed) = (weight.as_detached_tensor(), x.as_detached_tensor());
                let grads = x.apply_op2(&frozen, op.clone())?.sum_all()?.backward()?;
                assert!(grads.get(&x).is_some() && grads.get(&frozen).is_none());
                let grads = fixed
                    .apply_op2(&weight, op.clone())?
                    .sum_all()?
                    .backward()?;
                assert!(grads.get(&weight).is_some() && grads.get(&fixed).is_none());
                // Tables that train would get no gradient.
                let trained = HeadNormRope {
                    cos: Var::from_tensor(&op.cos)?.into_inner(),
                    ..op
                };
                assert!(x.apply_op2(&weight, trained).is_err());
            }
        }
        // Heads that no Metal kernel takes.
        let x = waves(&[1, 2, 3, 600], DType::F32, device)?;
        let weight = waves(&[600], DType::F32, device)?;
        let [cos, sin] = tables(&[3, 300], DType::F32, device)?;
        let norm = QkNormRope {
            eps: 1e-5,
            weight_offset: 0.0,
            rope: Rope::default(),
        };
        let y = x.apply_op2(&weight, HeadNormRope { norm, cos, sin });
        assert_eq!(y.is_ok(), device.is_cpu());
        if let Err(error) = y {
            assert!(
                error.to_string().contains("heads of 600 elements"),
                "{error}"
            );
        }
    }
    Ok(())
}
