//! What the ops refuse: always an error, never a panic, and one that says why.

mod names;

use crate::cases::{self, OpCase};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// What is wrong with this refusal: nothing if it is an error that contains all of `says`.
fn problem(what: &str, says: &[&str], call: impl FnOnce() -> Result<()>) -> Option<String> {
    let text = match catch_unwind(AssertUnwindSafe(call)) {
        Err(_) => return Some(format!("panics on {what}")),
        Ok(Ok(())) => return Some(format!("accepts {what}")),
        Ok(Err(error)) => error.to_string(),
    };
    let missing = says.iter().find(|s| !text.contains(**s))?;
    Some(format!("the error on {what} lacks {missing:?}: {text}"))
}

fn none(problems: impl Iterator<Item = String>) {
    let problems: Vec<String> = problems.collect();
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

fn every_case(check: impl Fn(&OpCase) -> Option<String>) {
    let cases = cases::all();
    none(cases.iter().filter_map(|case| {
        let problem = check(case)?;
        Some(format!("{}: {problem}", case.id()))
    }));
}

#[test]
fn declared_rejects() {
    for device in devices() {
        none(cases::rejects().iter().filter_map(|r| {
            let says = [&[r.op], r.says].concat();
            let problem = problem(r.what, &says, || (r.call)(device))?;
            Some(format!("{}: {problem}", r.op))
        }));
    }
}

#[test]
fn integers() {
    every_case(|case| {
        let integers = |dtype| -> Result<Vec<Tensor>> {
            case.inputs(case.small(), DType::F32, &Device::Cpu)?
                .iter()
                .map(|x| x.zeros_like()?.to_dtype(dtype))
                .collect()
        };
        let call = || (case.fused)(&integers(DType::U32)?).map(drop);
        problem("u32", &["U32", "f32, f16 or bf16"], call).or_else(|| {
            let in_place = case.in_place.as_ref()?;
            let call = || in_place(&integers(DType::I64)?);
            problem("i64 in place", &["I64", "f32, f16 or bf16"], call)
        })
    });
}

#[test]
fn mixed_dtypes() {
    every_case(|case| {
        (1..case.args.len()).find_map(|i| {
            let name = case.args[i].name;
            problem("mixed dtypes", &[name, "F16", "F32"], || {
                let mut args = case.inputs(case.small(), DType::F32, &Device::Cpu)?;
                args[i] = args[i].to_dtype(DType::F16)?;
                (case.fused)(&args).map(drop)
            })
        })
    });
}

#[test]
fn mixed_devices() {
    let [first, second, ..] = devices() else {
        return;
    };
    every_case(|case| {
        (1..case.args.len()).find_map(|i| {
            let name = case.args[i].name;
            problem("mixed devices", &[name, "Cpu", "Metal"], || {
                let mut args = case.inputs(case.small(), DType::F32, first)?;
                args[i] = args[i].to_device(second)?;
                (case.fused)(&args).map(drop)
            })
        })
    });
}

#[test]
fn in_place_on_what_tracks_gradients() {
    every_case(|case| {
        let in_place = case.in_place.as_ref()?;
        let with = |first: fn(&Tensor) -> Result<Tensor>| {
            let mut args = case.inputs(case.small(), DType::F32, &Device::Cpu)?;
            args[0] = first(&args[0])?;
            in_place(&args)
        };
        let says = ["in place", "tracks gradients"];
        let var = |x: &Tensor| Ok(Var::from_tensor(x)?.into_inner());
        let node = |x: &Tensor| Var::from_tensor(x)?.affine(2.0, 0.0);
        problem("a variable", &says, || with(var))
            .or_else(|| problem("a tensor of a graph", &says, || with(node)))
    });
}

/// Writing through a stride of 0, or over an operand, would depend on the order.
#[test]
fn in_place_on_shared_memory() {
    every_case(|case| {
        let in_place = case.in_place.as_ref()?;
        let inputs = || case.inputs(case.small(), DType::F32, &Device::Cpu);
        let broadcast = problem("a broadcast tensor in place", &[], || {
            let mut args = inputs()?;
            let first = args[0].narrow(0, 0, 1)?;
            args[0] = first.broadcast_as(args[0].shape())?;
            in_place(&args)
        });
        broadcast.or_else(|| {
            if case
                .args
                .get(1)
                .is_none_or(|arg| (arg.shape)(case.small()) != (case.args[0].shape)(case.small()))
            {
                return None;
            }
            problem("a tensor with itself in place", &[], || {
                let mut args = inputs()?;
                args[1] = args[0].clone();
                in_place(&args)
            })
        })
    });
}
