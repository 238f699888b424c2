//! How fast linear layers run, as a share of what the cores can multiply and add; for one row, as a share of what they can read:
//! `cargo run --release --example products`.
//!
//! Arguments are words that a line must contain, such as `bf16`, `384->1536` or `1 row`.

mod bandwidth;

use bandwidth::time_of_pass;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::linear;
use std::hint::black_box;
use std::time::Instant;

/// `(in, out, rows)`
const SHAPES: &[(usize, usize, &[usize])] = &[
    (1024, 1024, &[4, 8, 16, 24, 33, 64, 128, 512]),
    (384, 384, &[4, 8, 16, 128, 4096]),
    (384, 1536, &[128, 4096]),
    (1536, 384, &[128, 4096]),
    (768, 768, &[4, 8, 12, 16, 33, 128, 1056]),
    (768, 3072, &[33, 128, 1056]),
    (3072, 768, &[33, 128, 1056]),
    (2048, 2048, &[4, 8, 16, 128, 512]),
    (2048, 5632, &[16, 128, 512]),
    (5632, 2048, &[16, 128, 512]),
];

/// `(in, out)` of layers that one row goes through, as when a model writes one token after the other.
const ONE_ROW: &[(usize, usize)] = &[
    (896, 128),
    (640, 2048),
    (1024, 1024),
    (1024, 3072),
    (2816, 1024),
    (1024, 32000),
    (4096, 4096),
    (4096, 14336),
];

/// So many weights of a shape are read in turn, together too large for any cache.
const WEIGHT_BYTES: usize = 384 << 20;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    one_row(&words)?;
    let threads = candle_core::utils::get_num_threads();
    let peak = peak_of_a_core() * threads as f64;
    println!("{threads} threads, {peak:.0} GFLOP/s in f32 at most");
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for &(inputs, outputs, rows) in SHAPES {
            for &rows in rows {
                let line = format!("{:4} {inputs}->{outputs} {rows} rows", dtype.as_str());
                if !words.iter().all(|word| line.contains(word)) {
                    continue;
                }
                let x = Tensor::randn(0f32, 1.0, (rows, inputs), &Device::Cpu)?.to_dtype(dtype)?;
                let w =
                    Tensor::randn(0f32, 1.0, (outputs, inputs), &Device::Cpu)?.to_dtype(dtype)?;
                let bias = Tensor::zeros(outputs, dtype, &Device::Cpu)?;
                let seconds = median_seconds(|| linear(&x, &w, Some(&bias)))?;
                let rate = 2.0 * (rows * inputs * outputs) as f64 / seconds / 1e9;
                let share = 100.0 * rate / peak;
                println!(
                    "{line:30} {:9.1} µs {rate:7.1} GFLOP/s {share:4.0} %",
                    seconds * 1e6
                );
            }
        }
    }
    Ok(())
}

/// One row through each of many equal layers.
fn one_row(words: &[String]) -> Result<()> {
    let mut read = None;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for &(inputs, outputs) in ONE_ROW {
            let line = format!("{:4} {inputs}->{outputs} 1 row", dtype.as_str());
            if !words.iter().all(|word| line.contains(word)) {
                continue;
            }
            let bytes = inputs * outputs * dtype.size_in_bytes();
            let x = Tensor::randn(0f32, 1.0, (1, inputs), &Device::Cpu)?.to_dtype(dtype)?;
            let weight = Tensor::randn(0f32, 1.0, (outputs, inputs), &Device::Cpu)?;
            let layers = (0..WEIGHT_BYTES.div_ceil(bytes))
                .map(|_| weight.to_dtype(dtype)?.copy())
                .collect::<Result<Vec<_>>>()?;
            let seconds = median_seconds(|| {
                let mut y = linear(&x, &layers[0], None)?;
                for layer in &layers[1..] {
                    y = black_box(linear(&x, layer, None)?);
                }
                Ok(y)
            })?;
            let rate = (layers.len() * bytes) as f64 / seconds / 1e9;
            let most = *read.get_or_insert_with(|| {
                WEIGHT_BYTES as f64 / 1e6 / time_of_pass(WEIGHT_BYTES, false, 15)
            });
            let call = seconds * 1e6 / layers.len() as f64;
            let share = 100.0 * rate / most;
            println!("{line:30} {call:9.1} µs {rate:7.1} GB/s {share:4.0} % of {most:.1}");
        }
    }
    Ok(())
}

/// The median of calls that take a fifth of a second together.
fn median_seconds(call: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let mut seconds = Vec::new();
    black_box(call()?);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 0.2 || seconds.len() < 5 {
        let start = Instant::now();
        black_box(call()?);
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// GFLOP/s of one core: multiplications and additions in f32 that don't wait for one another.
fn peak_of_a_core() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the CPU has the instructions.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                return (0..5).map(|_| x86::avx512()).fold(0.0, f64::max);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return (0..5).map(|_| x86::avx2()).fold(0.0, f64::max);
            }
        }
    }
    f64::NAN
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;
    use std::hint::black_box;
    use std::time::Instant;

    const TIMES: usize = 2_000_000;

    /// `$sums` sums that are multiplied and added to, over and over.
    macro_rules! peak {
        ($name:ident, $features:literal, $lanes:literal, $sums:literal, $splat:ident, $fma:ident) => {
            /// # Safety
            /// The CPU has these features.
            #[target_feature(enable = $features)]
            pub unsafe fn $name() -> f64 {
                let (x, y) = ($splat(black_box(0.5)), $splat(black_box(1.0)));
                let mut sums = [$splat(0.0); $sums];
                let start = Instant::now();
                for _ in 0..TIMES {
                    for sum in &mut sums {
                        *sum = $fma(*sum, x, y);
                    }
                }
                let seconds = start.elapsed().as_secs_f64();
                black_box(sums);
                2.0 * ($lanes * $sums * TIMES) as f64 / seconds / 1e9
            }
        };
    }
    peak!(avx512, "avx512f", 16, 16, _mm512_set1_ps, _mm512_fmadd_ps);
    peak!(avx2, "avx2,fma", 8, 12, _mm256_set1_ps, _mm256_fmadd_ps);
}
