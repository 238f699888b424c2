//! Values known from the formulas, computed by hand or to many digits elsewhere.

mod elementwise;
mod norms;
mod products;
mod reductions;
mod softmax;

use candle_core::{DType, Device, Result, Tensor, Var};

fn cpu<A: candle_core::NdArray>(values: A) -> Result<Tensor> {
    Tensor::new(values, &Device::Cpu)
}

/// The elements are these, each within `tolerance`.
#[track_caller]
fn assert_near(got: &Tensor, want: &[f64], tolerance: f64) -> Result<()> {
    let got = got.flatten_all()?.to_device(&Device::Cpu)?;
    let got = got.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let near = (g - w).abs() <= tolerance;
        assert!(near, "element {i} of {got:?} is not {w} ± {tolerance}");
    }
    Ok(())
}

/// The derivative of Σ op(x) at these points.
fn slopes(op: impl Fn(&Tensor) -> Result<Tensor>, x: &[f32]) -> Result<Tensor> {
    slopes_of(op, &cpu(x)?)
}

fn slopes_of(op: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
    let x = Var::from_tensor(x)?;
    let grads = op(&x)?.backward()?;
    Ok(grads.get(&x).expect("a gradient").clone())
}
