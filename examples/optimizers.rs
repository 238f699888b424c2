//! A step of AdamW, stock Candle's and ours, of one large variable and of many small ones, interleaved, medians:
//! `cargo run --release --example optimizers`.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{AdamW, AdamWOptions, Moments, Optimizer, ParamsAdamW, Rounding};
use std::time::Instant;

const ROUNDS: usize = 15;

/// A step of an optimiser.
type Run = Box<dyn FnMut() -> Result<()>>;

fn main() -> Result<()> {
    for (name, count, elements) in [
        ("1 variable of 10M", 1, 10_000_000),
        ("200 of 10k", 200, 10_000),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            measure(name, count, elements, dtype)?;
        }
    }
    Ok(())
}

struct Model {
    vars: Vec<Var>,
    grads: GradStore,
}

impl Model {
    fn new(count: usize, elements: usize, dtype: DType) -> Result<Self> {
        let random = || Tensor::randn(0f32, 1.0, elements, &Device::Cpu)?.to_dtype(dtype);
        let mut grads = GradStore::default();
        let mut vars = Vec::with_capacity(count);
        for _ in 0..count {
            let var = Var::from_tensor(&random()?)?;
            grads.insert(&var, random()?);
            vars.push(var);
        }
        Ok(Model { vars, grads })
    }
}

fn measure(name: &str, count: usize, elements: usize, dtype: DType) -> Result<()> {
    let model = || Model::new(count, elements, dtype);
    let params = ParamsAdamW::default;
    let ours = |moments, rounding| -> Result<_> {
        let (model, options) = (model()?, AdamWOptions { moments, rounding });
        let mut adam = AdamW::with_options(model.vars, params(), options)?;
        Ok(move || adam.step(&model.grads))
    };
    let stock_model = model()?;
    let mut stock_adam = candle_nn::AdamW::new(stock_model.vars, params())?;
    let mut runs: Vec<(&str, Run)> = vec![(
        "stock",
        Box::new(move || candle_nn::Optimizer::step(&mut stock_adam, &stock_model.grads)),
    )];
    runs.push(("ours", Box::new(ours(Moments::F32, Rounding::Master)?)));
    if dtype != DType::F32 {
        let by_chance = Rounding::Stochastic { seed: 1 };
        runs.push(("ours, stochastic", Box::new(ours(Moments::F32, by_chance)?)));
    }
    runs.push((
        "ours, 8-bit moments",
        Box::new(ours(Moments::EightBit, Rounding::Master)?),
    ));
    let mut times = vec![Vec::new(); runs.len()];
    for round in 0..ROUNDS {
        for ((_, run), times) in runs.iter_mut().zip(&mut times) {
            let start = Instant::now();
            run()?;
            // The first round pays for fresh memory.
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let medians: Vec<f64> = times.iter_mut().map(median).collect();
    for ((form, _), &ms) in runs.iter().zip(&medians) {
        println!(
            "{name}, {}: {form:20} {ms:8.2} ms  {:5.1}× stock",
            dtype.as_str(),
            medians[0] / ms
        );
    }
    Ok(())
}
