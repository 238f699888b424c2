//! What execution costs: processor time per thread, access, barrier and simd function, plain and checked.
//!
//! Times of a software device say nothing about a GPU.

use softmetal_exec::{run, Binding, Buffer, Config, Dispatch, Grid, Initial};
use softmetal_msl::{Library, Options};

const SOURCE: &str = "
#include <metal_stdlib>
using namespace metal;
kernel void threads(device float* out [[buffer(0)]], device const float* x [[buffer(1)]], uint id [[thread_position_in_grid]]) {
}
kernel void stream(device float* out [[buffer(0)]], device const float* x [[buffer(1)]], uint id [[thread_position_in_grid]]) {
    out[id] = x[id];
}
kernel void loads(device float* out [[buffer(0)]], device const float* x [[buffer(1)]], uint id [[thread_position_in_grid]]) {
    float total = 0.0f;
    for (uint i = 0; i < 64; i++) total += x[(id + i * 4) % 65536];
    if (total == 12345.0f) out[id] = total;
}
kernel void loads4(device float* out [[buffer(0)]], device const float4* x [[buffer(1)]], uint id [[thread_position_in_grid]]) {
    float4 total = 0.0f;
    for (uint i = 0; i < 64; i++) total += x[(id + i * 4) % 16384];
    if (total.x == 12345.0f) out[id] = total.y + total.z + total.w;
}
kernel void halves(device half* out [[buffer(0)]], device const half* x [[buffer(1)]], uint id [[thread_position_in_grid]]) {
    for (uint i = 0; i < 16; i++) out[id % 65536 + i * 65536] = x[id % 65536 + i * 65536];
}
kernel void tile(device float* out [[buffer(0)]], device const float* x [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float t[1024];
    t[tid] = float(tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < 64; i++) total += t[(tid + i) % 256];
    if (total == 12345.0f) out[tid] = total;
}
kernel void barriers(device float* out [[buffer(0)]], device const float* x [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    for (uint i = 0; i < 64; i++) threadgroup_barrier(mem_flags::mem_threadgroup);
}
kernel void sums(device float* out [[buffer(0)]], device const float* x [[buffer(1)]], uint id [[thread_position_in_grid]]) {
    float total = float(id);
    for (uint i = 0; i < 64; i++) total = simd_sum(total);
    if (total == 12345.0f) out[id] = total;
}";

/// Seconds of processor time that this process has used.
fn processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let library = Library::new(SOURCE, &Options::default())?;
    let out = Buffer::new(4 << 20, Initial::Poison);
    let x = Buffer::new(4 << 20, Initial::Zero);
    println!(
        "{:10} {:>12} {:>12}   ns per unit of work",
        "", "plain", "checked"
    );
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    for (name, units) in [
        ("threads", 1),
        ("stream", 1),
        ("loads", 64),
        ("loads4", 64),
        ("halves", 16),
        ("tile", 64),
        ("barriers", 64),
        ("sums", 64),
    ] {
        if !wanted(name) {
            continue;
        }
        let function = library.function(name, &[])?.ok_or("no such kernel")?;
        let dispatch = Dispatch {
            function,
            buffers: [&out, &x]
                .map(|buffer| Binding::Buffer {
                    buffer: buffer.clone(),
                    offset: 0,
                })
                .to_vec(),
            threadgroup_lengths: Vec::new(),
            grid: Grid::Groups([256, 1, 1]),
            group: [256, 1, 1],
        };
        let time = |check| {
            let config = Config {
                check,
                ..Config::default()
            };
            let best = (0..5).map(|_| {
                let start = processor_time();
                let report = run(&dispatch, &config);
                assert!(report.findings.is_empty(), "{}", report.findings[0]);
                processor_time() - start
            });
            best.fold(f64::MAX, f64::min) * 1e9 / (65536 * units) as f64
        };
        println!("{name:10} {:12.1} {:12.1}", time(false), time(true));
    }
    let tiny = Dispatch {
        function: library.function("stream", &[])?.ok_or("no such kernel")?,
        buffers: [&out, &x]
            .map(|buffer| Binding::Buffer {
                buffer: buffer.clone(),
                offset: 0,
            })
            .to_vec(),
        threadgroup_lengths: Vec::new(),
        grid: Grid::Groups([1, 1, 1]),
        group: [32, 1, 1],
    };
    let config = Config::default();
    let start = processor_time();
    (0..1000).for_each(|_| drop(run(&tiny, &config)));
    println!(
        "a dispatch of 32 threads: {:.1} us",
        (processor_time() - start) * 1e3
    );
    Ok(())
}
