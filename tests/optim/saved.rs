//! An optimiser that is saved, and goes on from there.

use super::{adamw, close, message, params, signal, store, values};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{AdamW, AdamWOptions, Moments, Optimizer, Rounding, VarMap};

fn grads(vars: &[Var], step: u64) -> Result<Vec<Tensor>> {
    let grad = |(i, var): (usize, &Var)| {
        signal(var.dims(), 10 * step + i as u64, var.dtype(), var.device())
    };
    vars.iter().enumerate().map(grad).collect()
}

#[test]
fn goes_on_as_if_it_had_never_stopped() -> Result<()> {
    for device in devices() {
        for moments in [Moments::F32, Moments::EightBit] {
            for rounding in [Rounding::Master, Rounding::Stochastic { seed: 2 }] {
                let make = || -> Result<Vec<Var>> {
                    let dims: [(&[usize], DType); 4] = [
                        (&[5, 7], DType::F32),
                        (&[4099], DType::BF16),
                        (&[0], DType::F16),
                        (&[4200], DType::F16),
                    ];
                    let var = |(dims, dtype): &(&[usize], DType)| {
                        Var::from_tensor(&signal(dims, 1, *dtype, device)?)
                    };
                    dims.iter().map(var).collect()
                };
                let vars = make()?;
                let mut adam = adamw(&vars, moments, rounding)?;
                for step in 0..2 {
                    adam.step(&store(vars.iter().zip(&grads(&vars, step)?)))?;
                }
                let path = std::env::temp_dir().join(format!(
                    "candle-fused-adamw-{}-{:?}-{:?}-{}.safetensors",
                    std::process::id(),
                    moments,
                    matches!(rounding, Rounding::Master),
                    device.is_cpu()
                ));
                adam.save(&path)?;
                // `Var::from_tensor` takes a variable as it is, so it is given copies.
                let copies = vars
                    .iter()
                    .map(|var| Var::from_tensor(&var.as_tensor().copy()?));
                let resumed_vars = copies.collect::<Result<Vec<_>>>()?;
                let mut resumed = adamw(&resumed_vars, moments, rounding)?;
                resumed.load(&path)?;
                std::fs::remove_file(&path)?;
                assert_eq!(resumed.step_count(), 2);
                let more = grads(&vars, 2)?;
                let state = adam.state()?;
                let before: Vec<(&Tensor, Vec<f64>)> = state
                    .values()
                    .map(|part| Ok((part, values(part)?)))
                    .collect::<Result<_>>()?;
                adam.step(&store(vars.iter().zip(&more)))?;
                resumed.step(&store(resumed_vars.iter().zip(&more)))?;
                for (a, b) in vars.iter().zip(&resumed_vars) {
                    close(a, b, 0.0)?;
                }
                // A state is a copy, which no step changes.
                for (part, before) in before {
                    assert_eq!(values(part)?, before);
                }
            }
        }
    }
    Ok(())
}

/// Names, not the order of a hash map, say which state is whose.
#[test]
fn a_map_is_saved_by_names() -> Result<()> {
    let map = |seed: u64| -> Result<VarMap> {
        let map = VarMap::new();
        for name in ["a.weight", "b.weight", "c.bias"] {
            let var = Var::from_tensor(&signal(&[6], seed, DType::F32, &Device::Cpu)?)?;
            map.data().lock().unwrap().insert(name.into(), var);
        }
        Ok(map)
    };
    let map = map(1)?;
    let mut adam = AdamW::from_varmap(&map, params(), AdamWOptions::default())?;
    let b = map.data().lock().unwrap()["b.weight"].clone();
    adam.step(&store([(&b, &b.ones_like()?)]))?;
    let state = adam.state()?;
    let first = |key: &str| state[key].to_vec1::<f32>().map(|values| values[0]);
    assert!((first("b.weight.m")? - 0.1).abs() < 1e-6);
    assert_eq!((first("a.weight.m")?, first("c.bias.v")?), (0.0, 0.0));
    let same = [("w".to_string(), b.clone()), ("w".to_string(), b)];
    let twice = message(AdamW::named(same, params(), AdamWOptions::default()));
    assert!(twice.contains("two variables of the name"), "{twice}");
    Ok(())
}

#[test]
fn a_state_that_does_not_fit_changes_nothing() -> Result<()> {
    let w = Var::ones(4200, DType::F32, &Device::Cpu)?;
    let mut adam = adamw(std::slice::from_ref(&w), Moments::F32, Rounding::Nearest)?;
    adam.step(&store([(&w, &w.ones_like()?)]))?;
    let good = adam.state()?;
    let eight = adamw(
        std::slice::from_ref(&w),
        Moments::EightBit,
        Rounding::Nearest,
    )?
    .state()?;
    let mut bads = vec![eight];
    for change in 0..4 {
        let mut state = good.clone();
        match change {
            0 => drop(state.remove("0.v")),
            1 => drop(state.insert("0.m".into(), Tensor::zeros(4199, DType::F32, &Device::Cpu)?)),
            2 => drop(state.insert("7.m".into(), Tensor::zeros(1, DType::F32, &Device::Cpu)?)),
            _ => drop(state.insert("step".into(), Tensor::new(&[-1i64], &Device::Cpu)?)),
        }
        bads.push(state);
    }
    for bad in bads {
        let refused = message(adam.load_state(&bad));
        assert!(refused.starts_with("AdamW::load_state: got "), "{refused}");
        assert!(refused.contains("expected"), "{refused}");
        assert_eq!(adam.step_count(), 1);
        close(&adam.state()?["0.m"], &good["0.m"], 0.0)?;
    }
    adam.load_state(&good)
}
