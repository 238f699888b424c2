//! `keep_freed_memory`, in a process of its own: it counts the pages that the whole process has found missing.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{add_act, Act};

/// The pages that were missing but not on a disk: the tenth field of the system's file.
fn missing_pages() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    // The second field is a name in parentheses, which may have spaces.
    let fields = stat.rsplit(')').next().expect("fields");
    fields
        .split_whitespace()
        .nth(7)
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

/// Results that are freed before the next ones are made, beside one that stays.
#[test]
fn results_are_written_to_kept_memory() -> Result<()> {
    // 8 MB.
    let x = Tensor::ones(2 << 20, DType::F32, &Device::Cpu)?;
    assert!(candle_fused::keep_freed_memory(256 << 20));
    let run = || -> Result<()> {
        let (a, b) = (add_act(&x, &x, Act::Identity)?, add_act(&x, &x, Act::Silu)?);
        drop(a);
        let c = add_act(&b, &x, Act::Identity)?;
        drop((b, c));
        Ok(())
    };
    run()?;
    let before = missing_pages();
    for _ in 0..20 {
        run()?;
    }
    // Fresh, 20 times three results would be 120 thousand pages of 4 KB.
    let found = missing_pages() - before;
    assert!(found < 4_000, "{found} pages were missing");
    Ok(())
}
