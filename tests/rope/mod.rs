//! What the grid can't ask of rotations: views that models pass, positions beyond the table; and, in files of their own, stock's
//! functions through `nn` and pairs of q and k.

mod pairs;
mod stock;

use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::ops::{
    rope, rope_inplace, rope_qk, Rope, RopePairs, RopePositions, RopeSections,
};
use candle_fused::reference::rope::reference;

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
                assert!(error.to_string().contains("of positions"), "{error}");
                let error = rope_qk(&x, &x, &cos, &sin, &at(ids.clone())).unwrap_err();
                assert!(error.to_string().contains("rope_qk: got"), "{error}");
            }
            let y = rope(&x, &cos, &sin, &at(ids));
            if device.is_cpu() {
                let error = y.expect_err("beyond the table").to_string();
                assert!(error.contains("rope: got"), "{error}");
                assert!(
                    error.contains("position 1 of positions, expected an index below 4"),
                    "{error}"
                );
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
