//! The table and its summary.

use crate::agree::Agreement;
use crate::cases::size::DTYPES;
use crate::plan::Row;
use candle_core::Result;
use std::io::{self, Write};

/// What measuring a row gave.
pub struct Outcome {
    pub agreement: Agreement,
    pub timing: Timing,
    pub bytes: usize,
}

/// Medians, in µs per call.
pub struct Timing {
    pub stock: Option<f64>,
    pub fused: f64,
}

/// A finished row, as the table and the JSON show it.
pub struct Line {
    pub key: String,
    pub op: String,
    pub case: String,
    pub dtype: &'static str,
    pub device: &'static str,
    pub pass: &'static str,
    pub stock_us: Option<f64>,
    pub fused_us: Option<f64>,
    pub max_err: Option<f64>,
    pub gb_per_s: Option<f64>,
    /// Why the row fails.
    pub failure: Option<String>,
}

impl Line {
    fn new(row: &Row, device: &'static str) -> Line {
        Line {
            key: row.key(),
            op: row.case.name.clone(),
            case: row.label(),
            dtype: row.dtype.as_str(),
            device,
            pass: row.pass(),
            stock_us: None,
            fused_us: None,
            max_err: None,
            gb_per_s: None,
            failure: None,
        }
    }

    fn measured(self, outcome: Outcome) -> Line {
        let Outcome {
            agreement,
            timing,
            bytes,
        } = outcome;
        Line {
            stock_us: timing.stock,
            fused_us: Some(timing.fused),
            max_err: Some(agreement.max_error),
            gb_per_s: Some(bytes as f64 / timing.fused / 1e3),
            failure: disagreement(&agreement),
            ..self
        }
    }

    pub fn ratio(&self) -> Option<f64> {
        Some(self.stock_us? / self.fused_us?)
    }
}

fn disagreement(agreement: &Agreement) -> Option<String> {
    if agreement.holds() {
        return None;
    }
    let stock = match agreement.stock_error {
        Some(error) => format!(", stock's is {error:.1e}"),
        None => String::new(),
    };
    Some(format!(
        "results disagree: error {:.1e}{stock}, tolerance {:.1e}",
        agreement.max_error, agreement.tolerance
    ))
}

pub struct Report {
    device: &'static str,
    lines: Vec<Line>,
}

impl Report {
    pub fn new(device: &'static str) -> Report {
        Report {
            device,
            lines: Vec::new(),
        }
    }

    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub fn failures(&self) -> usize {
        self.lines.iter().filter(|l| l.failure.is_some()).count()
    }

    pub fn header(&self) -> io::Result<()> {
        print_columns([
            "op",
            "case",
            "dtype",
            "device",
            "pass",
            "stock",
            "ours",
            "ratio",
            "GB/s",
            "max error",
        ])
    }

    /// Prints the row and keeps it for the summary.
    pub fn add(&mut self, row: &Row, outcome: Result<Outcome>) -> io::Result<()> {
        let line = Line::new(row, self.device);
        let line = match outcome {
            Ok(outcome) => line.measured(outcome),
            Err(error) => Line {
                failure: Some(first_line(&error.to_string())),
                ..line
            },
        };
        print_line(&line)?;
        self.lines.push(line);
        Ok(())
    }

    pub fn summary(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out)?;
        for dtype in DTYPES.map(|dtype| dtype.as_str()) {
            let ratios = self.ratios(|line| line.dtype == dtype && line.pass == "fwd");
            if let Some(mean) = geometric_mean(&ratios) {
                let cases = ratios.len();
                writeln!(
                    out,
                    "{dtype:<4} fwd: geometric mean {mean:.2}x of {cases} cases"
                )?;
            }
        }
        let mut all: Vec<&Line> = self.lines.iter().filter(|l| l.ratio().is_some()).collect();
        all.sort_by(|a, b| f64::total_cmp(&ratio_of(a), &ratio_of(b)));
        let below = all.iter().filter(|line| ratio_of(line) < 1.0).count();
        writeln!(out, "below 1.0x: {below} of {} cases", all.len())?;
        writeln!(out, "lowest:")?;
        for line in all.iter().take(10.max(below.min(40))) {
            let times = format!("{} / {}", time(line.stock_us), time(line.fused_us));
            writeln!(out, "  {:>6.2}x  {times:<19}  {}", ratio_of(line), line.key)?;
        }
        for line in self.lines.iter().filter(|line| line.failure.is_some()) {
            writeln!(out, "FAILED {}", line.key)?;
        }
        Ok(())
    }

    fn ratios(&self, select: impl Fn(&Line) -> bool) -> Vec<f64> {
        let lines = self.lines.iter().filter(|line| select(line));
        lines.filter_map(Line::ratio).collect()
    }
}

fn ratio_of(line: &Line) -> f64 {
    line.ratio().unwrap_or(f64::NAN)
}

fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logs: f64 = ratios.iter().map(|r| r.ln()).sum();
    (!ratios.is_empty()).then(|| (logs / ratios.len() as f64).exp())
}

fn print_line(line: &Line) -> io::Result<()> {
    let stock = match (line.fused_us, line.stock_us) {
        (Some(_), None) => "unsupported".to_string(),
        _ => time(line.stock_us),
    };
    print_columns([
        &line.op,
        &line.case,
        line.dtype,
        line.device,
        line.pass,
        &stock,
        &time(line.fused_us),
        &or_dash(line.ratio().map(|ratio| format!("{ratio:.2}x"))),
        &or_dash(line.gb_per_s.map(|rate| format!("{rate:.1}"))),
        &or_dash(line.max_err.map(|error| format!("{error:.1e}"))),
    ])?;
    match &line.failure {
        Some(failure) => writeln!(io::stdout(), "  FAILED: {failure}"),
        None => Ok(()),
    }
}

fn print_columns(cells: [&str; 10]) -> io::Result<()> {
    let [op, case, dtype, device, pass, stock, ours, ratio, rate, error] = cells;
    writeln!(
        io::stdout(),
        "{op:<22} {case:<20} {dtype:<5} {device:<6} {pass:<7} \
         {stock:>11} {ours:>8} {ratio:>8} {rate:>6} {error:>9}"
    )
}

/// Three significant digits, as `5.31us`, `1.80ms`, `61.7ms`.
fn time(us: Option<f64>) -> String {
    let Some(us) = us else {
        return or_dash(None);
    };
    let (value, unit) = match us {
        us if us < 999.5 => (us, "us"),
        us if us < 999.5e3 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    match value {
        v if v < 9.995 => format!("{v:.2}{unit}"),
        v if v < 99.95 => format!("{v:.1}{unit}"),
        v => format!("{v:.0}{unit}"),
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_string())
}

/// Candle appends a backtrace to its messages.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::{geometric_mean, time};

    #[test]
    fn times_have_three_digits() {
        let times = [0.2634, 9.996, 61.74, 999.7, 1800.0, 61_700.0, 2.5e6];
        let text = times.map(|us| time(Some(us)));
        let want = [
            "0.26us", "10.0us", "61.7us", "1.00ms", "1.80ms", "61.7ms", "2.50s",
        ];
        assert_eq!(text, want);
    }

    #[test]
    fn the_mean_of_a_half_and_its_double_is_one() {
        assert!((geometric_mean(&[0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
        assert!(geometric_mean(&[]).is_none());
    }
}
