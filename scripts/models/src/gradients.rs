//! One training step: which variables get a gradient, whether it is right, how long forward, backward and AdamW take, and how much
//! memory at once.
//!
//! The loss is the mean of the output's squares. Gradients are compared with those of the same model on composed ops in f64, which
//! have nothing of candle_fused in them and must reach every variable. Stock and composed models are trained by candle_nn's AdamW,
//! ported ones by candle_fused's.

use crate::forward::largest;
use crate::memory::peak_of;
use crate::table::TRAINED;
use crate::weights::Variables;
use crate::{composed_ops, ported, stock};
use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor};
use candle_nn::{Optimizer, ParamsAdamW, VarBuilder};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

type Build = fn(&str, VarBuilder<'static>) -> Result<stock::Run>;

/// Takes the step of an optimiser.
type Update = Box<dyn FnMut(&GradStore) -> Result<()>>;

/// A variant of a model with its variables.
struct Step {
    vars: Variables,
    run: stock::Run,
}

impl Step {
    fn new(build: Build, name: &str, dtype: DType) -> Result<Self> {
        let vars = Variables::default();
        let run = build(name, vars.builder(dtype))?;
        Ok(Step { vars, run })
    }

    fn backward(&mut self) -> Result<GradStore> {
        (self.run)()?.sqr()?.mean_all()?.backward()
    }

    /// The variables that this variant reaches, trained by an AdamW.
    fn optimiser<O: Optimizer<Config = ParamsAdamW> + 'static>(&mut self) -> Result<Update> {
        let grads = self.backward()?;
        let vars = self.vars.all().into_values();
        let vars = vars.filter(|var| grads.get(var).is_some()).collect();
        let params = ParamsAdamW {
            lr: 1e-5,
            ..Default::default()
        };
        let mut adam = O::new(vars, params)?;
        Ok(Box::new(move |grads| adam.step(grads)))
    }

    /// By name, in f64.
    fn gradients(&mut self) -> Result<BTreeMap<String, Tensor>> {
        let grads = self.backward()?;
        let mut named = BTreeMap::new();
        for (name, var) in self.vars.all() {
            if let Some(grad) = grads.get(&var) {
                named.insert(name, grad.to_dtype(DType::F64)?);
            }
        }
        Ok(named)
    }
}

/// How far a gradient may be off, as a share of the largest of its variable.
const TOLERANCE: f64 = 1e-2;

struct Right {
    reached: usize,
    right: usize,
    wrong: Vec<String>,
}

/// Compares each gradient with the true one. Where the truth is no more than rounding beside the gradients of other
/// variables (the bias of keys under a softmax has none), the difference is measured by those.
fn compare(got: &BTreeMap<String, Tensor>, want: &BTreeMap<String, Tensor>) -> Result<Right> {
    let mut out = Right {
        reached: got.len(),
        right: 0,
        wrong: vec![],
    };
    let sizes: Vec<f64> = want.values().map(largest).collect::<Result<_>>()?;
    let floor = 1e-5 * sizes.iter().fold(0.0, |a: f64, b| a.max(*b));
    for (name, want) in want {
        let Some(got) = got.get(name) else {
            out.wrong.push(format!("{name}: none"));
            continue;
        };
        let off = largest(&(got - want)?)? / largest(want)?.max(floor);
        match off <= TOLERANCE {
            true => out.right += 1,
            false => out.wrong.push(format!("{name}: off by {off:.1e}")),
        }
    }
    Ok(out)
}

/// Runs the named cases; false if a ported model misses a gradient or has a wrong one.
pub fn run(args: &[&str]) -> Result<bool> {
    let times = !args.contains(&"--no-times");
    let mut ok = true;
    for name in args.iter().filter(|arg| !arg.starts_with("--")) {
        if TRAINED.iter().all(|(known, _)| known != name) {
            candle_core::bail!("no model to train is called {name}");
        }
        ok &= one(name, times)?;
    }
    Ok(ok)
}

/// Whether batch norm keeps this in a copy of its own, which is not trained.
fn is_statistic(variable: &str) -> bool {
    variable.ends_with("running_mean") || variable.ends_with("running_var")
}

fn one(name: &str, times: bool) -> Result<bool> {
    let mut truth = Step::new(composed_ops::build, name, DType::F64)?;
    let want = truth.gradients()?;
    let mut steps = [const { None }; 3];
    let mut row = vec![name.to_string(), want.len().to_string()];
    let mut ok = true;
    for missed in truth.vars.all().into_keys() {
        if !want.contains_key(&missed) && !is_statistic(&missed) {
            eprintln!("{name}: {missed}: not reached by composed ops");
            ok = false;
        }
    }
    let variants: [(&str, Build); 3] = [
        ("stock", stock::build),
        ("composed", composed_ops::build),
        ("ported", ported::build),
    ];
    for ((variant, build), kept) in variants.into_iter().zip(&mut steps) {
        let mut step = Step::new(build, name, DType::F32)?;
        match step.gradients() {
            Ok(got) => {
                let right = compare(&got, &want)?;
                row.push(format!("{} ({} right)", right.reached, right.right));
                if variant == "ported" {
                    ok &= right.wrong.is_empty();
                    right
                        .wrong
                        .iter()
                        .take(8)
                        .for_each(|wrong| eprintln!("{name}: {wrong}"));
                }
                *kept = Some(step);
            }
            Err(reason) => {
                let reason = reason.to_string();
                eprintln!(
                    "{name}: {variant} fails: {}",
                    reason.lines().next().unwrap_or("")
                );
                row.push("fails".into());
                ok &= variant != "ported";
            }
        }
    }
    if times {
        row.extend(costs(&mut steps)?);
    }
    println!("{}\t{}", row.join("\t"), if ok { "" } else { "WRONG" });
    Ok(ok)
}

/// Milliseconds of each variant's step, run in turn, and then the megabytes that a step needs beside variables and moments.
fn costs(steps: &mut [Option<Step>; 3]) -> Result<Vec<String>> {
    let mut updates = [const { None }; 3];
    let make = [
        Step::optimiser::<candle_nn::AdamW>,
        Step::optimiser::<candle_nn::AdamW>,
        Step::optimiser::<candle_fused::nn::AdamW>,
    ];
    for ((step, update), make) in steps.iter_mut().zip(&mut updates).zip(make) {
        *update = step.as_mut().map(make).transpose()?;
    }
    let mut times: [Vec<Duration>; 3] = Default::default();
    let mut peaks = [None; 3];
    let start = Instant::now();
    for round in 0.. {
        if round > 5 && start.elapsed().as_secs_f64() > 6.0 {
            break;
        }
        for (i, (step, update)) in steps.iter_mut().zip(&mut updates).enumerate() {
            let (Some(step), Some(update)) = (step, update) else {
                continue;
            };
            let start = Instant::now();
            let (result, peak) = peak_of(|| update(&step.backward()?));
            result?;
            // The first one makes what later ones find.
            if round > 0 {
                times[i].push(start.elapsed());
                peaks[i] = Some(peak);
            }
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times
            .get(times.len() / 2)
            .map_or("-".into(), |t| format!("{:.1}", t.as_secs_f64() * 1e3))
    };
    let megabytes = |peak: Option<usize>| match peak {
        Some(bytes) => format!("{:.1}", bytes as f64 / 1e6),
        None => "-".into(),
    };
    let mut columns: Vec<String> = times.iter_mut().map(median).collect();
    columns.extend(peaks.map(megabytes));
    Ok(columns)
}
