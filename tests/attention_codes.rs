//! What the grid can't say of attention over quantised keys and values.

use super::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{attention_codes, quantize, AttentionCodes, AttentionConfig};
use candle_fused::quant::{KvCodes, ScaleScope, Scheme};

fn random(dims: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
    super::cases::Fill::Signal.tensor(dims, seed, DType::F32, device)
}

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

fn codes(dims: &[usize], seed: u64, scheme: Scheme, device: &Device) -> Result<KvCodes> {
    let codes = quantize(&random(dims, seed, device)?, scheme)?;
    Ok(KvCodes {
        codes: codes.codes().clone(),
        scales: codes.scales().clone(),
        offsets: codes.offsets().cloned(),
        scheme,
        head_dim: dims[3],
    })
}

fn schemes() -> [Scheme; 3] {
    [
        Scheme::int8(ScaleScope::Group(4)),
        Scheme::uint8(ScaleScope::Group(8)),
        Scheme::mlx(4, 8),
    ]
}

/// Applied by hand to a tracked q, the op gives q the function's gradient, which goes by way of dequantised keys and values.
#[test]
fn the_custom_op_has_the_functions_gradient() -> Result<()> {
    for device in devices() {
        for scheme in schemes() {
            let k = codes(&[1, 2, 23, 16], 1, scheme, device)?;
            let v = codes(&[1, 2, 23, 16], 2, scheme, device)?;
            let q = Var::from_tensor(&random(&[1, 4, 9, 16], 3, device)?)?;
            let config = AttentionConfig {
                causal: true,
                sinks: Some(random(&[4], 4, device)?),
                ..Default::default()
            };
            let op = AttentionCodes {
                keys: k.clone(),
                values: v.clone(),
                config: config.clone(),
            };
            let gradient = |y: Tensor| -> Result<Vec<f32>> {
                let grads = y.sqr()?.sum_all()?.backward()?;
                values(grads.get(&q).expect("a gradient to q"))
            };
            let got = gradient(q.apply_op1(op)?)?;
            let want = gradient(attention_codes(&q, &k, &v, &config)?)?;
            assert!(want.iter().any(|g| g.abs() > 1e-2), "{scheme:?}: no slope");
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() <= 1e-4, "{scheme:?}: {got} {want}");
            }
        }
    }
    Ok(())
}

/// The same numbers at other places: neighbours that lie apart, rows and heads in another order, repeated heads.
#[test]
fn strided_codes_give_the_same_bits() -> Result<()> {
    let apart = |t: &Tensor| t.transpose(1, 3)?.contiguous()?.transpose(1, 3);
    let heads_last = |t: &Tensor| t.transpose(1, 2)?.contiguous()?.transpose(1, 2);
    let offset = |t: &Tensor| Tensor::cat(&[t, t], 2)?.narrow(2, t.dim(2)?, t.dim(2)?);
    let repeated = |t: &Tensor| t.narrow(1, 0, 1)?.broadcast_as(t.shape());
    type View<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
    let views: [(&str, View); 4] = [
        ("apart", &apart),
        ("heads last", &heads_last),
        ("offset", &offset),
        ("repeated", &repeated),
    ];
    for device in devices() {
        for scheme in schemes() {
            for queries in [1, 12] {
                let k = codes(&[2, 2, 23, 16], 1, scheme, device)?;
                let v = codes(&[2, 2, 23, 32], 2, scheme, device)?;
                let q = random(&[2, 4, queries, 16], 3, device)?;
                for (name, view) in views {
                    let viewed = |codes: &KvCodes| -> Result<KvCodes> {
                        Ok(KvCodes {
                            codes: view(&codes.codes)?,
                            scales: view(&codes.scales)?,
                            offsets: codes.offsets.as_ref().map(view).transpose()?,
                            ..*codes
                        })
                    };
                    let dense = |codes: &KvCodes| -> Result<KvCodes> {
                        Ok(KvCodes {
                            codes: codes.codes.force_contiguous()?,
                            scales: codes.scales.force_contiguous()?,
                            offsets: match &codes.offsets {
                                Some(offsets) => Some(offsets.force_contiguous()?),
                                None => None,
                            },
                            ..*codes
                        })
                    };
                    let (k, v) = (viewed(&k)?, viewed(&v)?);
                    let config = AttentionConfig::default();
                    let got = attention_codes(&q, &k, &v, &config)?;
                    let want = attention_codes(&q, &dense(&k)?, &dense(&v)?, &config)?;
                    let what = format!("{name}, {scheme:?}, {queries} queries");
                    assert_eq!(values(&got)?, values(&want)?, "{what}");
                }
            }
        }
    }
    Ok(())
}
