//! What is printed of any training.

use crate::train::Curve;
use std::io::{Result, Write};
use std::path::PathBuf;
use std::time::Duration;

pub fn phase(out: &mut impl Write, curve: &Curve, time: Duration) -> Result<()> {
    writeln!(
        out,
        "  {} steps in {:.1} s, loss {:.3} → {:.3}",
        curve.train.len(),
        time.as_secs_f64(),
        curve.train.first().copied().unwrap_or(f32::NAN),
        curve.last()
    )
}

/// Lines of at most 90 characters.
pub fn indented(out: &mut impl Write, text: &str) -> Result<()> {
    for line in text.lines() {
        let mut column = 0;
        write!(out, "  |")?;
        for word in line.split_whitespace() {
            let width = word.chars().count() + 1;
            if column > 0 && column + width > 90 {
                write!(out, "\n  |")?;
                column = 0;
            }
            column += width;
            write!(out, " {word}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

pub fn files(out: &mut impl Write, paths: &[PathBuf]) -> Result<()> {
    writeln!(out, "Written:")?;
    paths
        .iter()
        .try_for_each(|path| writeln!(out, "  {}", path.display()))
}
