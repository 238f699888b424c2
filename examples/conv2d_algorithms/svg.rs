//! The results as a bar chart: how many times faster than stock Candle, on a logarithmic scale.

use crate::algorithms::Way;
use crate::contest::Contest;
use crate::table::times;
use candle_fused::ops::ConvAlgo;
use std::fmt::{Result, Write};

const WIDTH: f64 = 900.0;
/// Room for the names, and behind the longest bar for what is written there.
const LEFT: f64 = 326.0;
const RIGHT: f64 = 154.0;
const TOP: f64 = 118.0;
const BOTTOM: f64 = 56.0;
const BAR: f64 = 16.0;
const BAR_GAP: f64 = 4.0;
const GROUP_GAP: f64 = 20.0;
/// The least height of a group, whose name has two lines.
const NAME: f64 = 36.0;

pub struct Chart<'a> {
    pub title: &'a str,
    pub contests: &'a [Contest],
}

impl Chart<'_> {
    pub fn render(&self) -> String {
        let mut svg = String::new();
        // Writing to a string can't fail.
        self.write(&mut svg).expect("a string takes all");
        svg
    }

    fn write(&self, svg: &mut String) -> Result {
        let height = TOP + self.contests.iter().map(pitch).sum::<f64>() + BOTTOM;
        writeln!(
            svg,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="13" fill="#333">
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
<text x="24" y="34" font-size="18" font-weight="600">{}</text>
<text x="24" y="56" fill="#666">Times faster than stock Candle, f32, logarithmic scale; ◂ auto: what conv2d chooses</text>"##,
            escape(self.title)
        )?;
        self.legend(svg)?;
        self.axis(svg, height)?;
        let mut top = TOP + GROUP_GAP / 2.0;
        for contest in self.contests {
            self.group(svg, contest, top)?;
            top += pitch(contest);
        }
        writeln!(svg, "</svg>")
    }

    /// The algorithms that appear.
    fn legend(&self, svg: &mut String) -> Result {
        let mut ways: Vec<Way> = Vec::new();
        for entry in self.contests.iter().flat_map(|c| &c.entries) {
            if !ways.contains(&entry.way) {
                ways.push(entry.way);
            }
        }
        let mut x = 24.0;
        for way in ways {
            let name = escape(&way.to_string());
            writeln!(
                svg,
                r##"<rect x="{x:.1}" y="72" width="14" height="14" rx="2" fill="{}"/><text x="{:.1}" y="83.5">{name}</text>"##,
                color(way),
                x + 20.0,
            )?;
            // About the width of a character.
            x += 44.0 + 6.8 * name.chars().count() as f64;
        }
        Ok(())
    }

    fn axis(&self, svg: &mut String, height: f64) -> Result {
        let bottom = height - BOTTOM;
        for tick in self.ticks() {
            let x = self.x(tick);
            let (stroke, weight, label) = match tick == 1.0 {
                true => ("#555", 600, "stock".to_string()),
                false => ("#e4e4e4", 400, format!("{tick}×")),
            };
            writeln!(
                svg,
                r##"<path d="M{x:.1} {TOP}V{bottom}" stroke="{stroke}"/><text x="{x:.1}" y="{:.1}" text-anchor="middle" font-weight="{weight}">{label}</text>"##,
                bottom + 20.0
            )?;
        }
        Ok(())
    }

    fn group(&self, svg: &mut String, contest: &Contest, top: f64) -> Result {
        let name = escape(&contest.shape.to_string());
        let middle = top + inner(contest) / 2.0;
        let (x, stock) = (LEFT - 16.0, contest.stock);
        writeln!(
            svg,
            r##"<text x="{x}" y="{:.1}" text-anchor="end">{name}</text><text x="{x}" y="{:.1}" text-anchor="end" font-size="12" fill="#777">stock {stock}</text>"##,
            middle - 3.0,
            middle + 13.0,
        )?;
        let mut y = middle - bars(contest) / 2.0;
        for entry in &contest.entries {
            let ratio = contest.ratio(entry);
            let (one, end) = (self.x(1.0), self.x(ratio));
            let (start, width) = (one.min(end), (end - one).abs().max(1.0));
            let is_auto = |way: &Way| way.algo == ConvAlgo::Auto && !way.prepared;
            let auto = match entry.also.iter().any(is_auto) {
                true => " ◂ auto",
                false => "",
            };
            writeln!(
                svg,
                r##"<rect x="{start:.1}" y="{y:.1}" width="{width:.1}" height="{BAR}" rx="2" fill="{}"/><text x="{:.1}" y="{:.1}" font-size="12">{}, {}{auto}</text>"##,
                color(entry.way),
                one.max(end) + 6.0,
                y + BAR - 4.0,
                times(ratio),
                entry.time,
            )?;
            y += BAR + BAR_GAP;
        }
        Ok(())
    }

    fn x(&self, ratio: f64) -> f64 {
        let [low, high] = self.range().map(f64::ln);
        LEFT + (ratio.ln() - low) / (high - low) * (WIDTH - LEFT - RIGHT)
    }

    /// From the least to the largest ratio; 1 and 2 are always there.
    fn range(&self) -> [f64; 2] {
        let ratios = self
            .contests
            .iter()
            .flat_map(|c| c.entries.iter().map(|entry| c.ratio(entry)));
        ratios.fold([1.0, 2.0], |[low, high], r| [r.min(low), r.max(high)])
    }

    fn ticks(&self) -> Vec<f64> {
        let [low, high] = self.range();
        let powers = (-3..5).map(|power| 10f64.powi(power));
        let ticks = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|tick| tick * power));
        ticks.filter(|&tick| tick >= low && tick <= high).collect()
    }
}

/// The height of the bars.
fn bars(contest: &Contest) -> f64 {
    contest.entries.len() as f64 * (BAR + BAR_GAP) - BAR_GAP
}

/// Of the bars and the name.
fn inner(contest: &Contest) -> f64 {
    bars(contest).max(NAME)
}

/// From one group to the next.
fn pitch(contest: &Contest) -> f64 {
    inner(contest) + GROUP_GAP
}

fn color(way: Way) -> &'static str {
    match (way.algo, way.prepared) {
        (ConvAlgo::Auto, _) => "#8a8a8a",
        (ConvAlgo::Direct, _) => "#59a14f",
        (ConvAlgo::Tiled, _) => "#b07aa1",
        (ConvAlgo::ImplicitGemm, _) => "#4e79a7",
        (ConvAlgo::Winograd, false) => "#f5b26b",
        (ConvAlgo::Winograd, true) => "#e8803a",
        (ConvAlgo::Mps, _) => "#76b7b2",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
