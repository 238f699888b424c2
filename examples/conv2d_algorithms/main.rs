//! Every algorithm of conv2d beside stock Candle, at the shapes of photos and of well-known models.
//!
//!     cargo run --release --example conv2d_algorithms -- --help

mod algorithms;
mod cli;
mod contest;
#[path = "../compare/difference.rs"]
mod difference;
#[allow(dead_code, reason = "the tests read more of it")]
#[path = "../../tests/cases/fill.rs"]
mod fill;
#[allow(dead_code, reason = "compare reads more of it")]
#[path = "../compare/measure.rs"]
mod measure;
mod shapes;
mod svg;
mod table;
#[cfg(test)]
mod tests;

use cli::Options;
use contest::Contest;
use measure::Budget;
use shapes::{Shape, SHAPES};
use std::io::{self, Write};
use std::process::ExitCode;
use svg::Chart;

fn main() -> ExitCode {
    let options = match cli::parse(std::env::args_os()) {
        Ok(options) => options,
        Err(error) => return fail(&format!("{error}; see --help"), 2),
    };
    let result = match options {
        Some(options) => match selected(&options) {
            shapes if shapes.is_empty() => {
                return fail(&format!("no shape matches --only {}", options.only), 2);
            }
            shapes => run(&shapes, &options, &mut io::stdout()),
        },
        None => write!(io::stdout(), "{}", cli::HELP).map_err(Into::into),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string(), 1),
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn selected(options: &Options) -> Vec<Shape> {
    let admits = |shape: &Shape| {
        (shape.quick || !options.quick) && shape.to_string().contains(&options.only)
    };
    SHAPES.into_iter().filter(admits).collect()
}

fn run(shapes: &[Shape], options: &Options, out: &mut impl Write) -> Outcome<()> {
    let contests = measure_all(shapes, options, out)?;
    if let Some(path) = &options.svg {
        let chart = Chart {
            title: &format!("conv2d by algorithm, {}", device_label(options)),
            contests: &contests,
        };
        std::fs::write(path, chart.render()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let wrong: Vec<String> = contests.iter().flat_map(Contest::disagreements).collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ").into()),
    }
}

fn measure_all(shapes: &[Shape], options: &Options, out: &mut impl Write) -> Outcome<Vec<Contest>> {
    let device = options.device()?;
    let budget = match options.quick {
        true => Budget::QUICK,
        false => Budget::FULL,
    };
    measure::settle_heap();
    table::header(out)?;
    let mut contests = Vec::new();
    for &shape in shapes {
        let contest = contest::run(shape, &device, &budget)?;
        table::contest(out, &contest)?;
        contests.push(contest);
    }
    Ok(contests)
}

fn device_label(options: &Options) -> String {
    match options.device_name {
        "cpu" => match candle_core::utils::get_num_threads() {
            1 => "CPU, 1 thread".to_string(),
            threads => format!("CPU, {threads} threads"),
        },
        _ => "Metal".to_string(),
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    // Candle's messages may end with a backtrace.
    let message = message.lines().next().unwrap_or_default();
    eprintln!("conv2d_algorithms: {message}");
    ExitCode::from(code)
}

/// Whether the reader of our output went away, as `head` does.
fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
