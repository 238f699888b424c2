//! Stock's functions, through `nn`.

use super::{assert_close, tables, views, waves, View, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::rotary_emb as ours;
use candle_nn::rotary_emb as stock;

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
