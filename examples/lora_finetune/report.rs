//! What is printed and drawn.

use crate::memory::Peaks;
use crate::print::indented;
use crate::svg::{Chart, Line};
use crate::train::Curve;
use std::io::{Result, Write};

/// Text and held-out loss before and after fine-tuning.
pub fn texts(out: &mut impl Write, texts: [(String, f32); 2]) -> Result<()> {
    for (when, (text, loss)) in ["Before", "After"].into_iter().zip(texts) {
        writeln!(out, "{when}: held-out verse has loss {loss:.3}; a sample:")?;
        indented(out, text.trim())?;
    }
    Ok(())
}

pub fn merged(out: &mut impl Write, (difference, texts): &(f32, [String; 2])) -> Result<()> {
    let [apart, merged] = texts;
    write!(
        out,
        "Merged: the logits differ by at most {difference:.1e}, "
    )?;
    let same = apart
        .chars()
        .zip(merged.chars())
        .take_while(|(a, b)| a == b);
    match apart == merged {
        true => writeln!(out, "the text is the same"),
        false => writeln!(out, "the text from character {} on", same.count()),
    }
}

pub fn peaks(out: &mut impl Write, peaks: &[Peaks]) -> Result<()> {
    writeln!(
        out,
        "Peak memory of a step with a LoRA of rank {}, beyond the model's own",
        crate::RANK
    )?;
    writeln!(
        out,
        "  {:34} {:>12} {:>12} {:>8}",
        "", "stock Candle", "candle-fused", ""
    )?;
    let megabytes = |bytes: usize| format!("{:.2} MB", bytes as f64 / 1e6);
    for Peaks { what, stock, fused } in peaks {
        let share = *fused as f64 / *stock as f64 * 100.0;
        let (stock, fused) = (megabytes(*stock), megabytes(*fused));
        writeln!(out, "  {what:34} {stock:>12} {fused:>12} {share:>6.0} %")?;
    }
    Ok(())
}

/// Both phases, one behind the other.
pub fn chart(prose: &Curve, verse: &Curve) -> String {
    let (first, second) = (prose.train.len() as f64, verse.train.len() as f64);
    let line = |name, color, width, opacity, points| Line {
        name,
        color,
        width,
        opacity,
        points,
    };
    let mut lines = vec![];
    for (curve, start, name, color) in [
        (prose, 0.0, "training, all weights", "#2563a8"),
        (verse, first, "training, adapter alone", "#c2571a"),
    ] {
        let at = |i: usize| start + i as f64;
        let points = |ys: Vec<f64>| {
            ys.into_iter()
                .enumerate()
                .map(|(i, y)| (at(i), y))
                .collect()
        };
        let raw = curve.train.iter().map(|&y| f64::from(y)).collect();
        lines.push(line(None, color, 1.0, 0.3, points(raw)));
        lines.push(line(Some(name), color, 2.0, 1.0, points(curve.smooth())));
    }
    let held_out = [(prose, 0.0), (verse, first)]
        .into_iter()
        .flat_map(|(curve, start)| {
            let points = curve.held_out.iter();
            points.map(move |&(step, loss)| (start + step as f64, f64::from(loss)))
        });
    let held_out = held_out.collect();
    lines.push(line(Some("held-out verse"), "#3f7d3c", 2.0, 1.0, held_out));
    let chart = Chart {
        title: "Prose, then verse with LoRA",
        x_label: "step",
        y_label: "loss, nats per character",
        parts: vec![
            (first, "training on prose"),
            (first + second, "fine-tuning on verse"),
        ],
        lines,
    };
    chart.render()
}
