//! Layers of sums of products, against stock layers in f32 on the CPU: those are there for every dtype and stride.

use super::*;
use std::collections::BTreeMap;

/// Rounding a sum of 16-bit products once moves it by half a step; in f32 the order of the sum matters more.
pub fn assert_exact(ours: &Tensor, exact: &Tensor, what: &str) -> Result<()> {
    assert_eq!(ours.dims(), exact.dims(), "{what}");
    let step = match ours.dtype() {
        DType::F32 => 4e-6,
        DType::F16 => 2f64.powi(-10),
        _ => 2f64.powi(-7),
    };
    let (ours, exact) = (values(ours)?, values(exact)?);
    let size = exact.iter().fold(1f64, |m, x| m.max(x.abs()));
    for (i, (a, b)) in ours.into_iter().zip(exact).enumerate() {
        assert!(
            (a - b).abs() <= step * size,
            "{what}, element {i}: {a} for {b}"
        );
    }
    Ok(())
}

pub fn values(t: &Tensor) -> Result<Vec<f64>> {
    let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    t.flatten_all()?.to_vec1::<f64>()
}

/// The values of a tensor as f32 on the CPU.
pub fn exactly(t: &Tensor) -> Result<Tensor> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F32)
}

fn shapes(vars: &VarMap) -> BTreeMap<String, Vec<usize>> {
    let vars = vars.data().lock().expect("no test panicked in here");
    let shapes = vars.iter().map(|(name, v)| (name.clone(), v.dims().into()));
    shapes.collect()
}

/// Both have the same variables, and with the same values in them the same outputs; ours has gradients to all.
pub fn check<S: Module, O: Module>(
    what: &str,
    shape: &[usize],
    stock: impl Fn(VarBuilder) -> Result<S>,
    ours: impl Fn(VarBuilder) -> Result<O>,
) -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let what = format!("{what} {dtype:?} {:?}", device.location());
            let (theirs, vars) = (VarMap::new(), VarMap::new());
            let vb = VarBuilder::from_varmap(&theirs, DType::F32, &Device::Cpu);
            let stock = stock(vb.pp("layer"))?;
            let vb = VarBuilder::from_varmap(&vars, dtype, device);
            let ours = ours(vb.pp("layer"))?;
            assert_eq!(shapes(&vars), shapes(&theirs), "{what}");
            for (name, var) in theirs.data().lock().unwrap().iter() {
                let values = (waves(var.dims(), DType::F32, device)? * 0.1)?.to_dtype(dtype)?;
                vars.data().lock().unwrap()[name].set(&values)?;
                var.set(&exactly(&values)?)?;
            }

            let x = waves(shape, dtype, device)?;
            let exact = stock.forward(&exactly(&x)?)?;
            let y = ours.forward(&x)?;
            assert_eq!(y.dtype(), dtype, "{what}");
            assert_exact(&y, &exact, &what)?;
            let view = x.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
            assert_exact(&ours.forward(&view)?, &exact, &format!("{what}, a view"))?;

            let grads = (&y * waves(y.dims(), dtype, device)?)?
                .sum_all()?
                .backward()?;
            for var in vars.all_vars() {
                let grad = grads
                    .get(&var)
                    .unwrap_or_else(|| panic!("{what}: a lost gradient"));
                assert_eq!(grad.dims(), var.dims(), "{what}");
                assert!(values(grad)?.iter().all(|g| *g != 0.0 && g.is_finite()));
            }
        }
    }
    Ok(())
}
