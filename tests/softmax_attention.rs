//! `nn::attention::softmax_attention` against the products and the softmax that it stands for.

use crate::devices::devices;
use crate::tensors::signal;
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::nn::attention::softmax_attention;

struct Case {
    q: &'static [usize],
    kt: &'static [usize],
    v: &'static [usize],
    mask: Option<&'static [usize]>,
    softcap: Option<f64>,
}

/// Four dims, three, two, a mask that enlarges the scores, dims that `ops::attention()` would refuse.
const CASES: &[Case] = &[
    Case {
        q: &[2, 3, 5, 8],
        kt: &[2, 3, 8, 7],
        v: &[2, 3, 7, 4],
        mask: Some(&[2, 1, 1, 7]),
        softcap: None,
    },
    Case {
        q: &[2, 3, 5, 8],
        kt: &[2, 3, 8, 7],
        v: &[2, 3, 7, 8],
        mask: Some(&[5, 7]),
        softcap: Some(2.0),
    },
    Case {
        q: &[6, 5, 8],
        kt: &[6, 8, 5],
        v: &[6, 5, 8],
        mask: Some(&[6, 5, 5]),
        softcap: None,
    },
    Case {
        q: &[6, 5, 8],
        kt: &[6, 8, 5],
        v: &[6, 5, 8],
        mask: None,
        softcap: None,
    },
    Case {
        q: &[5, 8],
        kt: &[8, 7],
        v: &[7, 4],
        mask: Some(&[7]),
        softcap: Some(3.0),
    },
    Case {
        q: &[1, 1, 1, 8],
        kt: &[1, 1, 8, 7],
        v: &[1, 1, 7, 4],
        mask: Some(&[1, 1, 1, 7]),
        softcap: None,
    },
    Case {
        q: &[1, 2, 3, 520],
        kt: &[1, 2, 520, 4],
        v: &[1, 2, 4, 3],
        mask: None,
        softcap: None,
    },
];

const SCALE: f64 = 0.3;

fn composed(
    q: &Tensor,
    kt: &Tensor,
    v: &Tensor,
    case: &Case,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let mut scores = (q.matmul(kt)? * SCALE)?;
    if let Some(cap) = case.softcap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(v)
}

/// Candle's own maximum passes over NaN.
fn nan_or_larger(most: f32, x: f32) -> f32 {
    match x > most || x.is_nan() {
        true => x,
        false => most,
    }
}

fn distance(a: &Tensor, b: &Tensor) -> Result<f32> {
    assert_eq!(a.dims(), b.dims());
    let off = (a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?;
    let off = off.abs()?.flatten_all()?.to_vec1::<f32>()?;
    Ok(off.into_iter().fold(0.0, nan_or_larger))
}

/// The result and the gradients of q, kt, v and the mask.
fn all(vars: &[Var], y: Tensor) -> Result<Vec<Tensor>> {
    let weights = signal(y.dims(), 9, y.device())?;
    let grads = (&y * weights)?.sum_all()?.backward()?;
    let grad = |var: &Var| {
        grads
            .get(var)
            .cloned()
            .ok_or_else(|| candle_core::Error::msg("no gradient"))
    };
    let grads = vars.iter().map(grad).collect::<Result<Vec<_>>>()?;
    Ok([vec![y], grads].concat())
}

#[test]
fn result_and_gradients_are_those_of_the_composed_form() -> Result<()> {
    for device in devices() {
        for (i, case) in CASES.iter().enumerate() {
            let shapes = [Some(case.q), Some(case.kt), Some(case.v), case.mask];
            let var = |(seed, dims): (usize, &[usize])| {
                Var::from_tensor(&signal(dims, seed as u64 + 1, device)?)
            };
            let vars = shapes
                .into_iter()
                .flatten()
                .enumerate()
                .map(var)
                .collect::<Result<Vec<_>>>()?;
            let [q, kt, v] = [0, 1, 2].map(|i| vars[i].as_tensor());
            let mask = vars.get(3).map(|m| m.as_tensor());
            let got = all(
                &vars,
                softmax_attention(q, kt, v, SCALE, case.softcap, mask)?,
            )?;
            let want = all(&vars, composed(q, kt, v, case, mask)?)?;
            for (what, (got, want)) in ["y", "q", "kt", "v", "mask"]
                .iter()
                .zip(got.iter().zip(&want))
            {
                let off = distance(got, want)?;
                assert!(off < 1e-4, "case {i}, {what}: off by {off}");
            }
        }
    }
    Ok(())
}

#[test]
fn views_and_half_precision_are_read_rightly() -> Result<()> {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let make = |dims: &[usize], seed| signal(dims, seed, &Device::Cpu)?.to_dtype(dtype);
        let q = make(&[2, 5, 3, 8], 1)?.transpose(1, 2)?;
        let (k, v) = (
            make(&[2, 7, 3, 8], 2)?.transpose(1, 2)?,
            make(&[2, 7, 3, 16], 3)?.transpose(1, 2)?,
        );
        let v = v.narrow(3, 8, 8)?;
        // A view, and keys that were copied in their transposed order.
        for kt in [k.t()?, k.t()?.contiguous()?] {
            let got = softmax_attention(&q, &kt, &v, SCALE, None, None)?;
            let wide = |t: &Tensor| t.contiguous()?.to_dtype(DType::F32);
            let want = composed(&wide(&q)?, &wide(&kt)?, &wide(&v)?, &CASES[3], None)?;
            let off = distance(&got, &want)?;
            assert!(
                off < if dtype == DType::F32 { 1e-5 } else { 2e-2 },
                "{dtype:?}: off by {off}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_hidden_query_is_zero_and_errors_are_the_products() -> Result<()> {
    let x = Tensor::ones((1, 1, 2, 4), DType::F32, &Device::Cpu)?;
    let mask = Tensor::full(f32::NEG_INFINITY, (2, 2), &Device::Cpu)?;
    let y = softmax_attention(&x, &x.t()?, &x, 1.0, None, Some(&mask))?;
    assert!(y.flatten_all()?.to_vec1::<f32>()?.iter().all(|&y| y == 0.0));
    assert!(softmax_attention(&x, &x, &x, 1.0, None, None).is_err());
    assert!(softmax_attention(&x, &x.t()?, &x.to_dtype(DType::F16)?, 1.0, None, None).is_err());
    let empty = Tensor::zeros((1, 1, 0, 4), DType::F32, &Device::Cpu)?;
    assert_eq!(
        softmax_attention(&empty, &x.t()?, &x, 1.0, None, None)?.dims(),
        [1, 1, 0, 4]
    );
    Ok(())
}
