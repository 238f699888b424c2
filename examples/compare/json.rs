//! The results as a JSON array.

use crate::report::Line;
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

/// Fails early where the file can't be written, without touching what it holds.
pub fn probe(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map(drop).map_err(|error| named(path, error))
}

pub fn write(path: &Path, lines: &[Line]) -> io::Result<()> {
    let records: Vec<Record> = lines.iter().map(Record::new).collect();
    let text = serde_json::to_string_pretty(&records)? + "\n";
    fs::write(path, text).map_err(|error| named(path, error))
}

/// `stock_us` and `ratio` are null where stock Candle has no such op.
#[derive(Serialize)]
struct Record<'a> {
    op: &'a str,
    case: &'a str,
    dtype: &'a str,
    device: &'a str,
    pass: &'a str,
    stock_us: Option<f64>,
    fused_us: Option<f64>,
    ratio: Option<f64>,
    max_err: Option<f64>,
    gb_per_s: Option<f64>,
}

impl<'a> Record<'a> {
    fn new(line: &'a Line) -> Self {
        Record {
            op: &line.op,
            case: &line.case,
            dtype: line.dtype,
            device: line.device,
            pass: line.pass,
            stock_us: line.stock_us,
            fused_us: line.fused_us,
            ratio: line.ratio(),
            max_err: line.max_err,
            gb_per_s: line.gb_per_s,
        }
    }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
