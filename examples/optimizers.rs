//! A step of AdamW, stock Candle's and ours, of one large variable and of many small ones, interleaved, medians:
//! `cargo run --release --example optimizers`.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{AdamW, AdamWOptions, Moments, Optimizer, ParamsAdamW, Rounding};
use std::time::Instant;

const ROUNDS: usize = 15;

/// An optimiser, by a step of it, and its variables.
struct Contestant {
    vars: Vec<Var>,
    run: Box<dyn FnMut() -> Result<()>>,
}

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
    /// Copies of the variables, and their gradients.
    fn new(start: &[(Tensor, Tensor)]) -> Result<Self> {
        let mut grads = GradStore::default();
        let mut vars = Vec::with_capacity(start.len());
        for (value, grad) in start {
            let var = Var::from_tensor(value)?;
            grads.insert(&var, grad.clone());
            vars.push(var);
        }
        Ok(Model { vars, grads })
    }
}

/// The largest difference between variables.
fn difference(a: &[Var], b: &[Var]) -> Result<f32> {
    let mut most = 0f32;
    for (a, b) in a.iter().zip(b) {
        let difference = (a.as_tensor() - b.as_tensor())?.to_dtype(DType::F32)?;
        for x in difference.abs()?.flatten_all()?.to_vec1::<f32>()? {
            if x > most || x.is_nan() {
                most = x;
            }
        }
    }
    Ok(most)
}

fn measure(name: &str, count: usize, elements: usize, dtype: DType) -> Result<()> {
    let random = || Tensor::randn(0f32, 1.0, elements, &Device::Cpu)?.to_dtype(dtype);
    let start = (0..count).map(|_| Ok((random()?, random()?)));
    let start = start.collect::<Result<Vec<_>>>()?;
    let model = || Model::new(&start);
    let params = ParamsAdamW::default;
    let ours = |moments, rounding| -> Result<Contestant> {
        let (Model { vars, grads }, options) = (model()?, AdamWOptions { moments, rounding });
        let mut adam = AdamW::with_options(vars.clone(), params(), options)?;
        let run = Box::new(move || adam.step(&grads));
        Ok(Contestant { vars, run })
    };
    let Model { vars, grads } = model()?;
    let mut adam = candle_nn::AdamW::new(vars.clone(), params())?;
    let run = Box::new(move || candle_nn::Optimizer::step(&mut adam, &grads));
    let mut runs = vec![
        ("stock", Contestant { vars, run }),
        ("ours", ours(Moments::F32, Rounding::Master)?),
    ];
    if dtype != DType::F32 {
        let by_chance = Rounding::Stochastic { seed: 1 };
        runs.push(("ours, stochastic", ours(Moments::F32, by_chance)?));
    }
    let eight_bits = ours(Moments::EightBit, Rounding::Master)?;
    runs.push(("ours, 8-bit moments", eight_bits));
    let mut times = vec![Vec::new(); runs.len()];
    for round in 0..ROUNDS {
        for ((_, contestant), times) in runs.iter_mut().zip(&mut times) {
            let start = Instant::now();
            (contestant.run)()?;
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
    // In f32 both compute the same. bf16 is not compared: stock loses updates there.
    if dtype == DType::F32 {
        let off = difference(&runs[0].1.vars, &runs[1].1.vars)?;
        assert!(off < 1e-5, "stock and ours differ by {off}");
    }
    for ((form, _), &ms) in runs.iter().zip(&medians) {
        println!(
            "{name}, {}: {form:20} {ms:8.2} ms  {:5.1}× stock",
            dtype.as_str(),
            medians[0] / ms
        );
    }
    Ok(())
}
