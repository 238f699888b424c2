//! The layers against plain Candle and torch.

use super::*;
use crate::devices::devices;
use candle_core::{Module, Var, D};
use candle_fused::nn::quantized::SubNormConfig;
use candle_fused::nn::{
    bit_linear, bit_linear_no_bias, BitLinear, BitLinearConfig, Linear, QuantLinear, VarBuilder,
    VarMap,
};
use candle_fused::ops::{self, Act, Activations};
use candle_fused::quant::{Levels, Packing, ScaleScope};

const EPS: f32 = 1e-6;

/// What Candle sees as the value of `to`, and as the gradient of `x`.
fn through(x: &Tensor, to: &Tensor) -> Result<Tensor> {
    x + (to - x)?.detach()
}

fn int8(x: &Tensor) -> Result<Tensor> {
    let s = (x.abs()?.max_keepdim(D::Minus1)?.maximum(1e-5)?.recip()? * 127.)?;
    let codes = x.broadcast_mul(&s)?.round()?.clamp(-128f32, 127f32)?;
    through(x, &codes.broadcast_div(&s)?)
}

/// Of the original and of the b1.58 BitNet, for the whole weight or for each row.
fn bits(w: &Tensor, scheme: Scheme) -> Result<Tensor> {
    let mean = |t: &Tensor| match scheme.scope {
        ScaleScope::Tensor => t.mean_keepdim((0, 1)),
        _ => t.mean_keepdim(1),
    };
    let size = mean(&w.abs()?)?.maximum(1e-5)?;
    let codes = match scheme.levels {
        Levels::Ternary => w.broadcast_div(&size)?.round()?.clamp(-1f32, 1f32)?,
        _ => {
            let above = w.broadcast_gt(&mean(w)?)?.to_dtype(w.dtype())?;
            ((above * 2.)? - 1.)?
        }
    };
    through(w, &codes.broadcast_mul(&size)?)
}

fn rms(x: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    let size = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(EPS))?.sqrt()?;
    let x = x.broadcast_div(&size)?;
    weight.map_or(Ok(x.clone()), |weight| x.broadcast_mul(weight))
}

/// The variables of a layer in f32, and the layer in plain Candle.
fn reference(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    norm: Option<Option<&Tensor>>,
    scheme: Scheme,
) -> Result<Tensor> {
    let wide = |t: &Tensor| t.to_dtype(DType::F32);
    let dtype = x.dtype();
    let mut x = wide(x)?;
    if let Some(weight) = norm {
        // The norm is a layer of its own, whose output is rounded to the dtype.
        let normed = rms(&x, weight.map(wide).transpose()?.as_ref())?;
        x = wide(&normed.to_dtype(dtype)?)?;
    }
    let y = int8(&x)?.broadcast_matmul(&bits(&wide(w)?, scheme)?.t()?)?;
    bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(&wide(bias)?))
}

fn schemes() -> [Scheme; 4] {
    let per = |per| [Scheme::ternary(per), Scheme::sign(per)];
    let ([a, b], [c, d]) = (per(ScaleScope::Tensor), per(ScaleScope::Row));
    [a, b, c, d]
}

/// With a norm, with a weight of it, with a bias.
type Parts = (bool, bool, bool);

#[test]
fn values_and_gradients_of_the_detach_trick() -> Result<()> {
    let parts: [Parts; 4] = [
        (false, false, false),
        (false, false, true),
        (true, false, true),
        (true, true, false),
    ];
    for device in devices() {
        for dtype in DTYPES {
            for scheme in schemes() {
                for parts in parts {
                    check(parts, scheme, dtype, device)?;
                }
            }
        }
    }
    Ok(())
}

fn check(parts: Parts, scheme: Scheme, dtype: DType, device: &Device) -> Result<()> {
    let (normed, weighted, biased) = parts;
    let what = format!("{dtype:?} {scheme:?} {normed} {weighted} {biased}");
    let var = |t: Tensor| Var::from_tensor(&t).map(Var::into_inner);
    let x = var(signal(&[2, 3, 25], 1, dtype, device)?)?;
    let w = var(signal(&[11, 25], 2, dtype, device)?)?;
    let bias = match biased {
        true => Some(var(signal(&[11], 3, dtype, device)?)?),
        false => None,
    };
    let weight = match weighted {
        true => Some(var(Fill::Weight.tensor(&[25], 4, dtype, device)?)?),
        false => None,
    };
    let g = signal(&[2, 3, 11], 5, dtype, device)?;

    let norm = match (&weight, normed) {
        (Some(weight), _) => Some(SubNorm::with_weight(weight.clone(), EPS)),
        (None, true) => Some(SubNorm::new(EPS)),
        (None, false) => None,
    };
    let layer = BitLinear::new(w.clone(), bias.clone(), norm, scheme)?;
    let y = layer.forward(&x)?;
    assert_eq!(y.dtype(), dtype);
    let norm = normed.then_some(weight.as_ref());
    let want = reference(&x, &w, bias.as_ref(), norm, scheme)?;
    // Where the norm is rounded otherwise, a code of 8 bits may be the next one.
    let bound = if normed { 2. } else { 1. } * tolerance(dtype);
    assert_near(&y, &want, bound, &what)?;

    let got = (y * &g)?.backward()?;
    let wanted = (want * g.to_dtype(DType::F32)?)?.backward()?;
    let vars = [Some(&x), Some(&w), bias.as_ref(), weight.as_ref()];
    for (i, var) in vars.into_iter().flatten().enumerate() {
        let (got, want) = (got.get(var), wanted.get(var));
        let (got, want) = (got.expect("ours"), want.expect("theirs"));
        assert_near(got, want, bound, &format!("gradient {i}, {what}"))?;
    }

    check_packed(&layer, &x.detach(), bound, &what)
}

/// Packed, it gives the same; so it does for a view.
fn check_packed(layer: &BitLinear, x: &Tensor, bound: f64, what: &str) -> Result<()> {
    let packed = layer.freeze()?;
    let frozen = packed.forward(x)?;
    assert_near(&frozen, &layer.forward(x)?, bound, what)?;
    let view = x.transpose(0, 1)?;
    let want = frozen.transpose(0, 1)?.contiguous()?;
    assert_same(&packed.forward(&view)?, &want, what)?;
    let row_bytes = if layer.scheme().levels == Levels::Ternary {
        7
    } else {
        4
    };
    assert_eq!(packed.weight().codes().dims(), [11, row_bytes]);
    assert!(!frozen.track_op());
    Ok(())
}

/// torch's, with autograd; transformers' own training layer does the same.
#[test]
fn values_and_gradients_of_torch() -> Result<()> {
    for device in devices() {
        let file = fixture("torch_ste.safetensors", device)?;
        for (prefix, scheme, norm) in [
            ("", Scheme::ternary(ScaleScope::Tensor), None),
            ("sign_", Scheme::sign(ScaleScope::Tensor), None),
            (
                "norm_",
                Scheme::ternary(ScaleScope::Tensor),
                Some(SubNorm::new(EPS)),
            ),
        ] {
            let get = |name: &str| file[&format!("{prefix}{name}")].clone();
            let x = Var::from_tensor(&get("x"))?.into_inner();
            let w = Var::from_tensor(&get("W"))?.into_inner();
            let layer = BitLinear::new(w.clone(), None, norm, scheme)?;
            let y = layer.forward(&x)?;
            assert_near(&y, &get("y"), 1e-5, prefix)?;
            let grads = (&y * get("g"))?.backward()?;
            assert_near(grads.get(&x).expect("dx"), &get("dx"), 1e-5, prefix)?;
            assert_near(grads.get(&w).expect("dW"), &get("dW"), 1e-5, prefix)?;

            let packed = layer.freeze()?;
            assert_near(&packed.forward(&get("x"))?, &get("y"), 1e-5, prefix)?;
            // The codes, by what they stand for.
            let scale = packed.weight().scales();
            let codes = packed
                .weight()
                .dequantize(DType::F32)?
                .broadcast_div(scale)?;
            let codes = match scheme.levels {
                Levels::Ternary => codes,
                // The scale is that of a step, from −½ to ½.
                _ => codes.sign()?,
            };
            assert_close(&codes, &get("Wq"), 1e-6, prefix)?;
        }
        let scheme = Scheme::ternary(ScaleScope::Tensor);
        let ties = quantize(&file["ties_W"], scheme)?.dequantize(DType::F32)?;
        assert_same(&ties, &file["ties_Wq"], "ties of weights")?;
        let ties =
            quantize(&file["ties_x"], Scheme::int8(ScaleScope::Row))?.dequantize(DType::F32)?;
        assert_same(&ties, &file["ties_xq"], "ties of activations")?;
    }
    Ok(())
}

#[test]
fn variables_have_the_names_of_other_linear_layers() -> Result<()> {
    for device in devices() {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let norm = |weight| SubNormConfig { eps: EPS, weight };
        let config = BitLinearConfig::SIGN.with_norm(norm(true));
        let up = bit_linear(6, 4, config, vb.pp("up"))?;
        let down = bit_linear_no_bias(4, 6, BitLinearConfig::default(), vb.pp("down"))?;
        let plain = BitLinearConfig::TERNARY.with_norm(norm(false));
        let plain = bit_linear_no_bias(6, 6, plain, vb.pp("plain"))?;
        let mut names: Vec<String> = vars.data().lock().unwrap().keys().cloned().collect();
        names.sort();
        let expected = [
            "down.weight",
            "plain.weight",
            "up.bias",
            "up.rms_norm.weight",
            "up.weight",
        ];
        assert_eq!(names, expected);
        let x = signal(&[2, 6], 1, DType::F32, device)?;
        let y = plain.forward(&down.forward(&up.forward(&x)?)?)?;
        let grads = y.sqr()?.sum_all()?.backward()?;
        for (name, var) in vars.data().lock().unwrap().iter() {
            assert!(grads.get(var).is_some(), "no gradient to {name}");
        }
    }
    Ok(())
}

/// Of every dtype, whatever the bias has.
#[test]
fn packed_layers_take_every_dtype() -> Result<()> {
    for device in devices() {
        let layer = bit_layer(
            (5, 20),
            Scheme::ternary(ScaleScope::Row),
            DType::F32,
            device,
        )?;
        let quant = QuantLinear::new(layer.weight().clone(), layer.bias().cloned())?;
        let x = signal(&[3, 20], 4, DType::BF16, device)?;
        for layer in [&layer as &dyn Module, &quant] {
            let want = layer.forward(&x.to_dtype(DType::F32)?)?;
            for dtype in DTYPES {
                let y = layer.forward(&x.to_dtype(dtype)?)?;
                assert_eq!(y.dtype(), dtype);
                assert_near(&y, &want, tolerance(dtype), &format!("{dtype:?}"))?;
            }
        }
        // Nothing in, nothing out.
        let none = Tensor::zeros((0, 20), DType::F16, device)?;
        assert_eq!(layer.forward(&none)?.dims(), [0, 5]);
        assert_eq!(quant.forward(&none)?.dims(), [0, 5]);
    }
    Ok(())
}

/// What the codes stand for, times x; and its gradients.
#[test]
fn quant_linear_of_every_scheme() -> Result<()> {
    let groups = |grid| Scheme::new(grid, ScaleScope::Group(32));
    let schemes = [
        Scheme::mlx(2, 32),
        Scheme::mlx(4, 64),
        Scheme::mlx(8, 64),
        Scheme::int8(ScaleScope::Row),
        Scheme::uint8(ScaleScope::Tensor),
        groups(Levels::Sign { centred: false }),
        groups(Levels::Ternary).with_packing(Packing::Base3),
        groups(Levels::ZeroPoint { bits: 4 }),
    ];
    for device in devices() {
        for dtype in DTYPES {
            for scheme in schemes {
                let what = format!("{dtype:?} {scheme:?}");
                let w = signal(&[7, 64], 1, dtype, device)?;
                let bias = Var::from_tensor(&signal(&[7], 2, dtype, device)?)?.into_inner();
                let x = Var::from_tensor(&signal(&[3, 64], 3, dtype, device)?)?.into_inner();
                let layer = QuantLinear::new(quantize(&w, scheme)?, Some(bias.clone()))?;
                let y = layer.forward(&x)?;
                let wide = |t: &Tensor| t.to_dtype(DType::F32);
                let w = layer.weight().dequantize(DType::F32)?;
                let want = wide(&x)?.matmul(&w.t()?)?.broadcast_add(&wide(&bias)?)?;
                assert_near(&y, &want, tolerance(dtype), &what)?;
                let (got, want) = (y.sum_all()?.backward()?, want.sum_all()?.backward()?);
                for var in [&x, &bias] {
                    let (got, want) = (got.get(var).expect("ours"), want.get(var).expect("theirs"));
                    assert_near(got, want, tolerance(dtype), &what)?;
                }
            }
        }
    }
    Ok(())
}

/// Gradients are those of the layer that does not round.
#[test]
fn a_quant_linear_rounds_its_input_if_asked_to() -> Result<()> {
    for device in devices() {
        let w = quantize(
            &signal(&[7, 64], 1, DType::F32, device)?,
            Scheme::mlx(4, 32),
        )?;
        // As many rows as are multiplied as bytes on a CPU.
        let x = Var::from_tensor(&signal(&[7, 64], 3, DType::F32, device)?)?.into_inner();
        let exact = QuantLinear::new(w.clone(), None)?;
        assert_eq!(exact.activations(), Activations::Exact);
        let layer = exact.clone().with_activations(Activations::Int8);
        let rounded = ops::fake_quantize(&x, Scheme::int8(ScaleScope::Group(32)))?;
        let (y, want) = (layer.forward(&x)?, exact.forward(&rounded)?);
        assert_near(&y, &want, tolerance(DType::F32), "rounded")?;
        let gradient = |y: Tensor| -> Result<Tensor> {
            let gradients = y.sqr()?.sum_all()?.backward()?;
            Ok(gradients.get(&x).expect("x is a variable").clone())
        };
        assert_near(
            &gradient(y)?,
            &gradient(want)?,
            tolerance(DType::F32),
            "gradient",
        )?;
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    for device in devices() {
        let t = |dims: &[usize]| signal(dims, 1, DType::F32, device);
        let ternary = Scheme::ternary(ScaleScope::Tensor);
        let new = |w, bias, norm, scheme| BitLinear::new(w, bias, norm, scheme);
        let says = ["BitLinear", "expected [out, in]"];
        assert_refused(new(t(&[4])?, None, None, ternary), &says);
        let bias = Some(t(&[5])?);
        assert_refused(
            new(t(&[4, 6])?, bias, None, ternary),
            &["BitLinear", "got bias of shape [5], expected [4]"],
        );
        let norm =
            |len: usize, eps| Ok::<_, candle_core::Error>(SubNorm::with_weight(t(&[len])?, eps));
        assert_refused(
            new(t(&[4, 6])?, None, Some(norm(4, EPS)?), ternary),
            &["got the norm's weight of shape [4], expected [6]"],
        );
        assert_refused(
            new(t(&[4, 6])?, None, Some(norm(6, 0.)?), ternary),
            &["eps = 0"],
        );
        for scheme in [
            Scheme::int8(ScaleScope::Row),
            Scheme::ternary(ScaleScope::Group(2)),
            ternary.with_packing(Packing::Base3),
        ] {
            assert_refused(
                new(t(&[4, 6])?, None, None, scheme),
                &[
                    "BitLinear",
                    "expected Ternary or Sign per Tensor or Row in Bits",
                ],
            );
        }
        let act = Linear::new(t(&[4, 6])?, None).with_act(Act::Relu);
        assert_refused(
            BitLinear::from_linear(act.clone(), None, ternary),
            &["Relu", "expected one without activation"],
        );
        assert_refused(
            QuantLinear::quantize(act, Scheme::int8(ScaleScope::Row)),
            &["QuantLinear", "Relu"],
        );
        let columns = ops::quantize(&t(&[4, 6])?, Scheme::int8(ScaleScope::Column))?;
        assert_refused(QuantLinear::new(columns, None), &["QuantLinear", "Column"]);
        let groups = quantize(&t(&[4, 64])?, Scheme::ternary(ScaleScope::Group(32)))?;
        assert_refused(
            PackedBitLinear::new(groups, None, None),
            &["PackedBitLinear", "Group(32)"],
        );
        let layer = BitLinear::new(t(&[4, 6])?, None, None, ternary)?;
        assert_refused(layer.forward(&t(&[2, 5])?), &["linear", "5"]);
        assert_refused(layer.freeze()?.forward(&t(&[2, 5])?), &["bitlinear", "5"]);
        let ints = Tensor::zeros((2, 6), DType::U32, device)?;
        assert_refused(layer.forward(&ints), &["BitLinear", "U32"]);
        assert_refused(layer.freeze()?.forward(&ints), &["PackedBitLinear", "U32"]);
    }
    Ok(())
}
