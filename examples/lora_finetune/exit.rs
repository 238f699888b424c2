//! How a program ends.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Runs with these options, or prints the help where there are none. The status is 2 for a wrong command line.
pub fn run<O>(
    name: &str,
    help: &str,
    options: Result<Option<O>, lexopt::Error>,
    run: impl Fn(&O) -> Outcome<()>,
) -> ExitCode {
    let result = match options {
        Ok(Some(options)) => run(&options),
        Ok(None) => write!(io::stdout(), "{help}").map_err(Into::into),
        Err(error) => return fail(name, &format!("{error}; see --help"), 2),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => fail(name, &error.to_string(), 1),
    }
}

fn fail(name: &str, message: &str, code: u8) -> ExitCode {
    // Candle's messages may end with a backtrace.
    let message = message.lines().next().unwrap_or_default();
    eprintln!("{name}: {message}");
    ExitCode::from(code)
}

/// Whether the reader of our output went away, as `head` does.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
