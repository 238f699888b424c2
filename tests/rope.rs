//! What the grid can't ask of rotations: views that models pass, positions beyond the table, stock's functions through `nn`.

use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::nn::rotary_emb as ours;
use candle_fused::ops::{
    qk_norm_rope, rope, rope_inplace, rope_qk, QkNormRope, Rope, RopeLayout, RopePairs,
    RopePositions, RopeSections,
};
use candle_fused::reference::{qk_norm_rope as norm_reference, rope::reference};
use candle_nn::rotary_emb as stock;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn waves(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let n = shape.iter().product::<usize>();
    let wave = |i| (i as f32 * 0.37).sin() * 3.0 + 0.25;
    let x = Tensor::from_vec((0..n).map(wave).collect::<Vec<f32>>(), shape, &Device::Cpu)?;
    x.to_dtype(dtype)?.to_device(device)
}

/// cos and sin of real angles.
fn tables(shape: &[usize], dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
    let angles = waves(shape, DType::F32, &Device::Cpu)?;
    let of = |t: Tensor| t.to_dtype(dtype)?.to_device(device);
    Ok([of(angles.cos()?)?, of(angles.sin()?)?])
}

fn values(t: &Tensor) -> Result<Vec<f64>> {
    let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    t.flatten_all()?.to_vec1()
}

/// Within what rounding after each step costs.
fn assert_close(got: &Tensor, want: &Tensor, what: &str) -> Result<()> {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let step = match got.dtype() {
        DType::F32 => 4e-6,
        DType::F16 => 4.0 * 2f64.powi(-10),
        _ => 4.0 * 2f64.powi(-7),
    };
    for (i, (a, b)) in values(got)?.into_iter().zip(values(want)?).enumerate() {
        let close = (a - b).abs() <= step * b.abs().max(4.0);
        assert!(close, "{what}, element {i}: {a}, expected {b}");
    }
    Ok(())
}

/// A tensor as it is, and as views that models make of their projections: heads behind positions, and a part of a packed
/// projection. `[2, 3, 5, 8]` each.
fn views(dtype: DType, device: &Device) -> Result<Vec<(&'static str, Var, View)>> {
    let var = |shape: &[usize]| Var::from_tensor(&waves(shape, dtype, device)?);
    Ok(vec![
        ("contiguous", var(&[2, 3, 5, 8])?, |x| Ok(x.clone())),
        ("transposed", var(&[2, 5, 3, 8])?, |x| x.transpose(1, 2)),
        ("packed", var(&[2, 5, 3 * 24])?, |x| {
            let q = x.reshape((2, 5, 3, 24))?.narrow(D::Minus1, 8, 8)?;
            q.transpose(1, 2)
        }),
        ("turned round", var(&[8, 5, 3, 2])?, |x| {
            x.permute((3, 2, 1, 0))
        }),
    ])
}

type View = fn(&Tensor) -> Result<Tensor>;
type Call<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
type Function = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Σ y · g through both functions, and x's gradients.
fn compare(x: &Var, view: View, calls: [Call<'_>; 2], what: &str) -> Result<()> {
    let mut grads = Vec::new();
    let mut outputs = Vec::new();
    for call in calls {
        let y = call(&view(x)?)?;
        let weight = waves(y.dims(), y.dtype(), y.device())?;
        let store = (&y * weight)?.sum_all()?.backward()?;
        let grad = store.get(x).cloned();
        grads.push(grad.unwrap_or_else(|| panic!("{what}: a lost gradient")));
        outputs.push(y);
    }
    assert_close(&outputs[0], &outputs[1], what)?;
    assert_close(&grads[0], &grads[1], what)
}

/// Through `nn`, each function of stock's gives stock's numbers, and a variable the gradient of the composed form.
#[test]
fn stock_functions_keep_gradients() -> Result<()> {
    let thd_slow: Function = |x, cos, sin| {
        let y = stock::rope_slow(&x.transpose(1, 2)?.contiguous()?, cos, sin)?;
        y.transpose(1, 2)
    };
    let functions: [(&str, Function, Function, Function); 5] = [
        ("rope", ours::rope, stock::rope, stock::rope_slow),
        ("rope_i", ours::rope_i, stock::rope_i, stock::rope_i_slow),
        ("rope_thd", ours::rope_thd, stock::rope_thd, thd_slow),
        (
            "rope_slow",
            ours::rope_slow,
            stock::rope_slow,
            stock::rope_slow,
        ),
        (
            "rope_i_slow",
            ours::rope_i_slow,
            stock::rope_i_slow,
            stock::rope_i_slow,
        ),
    ];
    for device in devices() {
        for dtype in DTYPES {
            let [cos, sin] = tables(&[7, 4], dtype, device)?;
            for (name, ours, fused, slow) in functions {
                for (layout, x, view) in views(dtype, device)? {
                    let what = format!("{name} {dtype:?} {layout} {:?}", device.location());
                    // Dim 1 counts positions there: five of the seven rows or three, both suit.
                    let y = ours(&view(&x)?, &cos, &sin)?;
                    let stock = fused(&view(&x)?.contiguous()?.detach(), &cos, &sin)?;
                    assert_close(&y, &stock, &what)?;
                    let contiguous = |x: &Tensor| slow(&x.contiguous()?, &cos, &sin);
                    compare(&x, view, [&|x| ours(x, &cos, &sin), &contiguous], &what)?;
                }
            }
        }
    }
    Ok(())
}

/// Tables for each batch row; stock reads them rightly where they are as long as x.
#[test]
fn batched_tables_are_those_of_stock() -> Result<()> {
    for device in devices() {
        let x = waves(&[2, 3, 5, 8], DType::F32, device)?;
        let [cos, sin] = tables(&[2, 5, 4], DType::F32, device)?;
        assert_close(
            &ours::rope(&x, &cos, &sin)?,
            &stock::rope(&x, &cos, &sin)?,
            "rope",
        )?;
        assert_close(
            &ours::rope_i(&x, &cos, &sin)?,
            &stock::rope_i(&x, &cos, &sin)?,
            "rope_i",
        )?;
        let thd = x.transpose(1, 2)?.contiguous()?;
        assert_close(
            &ours::rope_thd(&thd, &cos, &sin)?,
            &stock::rope_thd(&thd, &cos, &sin)?,
            "thd",
        )?;
    }
    Ok(())
}

/// What stock's slow functions take beyond that still works.
#[test]
fn unusual_arguments_go_to_stock() -> Result<()> {
    let x = waves(&[1, 2, 5, 8], DType::F32, &Device::Cpu)?;
    let [cos, sin] = tables(&[5, 4, 1], DType::F32, &Device::Cpu)?;
    let want = stock::rope_i_slow(&x, &cos, &sin)?;
    assert_close(&ours::rope_i_slow(&x, &cos, &sin)?, &want, "rope_i_slow")?;
    assert!(ours::rope_slow(&x.get(0)?, &cos, &sin).is_err());
    Ok(())
}

/// Views are rotated where they lie: what is around them stays.
#[test]
fn views_are_rotated_in_place() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let [cos, sin] = tables(&[5, 3], dtype, device)?;
            for pairs in [RopePairs::Half, RopePairs::Interleaved] {
                for (layout, base, view) in views(dtype, device)? {
                    let half = Rope {
                        pairs,
                        ..Rope::default()
                    };
                    let base = base.as_tensor().detach().copy()?;
                    let before = base.copy()?;
                    let want = rope(&view(&before)?, &cos, &sin, &half)?;
                    rope_inplace(&view(&base)?, &cos, &sin, &half)?;
                    let what = format!("{layout} {pairs:?} {dtype:?}");
                    assert_eq!(values(&view(&base)?)?, values(&want)?, "{what}");
                    let changed = values(&base)?.into_iter().zip(values(&before)?);
                    let changed = changed.filter(|(a, b)| a != b).count();
                    assert!(changed <= 2 * 3 * 5 * 6, "{what}: {changed} changed");
                }
            }
        }
    }
    Ok(())
}

fn at(positions: Tensor) -> Rope {
    Rope {
        positions: RopePositions::Ids(positions),
        ..Rope::default()
    }
}

/// An error on the CPU; on Metal, NaN for the elements that would be rotated.
#[test]
fn positions_beyond_the_table_show() -> Result<()> {
    for device in devices() {
        let x = waves(&[1, 2, 3, 8], DType::F32, device)?;
        let [cos, sin] = tables(&[4, 3], DType::F32, device)?;
        for ids in [
            Tensor::new(&[0u32, 4, 3], device)?,
            Tensor::new(&[0i64, -1, 3], device)?,
            Tensor::new(&[0i64, 1 << 33, 3], device)?,
            // What stock takes for padding.
            Tensor::new(&[0i64, i64::MAX, 3], device)?,
            Tensor::new(&[0u32, u32::MAX, 3], device)?,
        ] {
            if device.is_cpu() {
                // Without a kernel.
                let [x, cos, sin] = [&x, &cos, &sin].map(|t| t.to_dtype(DType::F64));
                let (x, cos, sin) = (x?, cos?, sin?);
                let error = rope(&x, &cos, &sin, &at(ids.clone())).unwrap_err();
                assert!(error.to_string().contains("rope: got position"), "{error}");
                let error = rope_qk(&x, &x, &cos, &sin, &at(ids.clone())).unwrap_err();
                assert!(
                    error.to_string().contains("rope_qk: got position"),
                    "{error}"
                );
            }
            let y = rope(&x, &cos, &sin, &at(ids));
            if device.is_cpu() {
                let error = y.expect_err("beyond the table").to_string();
                assert!(error.contains("rope: got position"), "{error}");
                assert!(error.contains("less than the 4"), "{error}");
                continue;
            }
            let y = y?;
            let nan = |i| {
                Ok::<_, candle_core::Error>(
                    values(&y.narrow(2, i, 1)?)?
                        .iter()
                        .filter(|v| v.is_nan())
                        .count(),
                )
            };
            assert_eq!([nan(0)?, nan(1)?, nan(2)?], [0, 2 * 6, 0]);
        }
    }
    Ok(())
}

/// Row numbers of one batch row for all, from a view.
#[test]
fn positions_may_be_views_that_all_share() -> Result<()> {
    for device in devices() {
        let x = waves(&[2, 3, 2, 8], DType::F32, device)?;
        let [cos, sin] = tables(&[4, 4], DType::F32, device)?;
        for dtype in [DType::U32, DType::I64] {
            let ids = Tensor::new(&[[9u32, 3, 9, 1], [9, 9, 9, 9]], device)?.to_dtype(dtype)?;
            let ids = ids.narrow(0, 0, 1)?.t()?.narrow(0, 1, 3)?.t()?;
            // 3, 9, 1 → 3, 1
            let ids = Tensor::cat(&[ids.narrow(1, 0, 1)?, ids.narrow(1, 2, 1)?], 1)?;
            let want = reference(&x, &cos, &sin, &at(ids.squeeze(0)?))?;
            assert_close(
                &rope(&x, &cos, &sin, &at(ids.clone()))?,
                &want,
                "one for all",
            )?;
            let repeated = at(ids.broadcast_as((2, 2))?);
            assert_close(&rope(&x, &cos, &sin, &repeated)?, &want, "repeated")?;
        }
    }
    Ok(())
}

/// Qwen2-VL's own formula: the chunks of cos by turns of the three positions.
#[test]
fn sections_are_those_of_qwen() -> Result<()> {
    for device in devices() {
        let x = waves(&[2, 3, 4, 16], DType::F32, device)?;
        let [cos, sin] = tables(&[3, 2, 4, 8], DType::F32, device)?;
        let axis_of = |interleaved: bool, j: usize| match interleaved {
            false => [0, 0, 0, 0, 1, 1, 2, 2][j],
            true => [0, 1, 2, 0, 1, 2, 0, 0][j],
        };
        for interleaved in [false, true] {
            let one = |table: &Tensor| {
                let columns = (0..8).map(|j| table.get(axis_of(interleaved, j))?.narrow(2, j, 1));
                Tensor::cat(&columns.collect::<Result<Vec<_>>>()?, 2)
            };
            let want = rope(&x, &one(&cos)?, &one(&sin)?, &Rope::default())?;
            let sections = Some(RopeSections {
                lens: [4, 2, 2],
                interleaved,
            });
            let got = rope(
                &x,
                &cos,
                &sin,
                &Rope {
                    sections,
                    ..Rope::default()
                },
            )?;
            assert_eq!(values(&got)?, values(&want)?);
        }
    }
    Ok(())
}

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

/// A head of another dim than the tables', x without a batch: errors that name the function.
#[test]
fn stock_functions_refuse_what_stock_refuses() -> Result<()> {
    let functions: [(&str, Function, Function); 3] = [
        ("rope: ", ours::rope, stock::rope),
        ("rope_i: ", ours::rope_i, stock::rope_i),
        ("rope_thd: ", ours::rope_thd, stock::rope_thd),
    ];
    let [cos, sin] = tables(&[5, 4], DType::F32, &Device::Cpu)?;
    for (name, ours, stock) in functions {
        for dims in [&[1, 5, 5, 16][..], &[1, 5, 5, 9], &[1, 5, 5, 6], &[5, 5, 8]] {
            let x = waves(dims, DType::F32, &Device::Cpu)?;
            assert!(stock(&x, &cos, &sin).is_err(), "{name}{dims:?}");
            let error = ours(&x, &cos, &sin)
                .expect_err("stock refuses it")
                .to_string();
            assert!(error.starts_with(name), "{dims:?}: {error}");
        }
    }
    Ok(())
}
