//! Which rows, or columns, of x an output is made of.

use std::ops::Range;

/// The two rows (or columns) of x that an output lies between, and their weights in it. `Tap` of upsample.metal.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tap {
    pub low: u32,
    pub high: u32,
    pub low_weight: f32,
    pub high_weight: f32,
}

impl Tap {
    fn whole(at: usize) -> Self {
        Tap {
            low: at as u32,
            high: at as u32,
            low_weight: 1.0,
            high_weight: 0.0,
        }
    }

    /// The weight of this row of x, which is one of the two.
    pub fn weight_of(&self, row: usize) -> f32 {
        let (low, high) = (self.low as usize == row, self.high as usize == row);
        match (low, high) {
            (true, true) => self.low_weight + self.high_weight,
            (true, false) => self.low_weight,
            (false, _) => self.high_weight,
        }
    }
}

/// One of height and width. `low` and `high` never fall from tap to tap.
#[derive(Clone, Debug)]
pub struct Axis {
    pub input: usize,
    /// One for each output.
    pub taps: Vec<Tap>,
    /// The weight of `high` in each output before it is rounded to f32; nothing where each output is one row.
    pub high_weights: Vec<f64>,
}

impl Axis {
    /// As stock Candle's `upsample_nearest2d`. There is an input at least.
    pub fn nearest(input: usize, output: usize) -> Self {
        let scale = input as f64 / output as f64;
        let at = |o: usize| (input - 1).min((o as f64 * scale) as usize);
        Axis {
            input,
            taps: (0..output).map(|o| Tap::whole(at(o))).collect(),
            high_weights: Vec::new(),
        }
    }

    /// As stock Candle's `upsample_bilinear2d`.
    pub fn bilinear(input: usize, output: usize, align_corners: bool, scale: Option<f64>) -> Self {
        let step = match (align_corners, scale) {
            (true, _) if output > 1 => (input - 1) as f64 / (output - 1) as f64,
            (true, _) => 0.0,
            (false, Some(scale)) => 1.0 / scale,
            (false, None) => input as f64 / output as f64,
        };
        let tap = |o: usize| {
            let place = match align_corners {
                true => step * o as f64,
                false => step * (o as f64 + 0.5) - 0.5,
            };
            let place = place.max(0.0);
            // Stock's places lie in x; those by a scale that has nothing to do with the sizes need not.
            let low = (place.floor() as usize).min(input - 1);
            let weight = (place - low as f64).clamp(0.0, 1.0);
            let tap = Tap {
                low: low as u32,
                high: (low + 1).min(input - 1) as u32,
                low_weight: (1.0 - weight) as f32,
                high_weight: weight as f32,
            };
            (tap, weight)
        };
        let (taps, high_weights) = (0..output).map(tap).unzip();
        Axis {
            input,
            taps,
            high_weights,
        }
    }

    /// How many neighbouring outputs are each pixel, where that is the same number for all.
    pub fn repeats(&self) -> Option<usize> {
        let repeats = self.taps.len() / self.input;
        let is_repeat = |(o, tap): (usize, &Tap)| *tap == Tap::whole(o / repeats);
        let whole = repeats > 0 && self.taps.len() == repeats * self.input;
        (whole && self.taps.iter().enumerate().all(is_repeat)).then_some(repeats)
    }

    /// For each row of x, the outputs that it is a part of.
    pub fn outputs(&self) -> Vec<Range<usize>> {
        let (mut first, mut end) = (0, 0);
        let range = |row: usize| {
            while first < self.taps.len() && (self.taps[first].high as usize) < row {
                first += 1;
            }
            while end < self.taps.len() && self.taps[end].low as usize <= row {
                end += 1;
            }
            first.min(end)..end
        };
        (0..self.input).map(range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes() -> Vec<Axis> {
        let mut axes = Vec::new();
        for (input, output) in [
            (1, 1),
            (1, 5),
            (5, 1),
            (3, 7),
            (7, 3),
            (4, 8),
            (49, 49),
            (2, 98),
            (6, 0),
        ] {
            axes.push(Axis::nearest(input, output));
            for align in [false, true] {
                axes.push(Axis::bilinear(input, output, align, None));
                axes.push(Axis::bilinear(input, output, align, Some(2.3)));
                axes.push(Axis::bilinear(input, output, align, Some(1e-30)));
            }
        }
        axes
    }

    #[test]
    fn outputs_are_found_by_each_of_their_rows() {
        for axis in axes() {
            for (row, outputs) in axis.outputs().into_iter().enumerate() {
                let is_part = |o: &usize| {
                    let tap = axis.taps[*o];
                    [tap.low as usize, tap.high as usize].contains(&row)
                };
                let want: Vec<usize> = (0..axis.taps.len()).filter(is_part).collect();
                assert_eq!(outputs.collect::<Vec<_>>(), want, "{axis:?} {row}");
            }
        }
    }

    #[test]
    fn weights_add_up_to_one() {
        for axis in axes() {
            for tap in &axis.taps {
                assert!((tap.low_weight + tap.high_weight - 1.0).abs() < 1e-6);
                assert!(tap.low <= tap.high && (tap.high as usize) < axis.input);
            }
        }
    }

    #[test]
    fn repeats_are_whole_factors() {
        assert_eq!(Axis::nearest(4, 8).repeats(), Some(2));
        assert_eq!(Axis::nearest(3, 3).repeats(), Some(1));
        assert_eq!(Axis::nearest(3, 7).repeats(), None);
        assert_eq!(Axis::nearest(8, 4).repeats(), None);
        assert_eq!(Axis::bilinear(4, 8, false, None).repeats(), None);
        assert_eq!(Axis::nearest(3, 0).repeats(), None);
    }
}
