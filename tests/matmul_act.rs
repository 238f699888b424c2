//! Products of stacks with an activation beyond the grid: dims that broadcast, large stacks, empty sums.

use crate::devices::devices;
use crate::tensors::{error, signal, var};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::linear;
use candle_fused::ops::Act;
use candle_fused::ops::{linear_act, matmul_act, MatmulAct};
use candle_fused::reference::matmul_act::reference;

/// Stacks of one product each, of several, and of more dims than the Metal kernel takes.
const STACKS: [(&[usize], &[usize]); 14] = [
    (&[2, 3], &[]),
    (&[], &[2, 3]),
    (&[2, 3], &[3]),
    (&[2, 3], &[2, 1]),
    (&[1, 3], &[2, 1]),
    (&[3, 1], &[3, 1]),
    (&[2, 1, 2], &[3, 1]),
    (&[1], &[]),
    (&[0], &[1]),
    (&[1, 2], &[0, 1]),
    (&[40], &[40]),
    (&[2, 1, 2, 1, 2], &[1, 2, 1, 2, 1]),
    (&[2, 1, 2, 1, 2, 1], &[1, 2, 1, 2, 1, 2]),
    (&[2, 2, 1, 1, 2, 2], &[]),
];

#[test]
fn stacks_broadcast() -> Result<()> {
    for device in devices() {
        for (i, (of_x, of_y)) in STACKS.into_iter().enumerate() {
            // Few rows, and several.
            let (m, k, n) = [(1, 5, 7), (9, 4, 6)][i % 2];
            let x = var(&[of_x, &[m, k]].concat(), 1, device)?;
            let y = var(&[of_y, &[k, n]].concat(), 2, device)?;
            let bias = var(&[n], 3, device)?;
            let got = matmul_act(&x, &y, Some(&bias), Act::Silu)?;
            let want = reference(&x, &y, Some(&bias), Act::Silu)?;
            assert_eq!(got.dims(), want.dims());
            if got.elem_count() == 0 {
                continue;
            }
            let untracked = matmul_act(&x.detach(), &y.detach(), Some(&bias.detach()), Act::Silu)?;
            for got in [&got, &untracked] {
                assert!(error(got, &want)? < 1e-6, "{of_x:?}, {of_y:?}");
            }
            let g = signal(got.dims(), 4, device)?;
            let (got, want) = ((got * &g)?.backward()?, (want * &g)?.backward()?);
            for (name, t) in [("x", &x), ("y", &y), ("bias", &bias)] {
                let (Some(got), Some(want)) = (got.get(t), want.get(t)) else {
                    panic!("{of_x:?}, {of_y:?}: no gradient to {name}")
                };
                let error = error(got, want)?;
                assert!(error < 1e-5, "{of_x:?}, {of_y:?}, {name}: {error:e}");
            }
        }
    }
    Ok(())
}

/// Enough products, and large enough ones, for every way to share them out.
#[test]
fn stacks_of_many_and_of_large_products() -> Result<()> {
    for device in devices() {
        for (count, m, k, n) in [
            (16, 65, 70, 70),
            (2, 70, 33, 40),
            (2, 300, 64, 90),
            (64, 1, 40, 33),
        ] {
            if device.is_metal() && m == 300 {
                continue;
            }
            for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 1e-3), (DType::BF16, 8e-3)]
            {
                // Heads, as attention has them: no single stride leads to the next product.
                let of = |dims: &[usize], seed| signal(dims, seed, device)?.to_dtype(dtype);
                let x = of(&[2, m, count / 2, k], 1)?.transpose(1, 2)?;
                let y = of(&[2, count / 2, n, k], 2)?.t()?;
                let bias = of(&[n], 3)?;
                let got = matmul_act(&x, &y, Some(&bias), Act::Silu)?.to_dtype(DType::F32)?;
                let copy = |t: &Tensor| {
                    let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                    t.force_contiguous()
                };
                let want = reference(&copy(&x)?, &copy(&y)?, Some(&copy(&bias)?), Act::Silu)?;
                let error = error(&got, &want)?;
                assert!(
                    error < tolerance,
                    "{count} of {m}×{k}·{k}×{n} {dtype:?}: {error:e}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn an_empty_sum_leaves_the_bias() -> Result<()> {
    for device in devices() {
        let bias = Tensor::new(&[-1f32, 2.], device)?;
        let of = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device);
        // Views of nothing, the second of which begins at the end of its storage.
        let (x, y) = (of(&[3, 4, 5])?.narrow(2, 5, 0)?, of(&[3, 0, 2])?);
        for (x, y) in [(x.clone(), y.clone()), (x.get(0)?, y.get(0)?)] {
            let got = matmul_act(&x, &y, Some(&bias), Act::Relu)?;
            let want = Tensor::new(&[0f32, 2.], device)?.broadcast_as(got.shape())?;
            assert_eq!(error(&got, &want)?, 0.0);
        }
    }
    Ok(())
}

/// Who applies the op itself gets the activation's gradient too, from a z that is computed again.
#[test]
fn matmul_act_applied_by_hand_trains() -> Result<()> {
    for device in devices() {
        let (x, y) = (var(&[2, 3, 5], 1, device)?, var(&[5, 4], 2, device)?);
        let bias = var(&[4], 3, device)?;
        for bias in [None, Some(&bias)] {
            let op = MatmulAct(Act::GeluTanh);
            let by_hand = match bias {
                Some(bias) => x.apply_op3(&y, bias, op)?,
                None => x.apply_op2(&y, op)?,
            };
            let got = by_hand.backward()?;
            let want = reference(&x, &y, bias, Act::GeluTanh)?.backward()?;
            for t in [Some(&x), Some(&y), bias].into_iter().flatten() {
                let (Some(got), Some(want)) = (got.get(t), want.get(t)) else {
                    panic!("no gradient")
                };
                assert!(error(got, want)? < 1e-5);
            }
        }
        let frozen =
            matmul_act(&x, &y.detach(), Some(&bias.detach()), Act::GeluTanh)?.backward()?;
        assert!(frozen.get(&x).is_some() && frozen.get(&y).is_none());
        let wrong = x
            .apply_op2_no_bwd(&x, &MatmulAct(Act::GeluTanh))
            .expect_err("shapes");
        assert!(wrong.to_string().contains("expected"), "{wrong}");
    }
    Ok(())
}

#[test]
fn linear_act_takes_any_rank() -> Result<()> {
    for device in devices() {
        let (w, bias) = (signal(&[7, 12], 1, device)?, signal(&[7], 2, device)?);
        for leading in [&[][..], &[1], &[3], &[2, 3], &[2, 1, 3]] {
            let x = signal(&[leading, &[12]].concat(), 3, device)?;
            let got = linear_act(&x, &w, Some(&bias), Act::Tanh)?;
            let want = linear(&x, &w, Some(&bias))?.tanh()?;
            assert!(error(&got, &want)? < 1e-6, "{leading:?}");
        }
    }
    Ok(())
}
