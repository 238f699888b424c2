//! Every library of candle and of ours passes all checks with every instantiation.

#[path = "common/sources.rs"]
mod sources;

use softmetal_msl::{Library, Options, Version};
use std::time::Instant;

/// Compiles each source and returns how many functions there are.
fn check(sources: &[(String, String)], options: &Options) -> usize {
    let mut functions = 0;
    let mut failures = Vec::new();
    for (name, text) in sources {
        let start = Instant::now();
        match Library::new(text, options) {
            Ok(library) => {
                functions += library.functions().len();
                println!(
                    "{name}: {} functions, {:.2?}",
                    library.functions().len(),
                    start.elapsed()
                );
            }
            Err(error) => {
                println!("{name}:\n{error}");
                failures.push(name.as_str());
            }
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
    functions
}

#[test]
fn candles_sources_pass() {
    let Some(sources) = sources::candle() else {
        assert!(std::env::var("CI").is_err(), "Candle's sources are missing");
        println!("SKIPPED: cargo does not know where candle-metal-kernels is");
        return;
    };
    assert_eq!(sources.len(), 16);
    let all = check(&sources, &Options::default());
    assert!(all > 1500, "{all} functions");
    let old = Options {
        language: Version::V3_0,
        ..Options::default()
    };
    // These use bfloat without asking whether there is one; attention lacks a float16_t then.
    let newer = ["gemv", "mlx_sort", "scaled_dot_product_attention"];
    for (_, text) in sources
        .iter()
        .filter(|(name, _)| newer.contains(&name.as_str()))
    {
        assert!(Library::new(text, &old).is_err());
    }
    let sources: Vec<_> = sources
        .into_iter()
        .filter(|(name, _)| !newer.contains(&name.as_str()))
        .collect();
    let without_bfloat = check(&sources, &old);
    assert!(without_bfloat < all, "{without_bfloat} functions");
}

#[test]
fn our_sources_pass() {
    let sources = sources::own();
    let all = check(&sources, &Options::default());
    let old = Options {
        language: Version::V3_0,
        ..Options::default()
    };
    let without_bfloat = check(&sources, &old);
    // About a third is bfloat's.
    assert!(
        without_bfloat < all && without_bfloat >= all * 5 / 8,
        "{without_bfloat} of {all} functions"
    );
}
