//! Kernels that are right: results, counters and schedules.

mod common;

use common::*;
use softmetal_exec::{Config, Grid, Schedule};

const SUM: &str = "
kernel void sum(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                constant uint& n [[buffer(2)]],
                uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
                uint threads [[threads_per_threadgroup]]) {
    threadgroup float partial[256];
    float total = 0.0f;
    for (uint i = tid; i < n; i += threads) total += x[group * n + i];
    partial[tid] = total;
    for (uint half_way = threads / 2; half_way > 0; half_way /= 2) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (tid < half_way) partial[tid] += partial[tid + half_way];
    }
    if (tid == 0) out[group] = partial[0];
}";

#[test]
fn a_tree_reduction_under_every_schedule() {
    let (rows, n) = (37, 300);
    let x: Vec<f32> = (0..rows * n).map(|i| (i % 17) as f32).collect();
    let mut sum = dispatch(SUM, "sum");
    sum.grid = Grid::Groups([rows, 1, 1]);
    sum.group = [256, 1, 1];
    for schedule in SCHEDULES {
        let out = fresh::<f32>(rows);
        sum.buffers = vec![bind(&buffer(&x)), bind(&out), bytes(&[n as u32])];
        let report = run_clean(&sum, &checked(schedule));
        let want: Vec<f32> = x.chunks(n).map(|row| row.iter().sum()).collect();
        assert_eq!(values::<f32>(&out), want, "{schedule}");
        let counters = report.counters;
        assert_eq!(counters.groups, rows as u64);
        assert_eq!(counters.threads, rows as u64 * 256);
        assert_eq!(counters.barriers, rows as u64 * 8);
        assert_eq!(counters.device_read, 4 * (rows * n) as u64);
        assert_eq!(counters.device_read_unique, 4 * (rows * n) as u64);
        assert_eq!(counters.device_written, 4 * rows as u64);
        assert_eq!(report.touched.len(), 2);
    }
}

#[test]
fn unchecked_gives_the_same() {
    let (rows, n) = (5, 1000);
    let x: Vec<f32> = (0..rows * n).map(|i| (i % 5) as f32).collect();
    let mut sum = dispatch(SUM, "sum");
    sum.grid = Grid::Groups([rows, 1, 1]);
    sum.group = [64, 1, 1];
    let out = fresh::<f32>(rows);
    sum.buffers = vec![bind(&buffer(&x)), bind(&out), bytes(&[n as u32])];
    let report = run_clean(
        &sum,
        &Config {
            check: false,
            ..Config::default()
        },
    );
    assert_eq!(values::<f32>(&out), vec![2000.0; rows]);
    assert_eq!(report.counters.device_read, 0);
    assert_eq!(report.counters.barriers, rows as u64 * 6);
}

#[test]
fn ragged_grids_see_their_actual_sizes() {
    let source = "
kernel void sizes(device uint* out [[buffer(0)]], uint2 at [[thread_position_in_grid]],
                  uint2 grid [[threads_per_grid]], uint2 size [[threads_per_threadgroup]],
                  uint2 asked [[dispatch_threads_per_threadgroup]], uint index [[thread_index_in_threadgroup]]) {
    out[at.y * grid.x + at.x] = size.x * 10000 + size.y * 1000 + asked.x * 100 + index;
}";
    let mut sizes = dispatch(source, "sizes");
    sizes.grid = Grid::Threads([7, 3, 1]);
    sizes.group = [4, 2, 1];
    for schedule in SCHEDULES {
        let out = fresh::<u32>(21);
        sizes.buffers = vec![bind(&out)];
        run_clean(&sizes, &checked(schedule));
        let got = values::<u32>(&out);
        let want = |x: u32, y: u32| {
            let (sx, sy) = (if x < 4 { 4 } else { 3 }, if y < 2 { 2 } else { 1 });
            sx * 10000 + sy * 1000 + 400 + (y % 2) * sx + x % 4
        };
        let wanted: Vec<u32> = (0..21).map(|i| want(i % 7, i / 7)).collect();
        assert_eq!(got, wanted, "{schedule}");
    }
}

#[test]
fn simd_functions_with_partial_masks() {
    let source = "
kernel void odd_sum(device int* out [[buffer(0)]], uint tid [[thread_position_in_grid]]) {
    int value = int(tid);
    if (tid % 2 == 1) value = simd_sum(value);
    else value = -simd_max(value);
    out[tid] = value;
}
kernel void loops(device int* out [[buffer(0)]], uint tid [[thread_position_in_grid]]) {
    int total = 0;
    for (uint i = 0; i < tid % 4; i++) total += simd_sum(1);
    out[tid] = total + 100 * simd_sum(1);
}";
    let mut odd = dispatch(source, "odd_sum");
    let mut loops = dispatch(source, "loops");
    for schedule in SCHEDULES {
        let out = fresh::<i32>(32);
        odd.buffers = vec![bind(&out)];
        run_clean(&odd, &checked(schedule));
        let want: Vec<i32> = (0..32)
            .map(|i| if i % 2 == 1 { 256 } else { -30 })
            .collect();
        assert_eq!(values::<i32>(&out), want, "{schedule}");
        loops.buffers = vec![bind(&out)];
        run_clean(&loops, &checked(schedule));
        // 24 lanes run the first round, 16 the second, 8 the third; behind the loop all meet again.
        let want: Vec<i32> = (0..32).map(|i| [0, 24, 40, 48][i % 4] + 3200).collect();
        assert_eq!(values::<i32>(&out), want, "{schedule}");
    }
}

#[test]
fn shuffles_and_quads() {
    let source = "
kernel void moves(device uint* out [[buffer(0)]], uint tid [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    uint turned = simd_shuffle(tid, ushort(31 - lane));
    uint other = simd_shuffle_xor(tid, ushort(1));
    uint quad = quad_sum(tid);
    out[tid] = turned * 10000 + other * 100 + quad % 100;
}";
    let mut moves = dispatch(source, "moves");
    moves.group = [64, 1, 1];
    for schedule in SCHEDULES {
        let out = fresh::<u32>(64);
        moves.buffers = vec![bind(&out)];
        run_clean(&moves, &checked(schedule));
        let want: Vec<u32> = (0..64u32)
            .map(|t| {
                let quad = t / 4 * 4;
                (t / 32 * 32 + 31 - t % 32) * 10000 + (t ^ 1) * 100 + (4 * quad + 6) % 100
            })
            .collect();
        assert_eq!(values::<u32>(&out), want, "{schedule}");
    }
}

#[test]
fn a_matrix_product() {
    let source = "
#include <metal_simdgroup_matrix>
kernel void product(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                    device float* c [[buffer(2)]]) {
    simdgroup_float8x8 x, y, z = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_load(x, a, 8);
    simdgroup_load(y, b, 8);
    simdgroup_multiply_accumulate(z, x, y, z);
    simdgroup_store(z, c, 8);
}";
    let mut product = dispatch(source, "product");
    let a: Vec<f32> = (0..64).map(|i| (i % 7) as f32).collect();
    let b: Vec<f32> = (0..64).map(|i| (i % 5) as f32 - 2.0).collect();
    let want: Vec<f32> = (0..64)
        .map(|i| (0..8).map(|k| a[i / 8 * 8 + k] * b[k * 8 + i % 8]).sum())
        .collect();
    for schedule in SCHEDULES {
        let c = fresh::<f32>(64);
        product.buffers = vec![bind(&buffer(&a)), bind(&buffer(&b)), bind(&c)];
        run_clean(&product, &checked(schedule));
        assert_eq!(values::<f32>(&c), want, "{schedule}");
    }
}

#[test]
fn atomics_from_many_groups() {
    let source = "
kernel void count(device atomic_uint* total [[buffer(0)]], device const uint* x [[buffer(1)]],
                  uint tid [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(total, x[tid], memory_order_relaxed);
}";
    let mut count = dispatch(source, "count");
    count.grid = Grid::Threads([10_000, 1, 1]);
    count.group = [256, 1, 1];
    for schedule in SCHEDULES {
        let total = buffer(&[0u32]);
        count.buffers = vec![bind(&total), bind(&buffer(&vec![3u32; 10_000]))];
        run_clean(&count, &checked(schedule));
        assert_eq!(values::<u32>(&total), [30_000], "{schedule}");
    }
}

#[test]
fn threadgroup_arguments_and_offsets() {
    let source = "
kernel void turn(device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]],
                 threadgroup uint* tile [[threadgroup(0)]], uint tid [[thread_index_in_threadgroup]],
                 uint n [[threads_per_threadgroup]]) {
    tile[tid] = x[tid];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[tid] = tile[n - 1 - tid];
}";
    let mut turn = dispatch(source, "turn");
    turn.group = [100, 1, 1];
    turn.threadgroup_lengths = vec![(0, 400)];
    let out = fresh::<u32>(104);
    let x: Vec<u32> = (0..110).collect();
    turn.buffers = vec![at(&buffer(&x), 40), at(&out, 16)];
    let report = run_clean(&turn, &checked(Schedule::Ascending));
    assert_eq!(
        values::<u32>(&out)[4..],
        (10..110).rev().collect::<Vec<u32>>()
    );
    let written: Vec<_> = report
        .touched
        .iter()
        .flat_map(|t| t.writes.ranges().to_vec())
        .collect();
    assert_eq!(written, vec![16..416; 1]);
    assert!(!out.is_initialised(0..16) && out.is_initialised(16..416));
    assert_eq!(report.counters.threadgroup_written, 400);
}

#[test]
fn lesser_alignment_is_no_fault() {
    let source = "
struct Pair { ulong a, b; };
struct Halves { float2 low, high; };
struct Mixed { float x; packed_float3 rest; };
kernel void moves(device const Pair* pairs [[buffer(0)]], device Pair* out [[buffer(1)]],
                  device const Halves* halves [[buffer(2)]], device Halves* out_halves [[buffer(3)]],
                  device const packed_float4* loose [[buffer(4)]], device Mixed* mixed [[buffer(5)]],
                  uint id [[thread_position_in_grid]]) {
    out[id] = pairs[id];
    out_halves[id] = halves[id];
    float4 v = float4(loose[id]);
    Mixed m = {v.x, packed_float3(v.yzw)};
    mixed[id] = m;
}";
    let mut moves = dispatch(source, "moves");
    moves.group = [4, 1, 1];
    let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
    let outs = [fresh::<f32>(18), fresh::<f32>(18), fresh::<f32>(17)];
    let input = buffer(&x);
    moves.buffers = vec![
        at(&input, 8),
        at(&outs[0], 8),
        at(&input, 8),
        at(&outs[1], 8),
        at(&input, 4),
        at(&outs[2], 4),
    ];
    run_clean(&moves, &checked(Schedule::Ascending));
    assert_eq!(values::<f32>(&outs[0])[2..], x[2..18]);
    assert_eq!(values::<f32>(&outs[1])[2..], x[2..18]);
    assert_eq!(values::<f32>(&outs[2])[1..], x[1..17]);
}
