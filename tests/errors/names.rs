//! Errors begin with the name of the function that was called.

use crate::cases::{self, Wrong};
use crate::devices::devices;
use candle_core::{Device, Result};

fn refused(device: &Device) -> Result<Vec<cases::Refused>> {
    Ok(cases::refused(&Wrong::new(device)?))
}

#[test]
fn errors_name_the_function_called() -> Result<()> {
    let mut wrong = Vec::new();
    for (function, result) in devices()
        .iter()
        .map(refused)
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
    {
        let text = match result {
            Ok(()) => "accepted".to_string(),
            Err(error) => error.to_string(),
        };
        if !text.starts_with(&format!("{function}: ")) {
            let text = text.lines().next().unwrap_or_default();
            wrong.push(format!("{function}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(())
}

/// The cases have a wrong call of every function that `ops` offers.
#[test]
fn every_function_is_called() -> Result<()> {
    let called: Vec<_> = refused(&Device::Cpu)?
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let exports = crate::architecture::exports(include_str!("../../src/ops/mod.rs"));
    assert!(exports.contains(&("softmax".into(), "log_softmax".into())));
    let functions = exports.into_iter().map(|(_, name)| name);
    let functions = functions.filter(|name| name.starts_with(|c: char| c.is_lowercase()));
    let missing: Vec<_> = functions
        .filter(|name| !called.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "no refused call of {missing:?}");
    Ok(())
}
