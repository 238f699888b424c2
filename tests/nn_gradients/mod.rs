//! Every public item of `candle_nn` that makes a tensor, through `candle_fused::nn`: a `Var` at each of its arguments gets the
//! gradient that the composed form gives, or the call is an error. A gradient that is lost in silence fails here.
//!
//! The list of items is read from the sources of `candle_nn`, so that none is forgotten: each is walked by a [`Case`], or stands
//! in [`listed::WITHOUT_GRADIENTS`] with the reason why it has none.

mod attention;
mod caches;
mod items;
mod layers;
mod listed;
mod losses;
mod ops;
mod recurrent;
mod variables;

use crate::devices::devices;
use crate::tensors::error;
use candle_core::{DType, Device, Result, Tensor, Var};
use std::collections::BTreeSet;

type Call = fn(&[Tensor]) -> Result<Tensor>;

/// One way to call one or more items.
pub struct Case {
    /// As [`items::items`] names them.
    items: &'static [&'static str],
    /// The arguments that get a `Var`, each.
    dims: &'static [&'static [usize]],
    /// Through `candle_fused::nn`.
    ours: Call,
    /// The same code through `candle_nn`.
    stock: Call,
    /// Plain Candle, where stock's own is not composed of differentiable ops.
    composed: Option<Call>,
    /// Whether arguments that track gradients are an error here.
    refuses: bool,
}

/// Cases: `item, item => [dims, dims] |t| call, |t| composed;`. The call is compiled twice, with `nn` for ours and for stock's.
macro_rules! cases {
    ($($($item:literal),+ => [$($dims:expr),*] |$t:ident| $call:expr $(, |$u:ident| $composed:expr)?;)+) => {
        pub fn cases() -> Vec<super::Case> {
            #[allow(unused_imports, deprecated, reason = "the same code for both")]
            let cases = vec![$(super::Case {
                items: &[$($item),+],
                dims: &[$(&$dims),*],
                ours: |$t| { use candle_fused::nn; $call },
                stock: |$t| { use candle_nn as nn; $call },
                composed: super::some_call!($(|$u| $composed)?),
                refuses: false,
            }),+];
            cases
        }
    };
}
use cases;

macro_rules! some_call {
    () => {
        None
    };
    (|$u:ident| $composed:expr) => {
        Some(|$u| $composed)
    };
}
use some_call;

fn all() -> Vec<Case> {
    let mut cases = vec![];
    cases.extend(ops::cases());
    cases.extend(losses::cases());
    cases.extend(layers::cases());
    cases.extend(recurrent::cases());
    cases.extend(variables::cases());
    cases.extend(attention::cases());
    cases.extend(caches::cases());
    cases.extend(caches::refusals());
    cases
}

#[test]
fn every_item_is_walked_or_listed() {
    let mut open = items::items();
    assert!(open.contains("ops::softmax_last_dim") && open.len() > 300);
    let mut unknown = BTreeSet::new();
    let walked = all()
        .into_iter()
        .flat_map(|case| case.items.iter().copied());
    let listed = listed::WITHOUT_GRADIENTS
        .iter()
        .flat_map(|(_, items)| items.iter().copied());
    let known: BTreeSet<&str> = walked.chain(listed).collect();
    for item in known {
        if !open.remove(item) {
            unknown.insert(item);
        }
    }
    assert!(
        unknown.is_empty(),
        "candle_nn has none of these: {unknown:#?}"
    );
    assert!(open.is_empty(), "neither walked nor listed: {open:#?}");
}

/// Waves that differ from argument to argument and have no element near a kink at 0.
fn var(dims: &[usize], seed: usize, device: &Device) -> Result<Var> {
    let count = dims.iter().product::<usize>();
    let wave = |i: usize| {
        let x = ((i * 7 + seed * 3) as f32 * 0.61).sin();
        x + 0.15 * x.signum()
    };
    let values: Vec<f32> = (0..count).map(wave).collect();
    Var::from_tensor(&Tensor::from_vec(values, dims, device)?)
}

fn vars(case: &Case, device: &Device) -> Result<Vec<Var>> {
    let dims = case.dims.iter().enumerate();
    dims.map(|(i, dims)| var(dims, i, device)).collect()
}

/// A weighted sum of the result, so that each element has a gradient of its own.
fn loss(call: Call, args: &[Tensor]) -> Result<Tensor> {
    let y = call(args)?.to_dtype(DType::F32)?;
    let weights: Vec<f32> = (0..y.elem_count())
        .map(|i| (i as f32 * 0.37).cos())
        .collect();
    let weights = Tensor::from_vec(weights, y.shape(), y.device())?;
    (y * weights)?.sum_all()
}

/// The gradients of a call's arguments, by autograd.
fn gradients(call: Call, vars: &[Var]) -> Result<Vec<Option<Tensor>>> {
    let args: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let loss = loss(call, &args)?;
    // Where nothing is tracked, Candle has nothing to go through.
    if !loss.track_op() {
        return Ok(vec![None; vars.len()]);
    }
    let grads = loss.backward()?;
    Ok(vars.iter().map(|v| grads.get(v).cloned()).collect())
}

/// The slope of the loss along a direction of one argument, by central differences, and the gradient's share of it.
fn slopes(call: Call, vars: &[Var], i: usize, grad: &Tensor) -> Result<(f64, f64)> {
    let direction = var(vars[i].dims(), i + 5, vars[i].device())?
        .as_tensor()
        .detach();
    let at = |step: f64| -> Result<f64> {
        let mut args: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().detach()).collect();
        args[i] = (&args[i] + (&direction * step)?)?;
        Ok(f64::from(loss(call, &args)?.to_scalar::<f32>()?))
    };
    let step = 5e-3;
    let slope = (at(step)? - at(-step)?) / (2.0 * step);
    let share = (grad * &direction)?.sum_all()?.to_scalar::<f32>()?;
    Ok((slope, share.into()))
}

fn check(case: &Case, device: &Device, failures: &mut Vec<String>) -> Result<()> {
    let vars = vars(case, device)?;
    let mut fail = |message: String| failures.push(format!("{:?}: {message}", case.items));
    let got = match (gradients(case.ours, &vars), case.refuses) {
        (Ok(got), false) => got,
        (Err(error), true) => {
            let text = error.to_string();
            if !text.contains("gradient") {
                fail(format!("refused, but with {text}"));
            }
            return Ok(());
        }
        (Ok(_), true) => {
            fail("accepted, but its gradient is known to be lost".into());
            return Ok(());
        }
        (Err(error), false) => {
            fail(error.to_string());
            return Ok(());
        }
    };
    let want = gradients(case.composed.unwrap_or(case.stock), &vars)?;
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let (Some(got), Some(want)) = (got, want) else {
            let lost = |grad: &Option<Tensor>| if grad.is_none() { "no" } else { "a" };
            fail(format!(
                "{} gradient to argument {i}, and {} gradient in the composed form",
                lost(got),
                lost(want)
            ));
            continue;
        };
        let off = error(got, want)?;
        if off.is_nan() || off > 1e-4 {
            fail(format!("the gradient to argument {i} is off by {off}"));
        }
        let (slope, share) = slopes(case.ours, &vars, i, got)?;
        if (slope - share).abs() > 1e-2 * (1.0 + slope.abs()) {
            fail(format!(
                "the slope along argument {i} is {slope}, by the gradient {share}"
            ));
        }
    }
    Ok(())
}

#[test]
fn no_gradient_is_lost() -> Result<()> {
    let mut failures = vec![];
    for device in devices() {
        let cases = match device.is_cpu() {
            true => all(),
            // The graph is the same on Metal, and emulation is slow: what has no test of its own there.
            false => [caches::cases(), caches::refusals()]
                .into_iter()
                .flatten()
                .collect(),
        };
        for case in cases {
            check(&case, device, &mut failures)?;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Where stock runs at all, its results are ours.
#[test]
fn results_are_stocks() -> Result<()> {
    let mut failures = vec![];
    for case in all().into_iter().filter(|case| !case.refuses) {
        let args = vars(&case, &Device::Cpu)?;
        let args: Vec<Tensor> = args.iter().map(|v| v.as_tensor().detach()).collect();
        if let Ok(want) = (case.stock)(&args) {
            let got = (case.ours)(&args)?;
            let off = error(&got, &want)?;
            if got.dtype() != want.dtype() || off.is_nan() || off > 1e-5 {
                failures.push(format!(
                    "{:?} is off by {off}, in {:?}",
                    case.items,
                    got.dtype()
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// What the walk is for: printed with `--nocapture`.
#[test]
fn stock_loses_gradients() -> Result<()> {
    let (mut lost, mut count) = (vec![], 0);
    for case in all() {
        let vars = vars(&case, &Device::Cpu)?;
        count += vars.len();
        match gradients(case.stock, &vars) {
            Ok(grads) => {
                let none = grads.iter().filter(|grad| grad.is_none()).count();
                if none > 0 {
                    lost.push((
                        none,
                        format!("{} of {} by {:?}", none, vars.len(), case.items),
                    ));
                }
            }
            // An error is no loss: it is seen.
            Err(_) => count -= vars.len(),
        }
    }
    let sum: usize = lost.iter().map(|(none, _)| none).sum();
    println!("stock loses {sum} of {count} gradients in silence:");
    lost.iter().for_each(|(_, text)| println!("  {text}"));
    assert!(sum > 0);
    Ok(())
}
