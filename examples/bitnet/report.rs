//! What is printed.

use crate::print::indented;
use crate::wide::Times;
use std::io::{Result, Write};

/// How far the logits are apart, and the held-out loss of the trained and of the packed model.
pub fn packed(out: &mut impl Write, error: f64, (trained, packed): (f32, f32)) -> Result<()> {
    writeln!(
        out,
        "Packed: the logits change by {error:.1e} of the largest at most, held-out loss {trained:.4} → {packed:.4}"
    )
}

pub fn text(out: &mut impl Write, text: &str) -> Result<()> {
    writeln!(out, "A sample of the packed model:")?;
    indented(out, text.trim())
}

/// A model's projections, and how many characters it writes in a second.
pub struct Side {
    pub weights: usize,
    pub bytes: usize,
    pub speed: f64,
}

pub fn sides(out: &mut impl Write, float: &Side, packed: &Side) -> Result<()> {
    writeln!(out, "This model {:>27} {:>10}", "f32", "packed")?;
    let bytes = [float.bytes, packed.bytes].map(megabytes);
    let bits = |side: &Side| format!("{:.2}", side.bytes as f64 * 8.0 / side.weights as f64);
    let bits = [bits(float), bits(packed)];
    let speeds = [float, packed].map(|side| format!("{:.0}", side.speed));
    row(out, "weights of the projections", &bytes)?;
    row(out, "bits for each", &bits)?;
    row(out, "characters in a second", &speeds)
}

pub fn wide(out: &mut impl Write, times: &Times) -> Result<()> {
    let threads = candle_core::utils::get_num_threads();
    writeln!(
        out,
        "A token through the projections of a layer of BitNet b1.58 2B4T, {threads} threads"
    )?;
    row(out, "", &["stock f32", "f32", "packed"].map(String::from))?;
    let (float, packed) = (megabytes(times.float_bytes), megabytes(times.packed_bytes));
    row(out, "weights", &[float.clone(), float, packed])?;
    let times = [times.stock, times.float, times.packed];
    row(out, "median", &times.map(|ms| format!("{ms:.2} ms")))
}

fn row(out: &mut impl Write, what: &str, cells: &[String]) -> Result<()> {
    write!(out, "  {what:26}")?;
    cells
        .iter()
        .try_for_each(|cell| write!(out, " {cell:>10}"))?;
    writeln!(out)
}

fn megabytes(bytes: usize) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}
