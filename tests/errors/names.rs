//! Errors begin with the name of the function that was called.

use crate::cases::{self, Wrong};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::nn::attention::cpu_flash::causal::run_causal_attn_cpu;
use candle_fused::nn::attention::{
    flash_attn, flash_attn_varlen_cpu, flash_attn_varlen_unfused, AttnMask,
};
use candle_fused::nn::cpu_flash_attention::run_flash_attn_cpu;
use candle_fused::nn::{self, rotary_emb};

fn refused(device: &Device) -> Result<Vec<cases::Refused>> {
    Ok(cases::refused(&Wrong::new(device)?))
}

/// Each call was refused, and its error begins with the name of the function.
fn name_their_functions<'a>(calls: impl Iterator<Item = (&'a str, Result<()>)>) {
    let mut wrong = Vec::new();
    for (function, result) in calls {
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
}

#[test]
fn errors_name_the_function_called() -> Result<()> {
    for device in devices() {
        name_their_functions(refused(device)?.into_iter());
    }
    Ok(())
}

/// Functions of `nn` that are made of ops with other names.
#[test]
fn errors_name_the_function_of_nn() -> Result<()> {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu);
    // Three heads of queries, and two of keys.
    let (q, kv) = (&zeros(&[1, 5, 3, 4])?, &zeros(&[1, 5, 2, 4])?);
    let by_heads = [&q.transpose(1, 2)?, &kv.transpose(1, 2)?];
    let packed = [&q.squeeze(0)?, &kv.squeeze(0)?];
    let (lengths, slopes) = (&Tensor::new(&[5u32], &Device::Cpu)?, &zeros(&[3])?);
    let none = || AttnMask::None;
    // More positions than the tables have.
    let (x, table) = (&zeros(&[1, 5, 5, 4])?, &zeros(&[3, 2])?);
    let calls = [
        (
            "sdpa",
            nn::ops::sdpa(by_heads[0], by_heads[1], by_heads[1], None, true, 0.5, 1.0),
        ),
        (
            "flash_attn",
            flash_attn::<f32>(q, kv, kv, 0.5, none(), None, None),
        ),
        (
            "flash_attn",
            flash_attn::<f32>(q, kv, kv, 0.5, none(), Some(2.0), None),
        ),
        (
            "run_flash_attn_cpu",
            run_flash_attn_cpu::<f32>(q, kv, kv, None, 0.5, None, None),
        ),
        (
            "run_causal_attn_cpu",
            run_causal_attn_cpu::<f32>(q, kv, kv, 0.5, 1, None, None),
        ),
        (
            "flash_attn_varlen_cpu",
            flash_attn_varlen_cpu(
                packed[0], packed[1], packed[1], None, lengths, lengths, 5, 5, 0.5, true, None,
                None,
            ),
        ),
        (
            "flash_attn_varlen_unfused",
            flash_attn_varlen_unfused(
                packed[0],
                packed[1],
                packed[1],
                Some(slopes),
                lengths,
                lengths,
                5,
                5,
                0.5,
                true,
                None,
                None,
            ),
        ),
        ("rope", rotary_emb::rope(x, table, table)),
        ("rope_i", rotary_emb::rope_i(x, table, table)),
        ("rope_thd", rotary_emb::rope_thd(x, table, table)),
        ("rope_slow", rotary_emb::rope_slow(x, table, table)),
        ("rope_i_slow", rotary_emb::rope_i_slow(x, table, table)),
        ("swiglu", nn::ops::swiglu(&zeros(&[2, 3])?)),
    ];
    name_their_functions(calls.into_iter().map(|(name, y)| (name, y.map(drop))));
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
