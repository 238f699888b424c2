//! Limits, what survives a dispatch, and how findings are told.

mod common;

use common::*;
use softmetal_exec::{run, Config, Grid, Kind, Schedule, Severity};

const COPY: &str = "
kernel void copy(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                 uint id [[thread_position_in_grid]]) {
    out[id] = x[id];
}";

const TILE: &str = "
kernel void tile(device float* out [[buffer(0)]], threadgroup float* a [[threadgroup(0)]],
                 uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float b[4096];
    a[tid] = 1.0f;
    b[tid] = 2.0f;
    out[tid] = a[tid] + b[tid];
}";

#[test]
fn impossible_dispatches_are_refused() {
    let mut copy = dispatch(COPY, "copy");
    copy.buffers = vec![bind(&buffer(&[1.0f32])), bind(&fresh::<f32>(1))];
    copy.group = [1025, 1, 1];
    let report = run(&copy, &Config::default());
    assert_eq!(
        report.error().map(|finding| finding.kind),
        Some(Kind::Limit)
    );
    copy.group = [1, 1, 1];
    copy.grid = Grid::Groups([0, 1, 1]);
    assert_eq!(run(&copy, &Config::default()).findings[0].kind, Kind::Limit);
}

#[test]
fn threadgroup_memory_has_a_limit() {
    for check in [true, false] {
        let config = Config {
            check,
            ..Config::default()
        };
        let mut tile = dispatch(TILE, "tile");
        let out = fresh::<f32>(32);
        tile.buffers = vec![bind(&out)];
        tile.threadgroup_lengths = vec![(0, 16 * 1024)];
        run_clean(&tile, &config);
        assert_eq!(values::<f32>(&out), [3.0; 32]);
        tile.threadgroup_lengths = vec![(0, 16 * 1024 + 16)];
        let report = run(&tile, &config);
        assert_eq!(
            report.findings[0].kind,
            Kind::Limit,
            "{}",
            report.findings[0]
        );
        assert!(
            report.findings[0].detail.contains("32784"),
            "{}",
            report.findings[0]
        );
    }
}

#[test]
fn what_one_dispatch_writes_the_next_may_read() {
    let (first, second) = (fresh::<f32>(64), fresh::<f32>(64));
    let mut copy = dispatch(COPY, "copy");
    copy.buffers = vec![bind(&buffer(&[5.0f32; 64])), bind(&first)];
    run_clean(&copy, &checked(Schedule::Ascending));
    copy.buffers = vec![bind(&first), bind(&second)];
    let report = run(&copy, &checked(Schedule::Ascending));
    assert!(report.findings.is_empty(), "half is written");
    // Only the first half of `first` was written: 32 threads of one group.
    copy.grid = Grid::Groups([2, 1, 1]);
    let report = run(&copy, &checked(Schedule::Ascending));
    let error = report.error().expect("the other half was never written");
    assert_eq!(
        (error.kind, error.offset),
        (Kind::UninitialisedRead, Some(128))
    );
    first.mark_initialised(0..256);
    run_clean(&copy, &checked(Schedule::Ascending));
}

#[test]
fn unchecked_writes_count_as_initialised() {
    let (first, second) = (fresh::<f32>(32), fresh::<f32>(32));
    let mut copy = dispatch(COPY, "copy");
    copy.buffers = vec![bind(&buffer(&[5.0f32; 32])), bind(&first)];
    run_clean(
        &copy,
        &Config {
            check: false,
            ..Config::default()
        },
    );
    copy.buffers = vec![bind(&first), bind(&second)];
    run_clean(&copy, &checked(Schedule::Ascending));
}

#[test]
fn a_stopped_kernel_leaves_the_workers_usable() {
    let mut copy = dispatch(COPY, "copy");
    copy.grid = Grid::Groups([100, 1, 1]);
    copy.group = [64, 1, 1];
    for threads in [1, 2, 4] {
        let config = Config {
            threads,
            ..Config::default()
        };
        let out = fresh::<f32>(6400);
        copy.buffers = vec![bind(&buffer(&vec![1.0f32; 100])), bind(&out)];
        let report = run(&copy, &config);
        let error = report.error().expect("reads beyond the end");
        assert_eq!(error.kind, Kind::OutOfBoundsRead);
        assert_eq!(error.argument, Some((0, "x".to_owned())));
        assert!(
            report.counters.groups < 100,
            "other groups were not started"
        );
        copy.buffers = vec![bind(&buffer(&vec![1.0f32; 6400])), bind(&out)];
        run_clean(&copy, &config);
        assert_eq!(values::<f32>(&out), vec![1.0; 6400]);
    }
}

#[test]
fn a_stopped_group_with_waiting_threads_leaves_nothing_behind() {
    let source = "
kernel void stop(device float* out [[buffer(0)]], constant uint& limit [[buffer(1)]],
                 uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float tile[256];
    tile[tid] = 1.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = simd_sum(tile[255 - tid]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 200) out[limit] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[tid] = total;
}";
    let mut stop = dispatch(source, "stop");
    stop.group = [256, 1, 1];
    for (schedule, limit) in SCHEDULES
        .into_iter()
        .flat_map(|s| [(s, 256u32), (s, 200), (s, 9999)])
    {
        let out = fresh::<f32>(256);
        stop.buffers = vec![bind(&out), bytes(&[limit])];
        let report = run(&stop, &checked(schedule));
        if limit == 200 {
            assert!(report.findings.is_empty(), "{}", report.findings[0]);
            assert_eq!(values::<f32>(&out), [32.0; 256]);
        } else {
            assert_eq!(report.findings.len(), 1);
            assert_eq!(report.findings[0].kind, Kind::OutOfBoundsWrite);
            assert_eq!(report.findings[0].thread, [200, 0, 0]);
        }
    }
}

#[test]
fn notes_are_counted_and_can_be_errors() {
    let source = "
kernel void flag(device uint* done [[buffer(0)]]) {
    done[0] = 1;
}";
    let mut flag = dispatch(source, "flag");
    flag.buffers = vec![bind(&fresh::<u32>(1))];
    let report = run(&flag, &checked(Schedule::Ascending));
    assert!(report.error().is_none());
    assert_eq!(report.findings.len(), 1);
    assert_eq!(
        (report.findings[0].kind, report.findings[0].count),
        (Kind::SameValueRace, 31)
    );
    let strict = Config {
        notes_are_errors: true,
        ..Config::default()
    };
    let report = run(&flag, &strict);
    assert_eq!(report.findings[0].severity, Severity::Error);
    assert_eq!(report.findings[0].count, 1);
}

#[test]
fn tracing_counts_without_judging() {
    let source = "
kernel void flag(device uint* done [[buffer(0)]]) {
    done[0] += 1;
}";
    let mut flag = dispatch(source, "flag");
    flag.buffers = vec![bind(&buffer(&[0u32]))];
    let config = Config {
        check: false,
        trace: true,
        ..Config::default()
    };
    let report = run_clean(&flag, &config);
    assert_eq!(
        (
            report.counters.device_read,
            report.counters.device_read_unique
        ),
        (128, 4)
    );
    assert_eq!(
        (
            report.counters.device_written,
            report.counters.device_written_unique
        ),
        (128, 4)
    );
}

#[test]
fn aliased_arguments_are_one_memory() {
    let source = "
kernel void shift(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                  uint id [[thread_position_in_grid]]) {
    out[id] = x[id];
}";
    let mut shift = dispatch(source, "shift");
    let memory = buffer(&[0.0f32; 33]);
    shift.buffers = vec![bind(&memory), at(&memory, 4)];
    let report = run(&shift, &checked(Schedule::Ascending));
    assert_eq!(report.error().map(|finding| finding.kind), Some(Kind::Race));
    shift.buffers = vec![bind(&memory), bind(&memory)];
    run_clean(&shift, &checked(Schedule::Ascending));
}

#[test]
fn deep_stacks_fit() {
    let source = "
kernel void deep(device float* out [[buffer(0)]], uint id [[thread_position_in_grid]]) {
    float many[16384];
    for (uint i = 0; i < 16384; i++) many[(i * 7) % 16384] = float(i);
    threadgroup_barrier(mem_flags::mem_none);
    out[id] = many[id * 7];
}";
    let mut deep = dispatch(source, "deep");
    let out = fresh::<f32>(32);
    deep.buffers = vec![bind(&out)];
    run_clean(&deep, &checked(Schedule::Ascending));
    assert_eq!(
        values::<f32>(&out),
        (0..32).map(|i| i as f32).collect::<Vec<_>>()
    );
}

#[test]
fn a_garbage_loop_bound_ends() {
    let source = "
kernel void spin(device uint* out [[buffer(0)]], uint id [[thread_position_in_grid]]) {
    threadgroup uint count[1];
    for (uint i = 0; i < count[0]; i++) out[id] = i;
}";
    let mut spin = dispatch(source, "spin");
    spin.buffers = vec![bind(&fresh::<u32>(32))];
    let report = run(&spin, &checked(Schedule::Ascending));
    assert_eq!(
        report.error().map(|finding| finding.kind),
        Some(Kind::UninitialisedRead)
    );
}

#[test]
fn a_race_between_parallel_groups_is_always_seen() {
    let source = "
kernel void clash(device uint* out [[buffer(0)]], uint group [[threadgroup_position_in_grid]],
                  uint tid [[thread_index_in_threadgroup]]) {
    for (uint i = 0; i < 50; i++) out[(i * 64 + tid) % 3200 + 3200 * (group / 2)] = group;
}";
    let mut clash = dispatch(source, "clash");
    clash.grid = Grid::Groups([40, 1, 1]);
    clash.group = [64, 1, 1];
    for _ in 0..20 {
        clash.buffers = vec![bind(&fresh::<u32>(64_000))];
        let report = run(
            &clash,
            &Config {
                threads: 4,
                ..Config::default()
            },
        );
        assert_eq!(
            report.error().map(|finding| finding.kind),
            Some(Kind::RaceBetweenGroups)
        );
    }
}

#[test]
fn groups_that_write_the_same_value_at_once_race_by_the_letter_only() {
    const SAME: &str = "
kernel void same(device float* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    out[tid] = float(tid) + 0.5f;
}";
    let config = Config {
        threads: 2,
        ..Config::default()
    };
    let mut same = dispatch(SAME, "same");
    same.group = [1024, 1, 1];
    same.grid = Grid::Groups([4, 1, 1]);
    for _ in 0..500 {
        let out = fresh::<f32>(1024);
        same.buffers = vec![bind(&out)];
        let report = run(&same, &config);
        for finding in &report.findings {
            assert_eq!(finding.kind, Kind::SameValueRace, "{finding}");
        }
    }
}
