//! AdamW, clipping, accumulation and checkpoints: against stock Candle, slow forms in f64, and PyTorch's numbers.

mod adamw;
mod checkpoint;
mod gradients;
mod saved;
mod sixteen_bits;
mod torch;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{AdamW, AdamWOptions, Moments, ParamsAdamW, Rounding};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn values(t: &Tensor) -> Result<Vec<f64>> {
    let t = t.detach().to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    t.flatten_all()?.to_vec1()
}

/// |got − want| ≤ bound · max(1, |want|) for each element, and NaN where NaN is wanted.
#[track_caller]
fn close(got: &Tensor, want: &Tensor, bound: f64) -> Result<()> {
    let (got, want) = (values(got)?, values(want)?);
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.into_iter().zip(want).enumerate() {
        let near = got == want || (got - want).abs() <= bound * want.abs().max(1.0);
        assert!(
            near || (got.is_nan() && want.is_nan()),
            "element {i}: got {got}, want {want}"
        );
    }
    Ok(())
}

fn signal(dims: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    crate::cases::Fill::Signal.tensor(dims, seed, dtype, device)
}

fn store<'a>(grads: impl IntoIterator<Item = (&'a Var, &'a Tensor)>) -> GradStore {
    let mut store = GradStore::default();
    for (var, grad) in grads {
        store.insert(var, grad.clone());
    }
    store
}

fn params() -> ParamsAdamW {
    ParamsAdamW {
        lr: 0.01,
        ..Default::default()
    }
}

fn adamw(vars: &[Var], moments: Moments, rounding: Rounding) -> Result<AdamW> {
    let options = AdamWOptions { moments, rounding };
    AdamW::with_options(vars.to_vec(), params(), options)
}

/// What an error says.
#[track_caller]
fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}
