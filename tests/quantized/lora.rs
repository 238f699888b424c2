//! Adapters beside packed weights.

use super::*;
use crate::devices::devices;
use candle_core::{Module, ModuleT, Var};
use candle_fused::nn::lora::{LoraBuilder, LoraConfig, LoraLinear};
use candle_fused::nn::quantized::PackedLinear;
use candle_fused::nn::{Linear, QuantLinear, VarBuilder, VarMap};
use candle_fused::ops::AdapterDropout;
use candle_fused::ops::{self, lora_with, Adapter, FrozenWeight};
use candle_fused::quant::ScaleScope;

const DIMS: (usize, usize) = (7, 64);

/// The base's share in plain Candle, without gradients to it.
fn base(x: &Tensor, w: &Quantized, bias: Option<&Tensor>, rounded: bool) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let x = match rounded {
        true => ops::fake_quantize(&wide, Scheme::int8(ScaleScope::Row))?,
        false => wide,
    };
    let y = x.broadcast_matmul(&w.dequantize(DType::F32)?.detach().t()?)?;
    bias.map_or(Ok(y.clone()), |bias| {
        y.broadcast_add(&bias.to_dtype(DType::F32)?.detach())
    })
}

#[test]
fn values_and_gradients_of_the_op() -> Result<()> {
    let schemes = [
        (Scheme::mlx(4, 32), false),
        (Scheme::int8(ScaleScope::Row), false),
        (Scheme::sign(ScaleScope::Group(16)), false),
        (Scheme::ternary(ScaleScope::Tensor), true),
        (Scheme::sign(ScaleScope::Row), true),
    ];
    for device in devices() {
        for dtype in DTYPES {
            for (scheme, rounded) in schemes {
                let what = format!("{dtype:?} {scheme:?}");
                let var = |dims: &[usize], seed, by: f64| {
                    let t = (signal(dims, seed, dtype, device)? * by)?;
                    Var::from_tensor(&t).map(Var::into_inner)
                };
                let (out, cols) = DIMS;
                let (x, bias) = (var(&[2, 3, cols], 1, 1.)?, var(&[out], 2, 1.)?);
                let (a, b) = (var(&[3, cols], 3, 0.25)?, var(&[out, 3], 4, 0.25)?);
                let w = quantize(&signal(&[out, cols], 5, dtype, device)?, scheme)?;
                // Scales that would be trained elsewhere are frozen here.
                let scales = Var::from_tensor(w.scales())?.into_inner();
                let offsets = w.offsets().cloned();
                let w = Quantized::new(
                    w.codes().clone(),
                    scales,
                    offsets,
                    w.shape().clone(),
                    scheme,
                )?;
                for dropout in [None, Some(AdapterDropout { p: 0.5, seed: 3 })] {
                    let adapter = Adapter {
                        a: &a,
                        b: &b,
                        scale: 0.5,
                        dropout,
                    };
                    let kind = match rounded {
                        true => FrozenWeight::BitNet(w.clone()),
                        false => FrozenWeight::Packed(w.clone()),
                    };
                    let y = lora_with(&x, &kind, Some(&bias), adapter)?;
                    let dropped = match dropout {
                        Some(AdapterDropout { p, seed }) => ops::dropout(&x, p, seed)?,
                        None => x.clone(),
                    };
                    let wide = |t: &Tensor| t.to_dtype(DType::F32);
                    let low = wide(&dropped)?.broadcast_matmul(&wide(&a)?.t()?)?;
                    let low = (low.broadcast_matmul(&wide(&b)?.t()?)? * 0.5)?;
                    let want = (base(&x, &w, Some(&bias), rounded)? + low)?;
                    assert_eq!(y.dtype(), dtype);
                    assert_near(&y, &want, tolerance(dtype), &what)?;
                    let g = signal(&[2, 3, out], 6, dtype, device)?;
                    let got = (y * &g)?.backward()?;
                    let wanted = (want * wide(&g)?)?.backward()?;
                    for (i, var) in [&x, &a, &b].into_iter().enumerate() {
                        let (got, want) = (got.get(var), wanted.get(var));
                        let (got, want) = (got.expect("ours"), want.expect("theirs"));
                        assert_near(got, want, tolerance(dtype), &format!("gradient {i} {what}"))?;
                    }
                    assert!(got.get(w.scales()).is_none() && got.get(&bias).is_none());
                }
            }
        }
    }
    Ok(())
}

fn bases(device: &Device) -> Result<[PackedLinear; 3]> {
    let (out, cols) = DIMS;
    let w = signal(&[out, cols], 1, DType::F32, device)?;
    let bias = signal(&[out], 2, DType::F32, device)?;
    let bit = bit_layer(DIMS, Scheme::ternary(ScaleScope::Row), DType::F32, device)?;
    let plain = PackedBitLinear::new(bit.weight().clone(), Some(bias.clone()), None)?;
    let quant = QuantLinear::quantize(Linear::new(w, Some(bias)), Scheme::mlx(4, 32))?;
    Ok([quant.into(), plain.into(), bit.into()])
}

fn config(use_dora: bool) -> LoraConfig {
    LoraConfig {
        rank: 3,
        alpha: 6.,
        use_dora,
        ..Default::default()
    }
}

/// The layer beside each base, against the same adapter in plain Candle.
#[test]
fn values_and_gradients_of_the_layer() -> Result<()> {
    for device in devices() {
        for base in bases(device)? {
            for dora in [false, true] {
                if dora && base.norm().is_some() {
                    continue;
                }
                let vars = VarMap::new();
                let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
                let layer = LoraLinear::from_packed(base.clone(), &config(dora), vb.pp("up"))?;
                let x = Var::from_tensor(&signal(&[3, DIMS.1], 3, DType::F32, device)?)?;
                assert_near(&layer.forward(&x)?, &base.forward(&x)?, 1e-6, "the start")?;
                for (seed, var) in (4..).zip(layer.adapter_vars()) {
                    let moved = (signal(var.dims(), seed, DType::F32, device)? * 0.2)?;
                    var.set(&(var.as_tensor() + moved)?)?;
                }
                let adapter = layer.adapters().adapter("default").expect("the adapter");
                let (a, b) = (adapter.a().as_tensor(), adapter.b().as_tensor());
                let low = (x.matmul(&a.t()?)?.matmul(&b.t()?)? * 2.)?;
                let product = base.forward(&x)?;
                let want = match (adapter.magnitude(), base.bias()) {
                    (Some(m), Some(bias)) => {
                        let bias = bias.detach();
                        let w = base
                            .weight()
                            .quantized()
                            .expect("codes")
                            .dequantize(DType::F32)?;
                        let sum = (w + (b.matmul(a)? * 2.)?)?.detach();
                        let norms = sum.sqr()?.sum_keepdim(1)?.sqrt()?.flatten_all()?;
                        let y = (product.broadcast_sub(&bias)? + low)?;
                        y.broadcast_mul(&m.as_tensor().div(&norms)?)?
                            .broadcast_add(&bias)?
                    }
                    _ => (product + low)?,
                };
                let y = layer.forward_t(&x, true)?;
                assert_near(&y, &want, 1e-5, "moved")?;
                let (got, wanted) = (y.sqr()?.backward()?, want.sqr()?.backward()?);
                let vars = layer.adapter_vars().into_iter().chain([x.clone()]);
                for (i, var) in vars.enumerate() {
                    let (got, want) = (
                        got.get(&var).expect("ours"),
                        wanted.get(&var).expect("theirs"),
                    );
                    assert_near(got, want, 1e-4, &format!("gradient {i}, DoRA {dora}"))?;
                }
                for dtype in DTYPES {
                    let y = layer.forward(&x.to_dtype(dtype)?)?;
                    assert_eq!(y.dtype(), dtype);
                    assert_near(&y, &want, 2. * tolerance(dtype), &format!("{dtype:?}"))?;
                }

                assert_refused(layer.merge(), &["LoraLinear up", "quantised"]);
                assert!(layer.adapters().weight().is_none());
                layer.adapters().disable();
                assert_same(&layer.forward(&x)?, &base.forward(&x)?, "disabled")?;
            }
        }
    }
    Ok(())
}

#[test]
fn built_into_a_model() -> Result<()> {
    for device in devices() {
        let [quant, plain, normed] = bases(device)?;
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let builder = LoraBuilder::new(vb, &config(false), ["up", "down"])?;
        let up = builder.pp("up").linear_packed(quant.clone())?;
        let side = builder.pp("side").linear_packed(plain)?;
        let down = builder.pp("down").linear_packed(normed.clone())?;
        let model = builder.finish()?;
        assert_eq!(model.adapter_vars().len(), 4);
        assert!(side.adapters().adapter_names().is_empty() && vars.all_vars().is_empty());
        let x = signal(&[2, DIMS.1], 3, DType::F32, device)?;
        let y = ((up.forward(&x)? + side.forward(&x)?)? + down.forward(&x)?)?;
        let grads = y.sqr()?.sum_all()?.backward()?;
        for var in model.adapter_vars() {
            assert!(grads.get(&var).is_some());
        }
        // PEFT's files don't care what the base is.
        let dir = TempDir::new("packed-adapter");
        model.save_peft("default", dir.path())?;
        model.load_peft("default", dir.path())?;

        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let refused = LoraLinear::from_packed(normed, &config(true), vb.pp("down"));
        assert_refused(refused, &["LoraLinear down", "use_dora", "norm"]);
        let x = signal(&[2, 5], 3, DType::F32, device)?;
        assert_refused(up.forward(&x), &["5"]);
        let wrong = signal(&[3, 5], 3, DType::F32, device)?;
        let adapter = Adapter {
            a: &wrong,
            b: &wrong,
            scale: 1.,
            dropout: None,
        };
        let x = signal(&[2, DIMS.1], 3, DType::F32, device)?;
        let refused = lora_with(&x, quant.weight(), None, adapter);
        assert_refused(refused, &["lora", "got a of shape [3, 5]"]);
    }
    Ok(())
}
