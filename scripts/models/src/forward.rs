//! One forward pass of stock and ported, in turn: do they agree, how long do they take.

use crate::table::{find, Case};
use crate::weights::Frozen;
use crate::{ported, stock};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use std::time::{Duration, Instant};

/// How often and how long runs are repeated.
struct Budget {
    seconds: f64,
    least: usize,
    /// Runs the ported model alone: what a user of it sees, and what a profiler should.
    alone: bool,
}

/// Runs the named cases and prints a line for each; false if one disagrees.
pub fn run(args: &[&str]) -> Result<bool> {
    let mut budget = Budget {
        seconds: 3.0,
        least: 3,
        alone: false,
    };
    let (mut ok, mut args) = (true, args.iter());
    while let Some(arg) = args.next() {
        match *arg {
            "--once" => (budget.seconds, budget.least) = (0.0, 0),
            "--alone" => budget.alone = true,
            "--seconds" => {
                let seconds = args.next().and_then(|s| s.parse().ok());
                budget.seconds =
                    seconds.ok_or_else(|| candle_core::Error::msg("--seconds needs a number"))?;
            }
            id => match find(id) {
                Some(case) => ok &= one(case, &budget)?,
                None => candle_core::bail!("no case is called {id}"),
            },
        }
    }
    Ok(ok)
}

/// The median in milliseconds, as it is printed.
fn ms(times: &mut [Duration]) -> String {
    times.sort_unstable();
    match times.get(times.len() / 2) {
        Some(median) => format!("{:.2}", median.as_secs_f64() * 1e3),
        None => "-".into(),
    }
}

/// The largest absolute value, or NaN if there is one: Candle's own maximum passes over it.
pub fn largest(x: &Tensor) -> Result<f64> {
    let larger = |most: f64, x: f64| if x > most || x.is_nan() { x } else { most };
    Ok(x.abs()?
        .flatten_all()?
        .to_vec1::<f64>()?
        .into_iter()
        .fold(0.0, larger))
}

/// max |a − b| / max |a|.
fn difference(a: &Tensor, b: &Tensor) -> Result<f64> {
    let (a, b) = (a.to_dtype(DType::F64)?, b.to_dtype(DType::F64)?);
    Ok(largest(&(&a - &b)?)? / largest(&a)?)
}

/// How long a model runs before it is the other one's turn. One that runs alone finds its CPU and memory awake; behind a slower
/// one, which leaves memory idle, a single decode of 5 ms took twice as long.
const TURN: Duration = Duration::from_millis(200);

/// Runs a model for a turn, once at least. The first run, which finds the other model's data in the caches, counts if it is the
/// only one.
fn timed(run: &mut stock::Run, times: &mut Vec<Duration>) -> Result<()> {
    let (turn, mut runs) = (Instant::now(), vec![]);
    while runs.is_empty() || turn.elapsed() < TURN {
        let start = Instant::now();
        run()?;
        runs.push(start.elapsed());
    }
    let warm = usize::from(runs.len() > 1);
    times.extend(&runs[warm..]);
    Ok(())
}

fn one(case: &Case, budget: &Budget) -> Result<bool> {
    let mut ours = ported::build(case.name, Frozen::builder(case.dtype))?;
    let mut theirs = stock::build(case.name, Frozen::builder(case.dtype))?;
    let y = ours()?;
    let (error, ok) = match theirs() {
        Ok(want) => {
            let error = difference(&want, &y)?;
            (format!("{error:.1e}"), error <= case.tolerance)
        }
        Err(reason) => {
            eprintln!("{}: stock fails: {}", case.id(), first_line(&reason));
            match case.dtype {
                DType::F32 => ("-".into(), false),
                // Stock lacks an op in 16 bits: it is run in f32.
                _ => {
                    let mut wide = stock::build(case.name, Frozen::builder(DType::F32))?;
                    let error = difference(&wide()?, &y)?;
                    (format!("{error:.1e} to f32"), error <= case.tolerance)
                }
            }
        }
    };
    let runs = !budget.alone && theirs().is_ok();
    let (mut a, mut b) = (vec![], vec![]);
    let start = Instant::now();
    while b.len() < budget.least || start.elapsed().as_secs_f64() < budget.seconds {
        if runs {
            timed(&mut theirs, &mut a)?;
        }
        timed(&mut ours, &mut b)?;
    }
    let verdict = if ok { "" } else { "DISAGREES" };
    println!(
        "{}\t{error}\t{}\t{}\t{}\t{verdict}",
        case.id(),
        ms(&mut a),
        ms(&mut b),
        b.len()
    );
    Ok(ok)
}

fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or("").to_string()
}

/// As [`Case::tolerance`], for real weights.
const MINILM_TOLERANCE: f64 = 1e-5;

/// MiniLM with the weights of a folder's `model.safetensors`; false if the two disagree.
pub fn minilm(args: &[&str]) -> Result<bool> {
    let [folder] = args else {
        candle_core::bail!("minilm needs a folder with model.safetensors");
    };
    let path = std::path::Path::new(folder).join("model.safetensors");
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
    let vb = || VarBuilder::from_tensors(tensors.clone(), DType::F32, &Device::Cpu);
    let mut ok = true;
    for (batch, tokens) in [(1, 128), (32, 128)] {
        let mut theirs = stock::bert(vb(), batch, tokens)?;
        let mut ours = ported::bert(vb(), batch, tokens)?;
        let error = difference(&theirs()?, &ours()?)?;
        let agrees = error <= MINILM_TOLERANCE;
        ok &= agrees;
        let (mut a, mut b) = (vec![], vec![]);
        let start = Instant::now();
        while b.len() < 5 || start.elapsed().as_secs_f64() < 8.0 {
            timed(&mut theirs, &mut a)?;
            timed(&mut ours, &mut b)?;
        }
        let (a, b, n) = (ms(&mut a), ms(&mut b), b.len());
        let verdict = if agrees { "" } else { "DISAGREES" };
        println!("MiniLM {batch}x{tokens}\t{error:.1e}\t{a}\t{b}\t{n}\t{verdict}");
    }
    Ok(ok)
}
