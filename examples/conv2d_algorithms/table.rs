//! The results as text.

use crate::contest::{Contest, Time};
use std::fmt;
use std::io::{Result, Write};

/// Three significant digits, as `0.0531 ms`, `1.80 ms`, `617 ms`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let ms = self.0 / 1e3;
        write!(f, "{} ms", digits(ms))
    }
}

/// With three significant ones, or all before the point.
fn digits(value: f64) -> String {
    let before = (value.log10().floor() as i32).clamp(-4, 2);
    let decimals = (2 - before) as usize;
    format!("{value:.decimals$}")
}

fn error(error: f64) -> String {
    match error {
        0.0 => "0".to_string(),
        error => format!("{error:.1e}"),
    }
}

/// As `6.3×`, `64×`.
pub fn times(ratio: f64) -> String {
    let decimals = match ratio {
        ratio if ratio < 0.995 => 2,
        ratio if ratio < 9.95 => 1,
        _ => 0,
    };
    format!("{ratio:.decimals$}×")
}

pub fn header(out: &mut impl Write) -> Result<()> {
    line(
        out,
        "shape, algorithm",
        ["time", "GFLOP/s", "vs stock", "max error"].map(String::from),
        "is also",
    )
}

pub fn contest(out: &mut impl Write, contest: &Contest) -> Result<()> {
    let gflops = |time: Time| format!("{:.1}", contest.shape.flops() / time.0 / 1e3);
    writeln!(out, "{}", contest.shape)?;
    let stock = contest.stock;
    let cells = [stock.to_string(), gflops(stock), times(1.0), "-".into()];
    line(out, "  stock Candle", cells, "")?;
    for entry in &contest.entries {
        let also: Vec<String> = entry.also.iter().map(|way| way.to_string()).collect();
        let cells = [
            entry.time.to_string(),
            gflops(entry.time),
            times(contest.ratio(entry)),
            error(entry.error),
        ];
        line(out, &format!("  {}", entry.way), cells, &also.join(", "))?;
    }
    Ok(())
}

fn line(out: &mut impl Write, name: &str, cells: [String; 4], also: &str) -> Result<()> {
    let [time, rate, ratio, error] = cells;
    let text = format!("{name:<22} {time:>10} {rate:>8} {ratio:>9} {error:>10}  {also}");
    writeln!(out, "{}", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [53.1, 1800.0, 61_740.0, 617_000.0, 2_500_000.0].map(|us| Time(us).to_string());
        let want = ["0.0531 ms", "1.80 ms", "61.7 ms", "617 ms", "2500 ms"];
        assert_eq!(shown, want);
        let shown = [0.731, 1.0, 6.27, 9.96, 123.4].map(times);
        assert_eq!(shown, ["0.73×", "1.0×", "6.3×", "10×", "123×"]);
    }
}
