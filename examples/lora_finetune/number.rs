//! Numbers on the command line.

use std::ffi::OsString;
use std::str::FromStr;

/// At least 1.
pub fn steps(option: &str, value: OsString) -> Result<usize, lexopt::Error> {
    match number(option, value)? {
        0 => Err(format!("{option} 0: at least 1 is accepted").into()),
        steps => Ok(steps),
    }
}

pub fn number<T: FromStr>(option: &str, value: OsString) -> Result<T, lexopt::Error> {
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("{option} {value:?}: a whole number is accepted").into())
}
