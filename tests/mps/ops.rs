//! The ops: values, layouts, empty and tiny tensors, and what they refuse.

use super::{error, exact, metal, signal, softmetal, tolerance};
use candle_core::{DType, Device, Result, Tensor, D};
use candle_fused::metal::mps::is_supported;
use candle_fused::ops::mps::{activation, matmul, matmul_auto, softmax};
use candle_fused::ops::Act;
use candle_fused::reference::activation::reference;

const SERVED: [Act; 7] = [
    Act::Identity,
    Act::Relu,
    Act::LeakyRelu(0.125),
    Act::GeluErf,
    Act::Sigmoid,
    Act::Tanh,
    Act::Softplus,
];

/// Tensors `[4, 6]` or `[2, 3, 4, 6]` in many layouts.
fn views(dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let of = |dims: &[usize]| signal(dims, 7, dtype, device);
    Ok(vec![
        of(&[4, 6])?,
        of(&[6, 4])?.t()?,
        of(&[4, 9])?.narrow(1, 2, 6)?,
        of(&[7, 6])?.narrow(0, 3, 4)?,
        of(&[6, 9])?.t()?.narrow(0, 1, 4)?,
        // Neither rows nor columns in one piece.
        of(&[4, 6, 3])?.narrow(2, 1, 1)?.squeeze(2)?,
        of(&[1, 6])?.broadcast_as((4, 6))?,
        of(&[4, 1])?.broadcast_as((4, 6))?,
        of(&[2, 3, 4, 6])?,
        of(&[2, 4, 3, 6])?.transpose(1, 2)?,
        of(&[2, 3, 6, 4])?.transpose(2, 3)?,
        of(&[3, 2, 4, 6])?.transpose(0, 1)?,
        of(&[2, 3, 5, 6])?.narrow(2, 1, 4)?,
        of(&[2, 3, 4, 7])?.narrow(3, 1, 6)?,
        of(&[4, 6])?.broadcast_as((2, 3, 4, 6))?,
        of(&[3, 4, 6])?.broadcast_as((2, 3, 4, 6))?,
    ])
}

#[test]
fn products_of_any_layout() -> Result<()> {
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            let views = views(dtype, device)?;
            for (i, x) in views.iter().enumerate() {
                for (j, y) in views.iter().enumerate() {
                    if x.rank() != y.rank() {
                        continue;
                    }
                    for (x, y) in [
                        (x, y.t()?),
                        (&x.narrow(D::Minus2, 1, 1)?, y.t()?),
                        (&x.t()?, y.clone()),
                    ] {
                        let want = exact(x)?.matmul(&exact(&y)?)?;
                        let error = error(&matmul(x, &y)?, &want)?;
                        assert!(error < tolerance(dtype), "views {i} and {j}: {error:e}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn products_with_vectors() -> Result<()> {
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            let w = signal(&[9, 7], 1, dtype, device)?;
            let v = signal(&[7, 3], 2, dtype, device)?;
            let line = signal(&[1, 9], 3, dtype, device)?;
            let cases = [
                (w.clone(), v.narrow(1, 0, 1)?.contiguous()?),
                (w.clone(), v.narrow(1, 1, 1)?),
                (w.t()?, line.t()?),
                (line.clone(), w.clone()),
                (v.narrow(1, 2, 1)?.t()?, w.t()?),
                (w.narrow(0, 4, 1)?, w.t()?),
                (w.narrow(0, 4, 1)?, w.narrow(0, 2, 1)?.t()?),
                (w.narrow(1, 4, 1)?, line.narrow(1, 3, 4)?),
                (line.narrow(1, 2, 1)?, line.narrow(1, 3, 1)?),
            ];
            for (i, (x, y)) in cases.iter().enumerate() {
                let want = exact(x)?.matmul(&exact(y)?)?;
                let error = error(&matmul(x, y)?, &want)?;
                assert!(error < tolerance(dtype), "{i}: {error:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn softmax_of_any_layout() -> Result<()> {
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            let one = signal(&[5], 1, dtype, device)?;
            let long = signal(&[3, 1025], 2, dtype, device)?;
            for x in views(dtype, device)?.iter().chain([&one, &long]) {
                let want = candle_nn::ops::softmax(&exact(x)?, D::Minus1)?;
                let error = error(&softmax(x)?, &want)?;
                assert!(error < tolerance(dtype), "{:?}: {error:e}", x.layout());
            }
        }
    }
    Ok(())
}

#[test]
fn activations_of_any_layout() -> Result<()> {
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            let scalar = signal(&[], 1, dtype, device)?;
            for act in SERVED {
                for x in views(dtype, device)?.iter().chain([&scalar]) {
                    let want = reference(&exact(x)?, act)?;
                    let error = error(&activation(x, act)?, &want)?;
                    assert!(error < tolerance(dtype), "{act:?}: {error:e}");
                }
            }
        }
    }
    Ok(())
}

/// What Apple's formulas make of specials, as the op's docs have it.
#[test]
fn specials_of_activations() -> Result<()> {
    for device in softmetal() {
        let x = Tensor::new(
            &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e4, -1e4],
            device,
        )?;
        let y = |act| activation(&x, act)?.to_vec1::<f32>();
        for act in SERVED {
            assert!(y(act)?[0].is_nan(), "{act:?}");
        }
        assert_eq!(
            y(Act::Identity)?[1..],
            [f32::INFINITY, f32::NEG_INFINITY, 1e4, -1e4]
        );
        assert_eq!(y(Act::Sigmoid)?[1..], [1.0, 0.0, 1.0, 0.0]);
        assert_eq!(y(Act::Tanh)?[1..], [1.0, -1.0, 1.0, -1.0]);
        assert_eq!(
            y(Act::LeakyRelu(0.5))?[1..],
            [f32::INFINITY, f32::NEG_INFINITY, 1e4, -5e3]
        );
        let relu = y(Act::Relu)?;
        assert!(relu[1] == f32::INFINITY && relu[2].is_nan());
        assert_eq!(relu[3..], [1e4, 0.0]);
        let inf = f32::INFINITY;
        assert_eq!(y(Act::Softplus)?[1..], [inf, 0.0, inf, 0.0]);
    }
    Ok(())
}

#[test]
fn nothing_and_one() -> Result<()> {
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            let of = |dims: &[usize]| signal(dims, 1, dtype, device);
            let sizes = [0, 1, 3];
            for (m, n, k) in sizes.into_iter().flat_map(|m| {
                sizes
                    .into_iter()
                    .flat_map(move |n| sizes.map(|k| (m, n, k)))
            }) {
                for leading in [&[][..], &[1], &[2], &[0], &[1, 2]] {
                    let (x, y) = (
                        of(&[leading, &[m, k]].concat())?,
                        of(&[leading, &[k, n]].concat())?,
                    );
                    let z = matmul(&x, &y)?;
                    assert_eq!(z.dims(), [leading, &[m, n]].concat());
                    if z.elem_count() == 0 {
                        continue;
                    }
                    let want = match k {
                        0 => z.zeros_like()?,
                        _ => exact(&x)?.matmul(&exact(&y)?)?,
                    };
                    assert!(error(&z, &want)? < tolerance(dtype));
                }
            }
            for dims in [&[0][..], &[2, 0], &[0, 3], &[1], &[1, 1]] {
                assert_eq!(softmax(&of(dims)?)?.dims(), dims);
                assert_eq!(activation(&of(dims)?, Act::Tanh)?.dims(), dims);
            }
            assert_eq!(
                softmax(&of(&[2, 1])?)?
                    .to_dtype(DType::F32)?
                    .to_vec2::<f32>()?,
                [[1.0], [1.0]]
            );
        }
    }
    Ok(())
}

#[test]
fn small_products_are_candles() -> Result<()> {
    let of = |dims: &[usize], device| signal(dims, 1, DType::F32, device);
    for device in metal().chain([&Device::Cpu]) {
        let (x, y) = (of(&[2, 4, 6], device)?, of(&[2, 6, 3], device)?);
        let want = exact(&x)?.matmul(&exact(&y)?)?;
        assert!(error(&matmul_auto(&x, &y)?, &want)? < 1e-5);
        assert!(matmul_auto(&x, &x).is_err());
        assert_eq!(is_supported(device), device.is_metal());
    }
    Ok(())
}

#[test]
fn refusals() -> Result<()> {
    let check = |result: Result<Tensor>, says: &[&str]| {
        let error = result.expect_err("a refusal").to_string();
        for says in says {
            assert!(error.contains(says), "{error}: no {says}");
        }
    };
    let cpu = signal(&[4, 4], 1, DType::F32, &Device::Cpu)?;
    check(matmul(&cpu, &cpu), &["mps_matmul", "Cpu", "expected Metal"]);
    check(softmax(&cpu), &["mps_softmax", "Cpu", "expected Metal"]);
    check(
        activation(&cpu, Act::Relu),
        &["mps_activation", "Cpu", "expected Metal"],
    );
    let op = candle_fused::ops::mps::MpsSoftmax;
    check(
        cpu.apply_op1_no_bwd(&op),
        &["mps_softmax", "CPU", "expected Metal"],
    );
    for device in metal() {
        let x = cpu.to_device(device)?;
        for dtype in [DType::BF16, DType::U32, DType::I64, DType::U8] {
            let x = x.abs()?.to_dtype(dtype)?;
            let name = format!("{dtype:?}");
            let says = |op| [op, name.as_str(), "expected f32 or f16"];
            check(matmul(&x, &x), &says("mps_matmul"));
            check(softmax(&x), &says("mps_softmax"));
            check(activation(&x, Act::Relu), &says("mps_activation"));
            check(x.apply_op1_no_bwd(&op), &says("mps_softmax"));
        }
        let half = x.to_dtype(DType::F16)?;
        check(
            matmul(&x, &half),
            &["mps_matmul", "y of dtype F16, expected F32"],
        );
        check(matmul(&x, &cpu), &["mps_matmul", "got y on Cpu"]);
        check(
            matmul(&x, &x.narrow(0, 0, 3)?),
            &[
                "mps_matmul",
                "[4, 4] by [3, 4]",
                "expected [.., m, k] by [.., k, n]",
            ],
        );
        check(
            matmul(&x, &x.unsqueeze(0)?),
            &["mps_matmul", "[4, 4] by [1, 4, 4]"],
        );
        check(matmul(&x, &x.get(0)?), &["mps_matmul", "[4, 4] by [4]"]);
        check(softmax(&x.get(0)?.get(0)?), &["mps_softmax", "scalar"]);
        for act in [Act::Relu2, Act::GeluTanh, Act::Silu] {
            check(
                activation(&x, act),
                &["mps_activation", act.name(), "gelu_erf, sigmoid"],
            );
        }
    }
    Ok(())
}
