//! A line chart as SVG.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 72.0;
const BOTTOM: f64 = 56.0;

pub struct Chart<'a> {
    pub title: &'a str,
    pub x_label: &'a str,
    pub y_label: &'a str,
    /// Parts of the x axis: where each ends, and its name.
    pub parts: Vec<(f64, &'a str)>,
    pub lines: Vec<Line<'a>>,
}

pub struct Line<'a> {
    /// In the legend; None if it isn't there.
    pub name: Option<&'a str>,
    pub color: &'a str,
    pub width: f64,
    pub opacity: f64,
    pub points: Vec<(f64, f64)>,
}

impl Chart<'_> {
    pub fn render(&self) -> String {
        let mut svg = String::new();
        // Writing to a string can't fail.
        self.write(&mut svg).expect("a string takes all");
        svg
    }

    fn write(&self, svg: &mut String) -> std::fmt::Result {
        writeln!(
            svg,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="#333">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
<text x="{LEFT}" y="28" font-size="17" font-weight="600">{}</text>"##,
            escape(self.title)
        )?;
        self.axes(svg)?;
        self.parts(svg)?;
        for line in &self.lines {
            self.line(svg, line)?;
        }
        self.legend(svg)?;
        writeln!(svg, "</svg>")
    }

    /// Grid, numbers and labels.
    fn axes(&self, svg: &mut String) -> std::fmt::Result {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for value in ticks(self.y_end()) {
            let (y, label) = (self.y(value), number(value));
            writeln!(
                svg,
                r##"<path d="M{LEFT} {y:.1}H{right}" stroke="#e4e4e4"/><text x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"##,
                LEFT - 8.0,
                y + 4.5
            )?;
        }
        for value in ticks(self.x_end()) {
            let (x, label) = (self.x(value), number(value));
            writeln!(
                svg,
                r##"<path d="M{x:.1} {bottom}v5" stroke="#888"/><text x="{x:.1}" y="{}" text-anchor="middle">{label}</text>"##,
                bottom + 20.0
            )?;
        }
        let (x, y) = ((LEFT + right) / 2.0, (TOP + bottom) / 2.0);
        writeln!(
            svg,
            r##"<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#888"/>
<text x="{x}" y="{}" text-anchor="middle">{}</text>
<text transform="translate(20 {y}) rotate(-90)" text-anchor="middle">{}</text>"##,
            HEIGHT - 14.0,
            escape(self.x_label),
            escape(self.y_label)
        )
    }

    fn parts(&self, svg: &mut String) -> std::fmt::Result {
        let mut start = 0.0;
        for (i, (end, name)) in self.parts.iter().enumerate() {
            if i > 0 {
                let (x, bottom) = (self.x(start), HEIGHT - BOTTOM);
                writeln!(
                    svg,
                    r##"<path d="M{x:.1} {TOP}V{bottom}" stroke="#888" stroke-dasharray="4 4"/>"##
                )?;
            }
            let (x, name) = (self.x((start + end) / 2.0), escape(name));
            writeln!(
                svg,
                r##"<text x="{x:.1}" y="{}" text-anchor="middle" fill="#777">{name}</text>"##,
                TOP + 16.0
            )?;
            start = *end;
        }
        Ok(())
    }

    fn line(&self, svg: &mut String, line: &Line) -> std::fmt::Result {
        let Line {
            color,
            width,
            opacity,
            ..
        } = line;
        write!(
            svg,
            r##"<polyline fill="none" stroke="{color}" stroke-width="{width}" stroke-opacity="{opacity}" stroke-linejoin="round" points=""##
        )?;
        for &(x, y) in &line.points {
            write!(svg, "{:.1},{:.1} ", self.x(x), self.y(y))?;
        }
        writeln!(svg, r#""/>"#)
    }

    fn legend(&self, svg: &mut String) -> std::fmt::Result {
        let mut x = LEFT;
        for line in &self.lines {
            let Some(name) = line.name else { continue };
            writeln!(
                svg,
                r##"<path d="M{x:.1} 50h22" stroke="{}" stroke-width="3"/><text x="{:.1}" y="54.5">{}</text>"##,
                line.color,
                x + 28.0,
                escape(name)
            )?;
            // About the width of a character.
            x += 56.0 + 6.6 * name.chars().count() as f64;
        }
        Ok(())
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + value / self.x_end() * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.y_end() * (HEIGHT - TOP - BOTTOM)
    }

    fn x_end(&self) -> f64 {
        self.largest(|(x, _)| x)
    }

    /// With room for the names of the parts.
    fn y_end(&self) -> f64 {
        self.largest(|(_, y)| y) * 1.1
    }

    fn largest(&self, of: impl Fn((f64, f64)) -> f64) -> f64 {
        let points = self.lines.iter().flat_map(|line| &line.points);
        points.map(|&point| of(point)).fold(1e-9, f64::max)
    }
}

/// Multiples of 1, 2 or 5 times a power of ten, about six of them up to `end`.
fn ticks(end: f64) -> Vec<f64> {
    let rough = end / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|&step| step >= rough).unwrap_or(end);
    let count = (end / step + 1e-9) as usize;
    (0..=count).map(|i| i as f64 * step).collect()
}

/// Without the noise of binary fractions.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(450.0), [0., 100., 200., 300., 400.]);
        let labels: Vec<_> = ticks(0.55).into_iter().map(number).collect();
        assert_eq!(labels, ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]);
    }
}
