//! Stock Candle against this crate, on the same inputs and in the same run.
//!
//!     cargo run --release --example compare -- --help

mod agree;
#[path = "../../tests/cases/mod.rs"]
mod cases;
mod cli;
mod difference;
mod json;
mod load;
mod measure;
mod plan;
mod report;
mod workload;

use candle_core::{Device, Result};
use cli::Options;
use indicatif::{ProgressBar, ProgressStyle};
use load::Load;
use measure::{Budget, Call};
use plan::{Kind, Row};
use report::{Outcome, Report, Timing};
use std::io::{self, Write};
use std::process::ExitCode;
use workload::{Workload, MOST_IN_PLACE};

fn main() -> ExitCode {
    let options = match cli::parse(std::env::args_os()) {
        Ok(Some(options)) => options,
        Ok(None) => return print(cli::HELP),
        Err(error) => return fail(&format!("{error}; see --help"), 2),
    };
    let cases = cases::measured();
    let rows: Vec<Row> = plan::rows(&cases, options.quick)
        .into_iter()
        .filter(|row| options.selects(&row.key()))
        .collect();
    if rows.is_empty() {
        return fail(&format!("no case matches --only {}", options.only()), 2);
    }
    if options.list {
        let keys: Vec<String> = rows.iter().map(Row::key).collect();
        return print(&keys.join("\n"));
    }
    match compare(&rows, &options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => fail(&format!("{failures} of {} cases failed", rows.len()), 1),
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string(), 1),
    }
}

/// Measures and prints every row; returns how many failed.
fn compare(
    rows: &[Row],
    options: &Options,
) -> std::result::Result<usize, Box<dyn std::error::Error>> {
    let device = options.device()?;
    if let Some(path) = &options.json {
        json::probe(path)?;
    }
    let budget = match options.quick {
        true => Budget::QUICK,
        false => Budget::FULL,
    };
    measure::settle_heap();
    let load = Load::now();
    let bar = progress(rows.len());
    let mut report = Report::new(options.device_name);
    bar.suspend(|| report.header())?;
    for row in rows {
        bar.set_message(row.key());
        let outcome = measure_row(row, &device, &budget);
        bar.suspend(|| report.add(row, outcome))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.summary()?;
    warn_if_busy(load);
    if let Some(path) = &options.json {
        json::write(path, report.lines())?;
    }
    Ok(report.failures())
}

fn measure_row(row: &Row, device: &Device, budget: &Budget) -> Result<Outcome> {
    let work = Workload::new(row, device)?;
    let agreement = agree::check(&work)?;
    let fused = Call::new(|| work.fused());
    let mut calls = vec![match row.kind {
        Kind::InPlace => fused.resetting(MOST_IN_PLACE, || work.reset()),
        _ => fused,
    }];
    if agreement.stock_runs {
        calls.push(Call::new(|| work.stock()));
    }
    let medians = measure::interleaved(calls, device, budget)?;
    Ok(Outcome {
        agreement,
        timing: Timing {
            stock: medians.get(1).copied(),
            fused: medians[0],
        },
        bytes: work.bytes()?,
    })
}

/// Both sides wait for their worker threads, but not for as long: a busy machine bends ratios too.
fn warn_if_busy(start: Option<Load>) {
    let others = match (start, Load::now()) {
        (Some(start), Some(end)) => end.others_since(&start),
        _ => return,
    };
    if others > 0.1 {
        eprintln!(
            "compare: other programs used {:.0} % of the CPUs meanwhile: don't rely on these times \
             and ratios",
            others * 100.0
        );
    }
}

/// A bar on stderr, which indicatif hides where that is no terminal.
fn progress(rows: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left  {wide_msg}")
        .expect("a valid template");
    ProgressBar::new(rows as u64).with_style(style)
}

fn print(text: &str) -> ExitCode {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&error.to_string(), 1),
        _ => ExitCode::SUCCESS,
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    // Candle's messages may end with a backtrace.
    let message = message.lines().next().unwrap_or_default();
    eprintln!("compare: {message}");
    ExitCode::from(code)
}

/// Whether the reader of our output went away, as `head` does.
fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
