//! Small kernels with one defect each, and their corrected twins.
//!
//! `seeded/<name>.metal` has two kernels, `bug` and `fixed`. The bug must be found with the right kind at a line that
//! is marked `// BUG`, whatever the schedule; the twin must run without error or note.
//! Of a race both ends are marked: which of them comes second is up to the schedule.

mod common;

use std::path::PathBuf;

use common::*;
use softmetal_exec::{run, Binding, Buffer, Config, Dispatch, Grid, Initial, Kind, Schedule};
use softmetal_msl::{Library, Options};

/// A defect and the dispatch that shows it.
struct Case {
    name: &'static str,
    kind: Kind,
    groups: usize,
    threads: usize,
    /// Elements of `x`, which count up from 0.
    input: usize,
    output: usize,
    /// The output holds zeros at first.
    zeroed: bool,
    n: u32,
    /// Bytes of `[[threadgroup(0)]]`.
    tile: usize,
}

const fn case(name: &'static str, kind: Kind) -> Case {
    Case {
        name,
        kind,
        groups: 1,
        threads: 64,
        input: 64,
        output: 64,
        zeroed: false,
        n: 64,
        tile: 0,
    }
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    case("missing_barrier", Kind::Race),
    case("missing_barrier_half", Kind::Race),
    case("floats_read_as_halves", Kind::Race),
    case("barrier_without_flag", Kind::MemoryOrder),
    case("barrier_with_wrong_flag", Kind::MemoryOrder),
    Case { groups: 2, input: 128, output: 128, ..case("device_exchange_with_wrong_flag", Kind::MemoryOrder) },
    case("simdgroup_barrier_for_the_group", Kind::Race),
    case("no_simdgroup_barrier", Kind::Race),
    case("array_reused_too_early", Kind::Race),
    Case { input: 256, n: 256, ..case("tile_overwritten_in_loop", Kind::Race) },
    case("read_past_the_end", Kind::OutOfBoundsRead),
    case("read_before_the_start", Kind::OutOfBoundsRead),
    case("write_past_the_end", Kind::OutOfBoundsWrite),
    Case { groups: 2, output: 100, n: 100, ..case("grid_not_guarded", Kind::OutOfBoundsWrite) },
    Case { threads: 8, input: 80, output: 8, n: 10, ..case("wrong_stride", Kind::OutOfBoundsRead) },
    Case { threads: 32, input: 61, n: 61, ..case("vector_tail", Kind::OutOfBoundsRead) },
    Case { threads: 16, input: 48, ..case("padded_vector", Kind::OutOfBoundsRead) },
    case("tile_too_small_for_write", Kind::ArrayBounds),
    case("tile_too_small_for_read", Kind::OutOfBoundsRead),
    Case { tile: 256, ..case("argument_tile_too_short", Kind::OutOfBoundsWrite) },
    Case { input: 40, n: 39, threads: 40, ..case("index_not_checked", Kind::OutOfBoundsRead) },
    Case { n: 8, ..case("private_array_overrun", Kind::ArrayBounds) },
    case("params_longer_than_bytes", Kind::OutOfBoundsRead),
    Case { threads: 32, ..case("race_on_a_sum", Kind::Race) },
    Case { groups: 4, threads: 32, input: 128, zeroed: true, ..case("race_on_a_sum_of_groups", Kind::RaceBetweenGroups) },
    case("histogram_without_atomics", Kind::Race),
    Case { zeroed: true, ..case("atomic_read_as_plain", Kind::Race) },
    Case { groups: 3, output: 192, zeroed: true, ..case("halo_in_place", Kind::RaceBetweenGroups) },
    Case { groups: 3, input: 192, output: 192, ..case("overlapping_rows", Kind::RaceBetweenGroups) },
    Case { threads: 32, ..case("same_value_from_all", Kind::SameValueRace) },
    Case { groups: 2, input: 100, output: 100, n: 100, ..case("same_value_from_groups", Kind::SameValueRace) },
    Case { n: 50, ..case("uninitialised_tile", Kind::UninitialisedRead) },
    case("uninitialised_partials", Kind::UninitialisedRead),
    case("uninitialised_output", Kind::UninitialisedRead),
    case("uninitialised_counter", Kind::UninitialisedRead),
    Case { n: 50, ..case("early_return", Kind::EarlyReturn) },
    Case { n: 20, ..case("early_return_of_lanes", Kind::EarlyReturn) },
    case("two_barriers", Kind::BarrierDivergence),
    case("barrier_in_uneven_loop", Kind::BarrierDivergence),
    case("simdgroup_barrier_for_some_lanes", Kind::BarrierDivergence),
    case("shuffle_from_inactive_lane", Kind::InactiveLane),
    Case { threads: 20, ..case("broadcast_from_missing_lane", Kind::InactiveLane) },
    Case { threads: 32, ..case("uneven_shuffle", Kind::NonUniformArgument) },
    Case { threads: 32, input: 128, ..case("matrix_of_half_a_simdgroup", Kind::PartialSimdgroup) },
    Case { threads: 32, ..case("matrix_beyond_the_edge", Kind::OutOfBoundsRead) },
    case("misaligned_vector", Kind::Misaligned),
    Case { threads: 1, ..case("misaligned_vector_in_tile", Kind::Misaligned) },
    case("write_through_const", Kind::WriteToConstant),
    case("unbound_argument", Kind::UnboundArgument),
];

const SEEDS: [Schedule; 3] = [
    Schedule::Ascending,
    Schedule::Descending,
    Schedule::Random(7),
];

fn source(case: &Case) -> String {
    let file = format!("{}.metal", case.name);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/seeded")
        .join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

fn ready(case: &Case, library: &Library, kernel: &str) -> Dispatch {
    let function = library
        .function(kernel, &[])
        .unwrap_or_else(|why| panic!("{}: {why}", case.name));
    let x: Vec<f32> = (0..case.input).map(|i| i as f32).collect();
    let initial = if case.zeroed {
        Initial::Zero
    } else {
        Initial::Poison
    };
    let output = Buffer::new(4 * case.output, initial);
    Dispatch {
        function: function.unwrap_or_else(|| panic!("{}: no kernel {kernel}", case.name)),
        buffers: vec![
            bind(&buffer(&x)),
            Binding::Buffer {
                buffer: output,
                offset: 0,
            },
            bytes(&[case.n]),
        ],
        threadgroup_lengths: vec![(0, case.tile)],
        grid: Grid::Groups([case.groups, 1, 1]),
        group: [case.threads, 1, 1],
    }
}

/// What is wrong with how the case was judged.
fn judge(case: &Case) -> Vec<String> {
    let source = source(case);
    let library = match Library::new(&source, &Options::default()) {
        Ok(library) => library,
        Err(why) => return vec![format!("{}: {why}", case.name)],
    };
    let marked: Vec<u32> = (1..)
        .zip(source.lines())
        .filter(|(_, line)| line.ends_with("// BUG"))
        .map(|(number, _)| number)
        .collect();
    let mut faults = Vec::new();
    for schedule in SEEDS {
        for threads in [1, 2] {
            let config = Config {
                schedule,
                threads,
                ..checked(schedule)
            };
            let place = format!("{} ({schedule}, {threads} workers)", case.name);
            let report = run(&ready(case, &library, "bug"), &config);
            let hit = report.findings.iter().any(|finding| {
                let line = finding
                    .location
                    .as_ref()
                    .map_or(0, |location| location.line);
                finding.kind == case.kind && marked.contains(&line)
            });
            if !hit
                || report
                    .findings
                    .iter()
                    .any(|finding| finding.kind != case.kind)
            {
                let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
                faults.push(format!(
                    "{place}: expected {} in {marked:?}, found {found:#?}",
                    case.kind
                ));
            }
            let report = run(&ready(case, &library, "fixed"), &config);
            for finding in report.findings {
                faults.push(format!("{place}: false alarm in the twin: {finding}"));
            }
        }
    }
    faults
}

#[test]
fn every_bug_is_found_and_no_twin_is_blamed() {
    let faults: Vec<String> = CASES.iter().flat_map(judge).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_table_and_the_folder_agree() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/seeded");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .expect("folder of kernels")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    files.sort();
    let mut names: Vec<String> = CASES
        .iter()
        .map(|case| format!("{}.metal", case.name))
        .collect();
    names.sort();
    assert_eq!(files, names);
    assert!(CASES.len() >= 30);
}
