//! How the outputs of an image are cut into blocks.

use super::lattice::Lattice;
use crate::cpu::simd::MAX_LANES;

/// Positions in rows and columns, cut into blocks of like sizes, and the part of the image that a block sees.
pub struct Blocks {
    pub size: [usize; 2],
    pub count: [usize; 2],
    pub lattice: Lattice,
}

impl Blocks {
    /// Blocks that fit, or of a row of `few` positions if none do.
    pub fn new(
        grid: [usize; 2],
        phases: [usize; 2],
        reach: [usize; 2],
        few: usize,
        fits: impl Fn([usize; 2]) -> bool,
    ) -> Self {
        let [rows, cols] = grid;
        // Parts of rows end where vectors do.
        let width = cut(cols, |len| len <= few || fits([1, len]));
        let width = width.next_multiple_of(MAX_LANES).min(cols.max(1));
        let height = cut(rows, |len| fits([len, width]));
        let mut pitch = width + reach[1];
        if height == 1 {
            // Vectors that don't straddle cache lines are worth a third of the time of a kernel of one element.
            pitch = pitch.next_multiple_of(MAX_LANES);
        }
        Blocks {
            size: [height, width],
            count: [rows.div_ceil(height), cols.div_ceil(width)],
            lattice: Lattice {
                phases,
                rows: height + reach[0],
                cols: pitch,
            },
        }
    }

    /// Of the n-th block over all images: the image, and its first position.
    pub fn first(&self, n: usize) -> (usize, [usize; 2]) {
        let [down, across] = self.count;
        let (image, block) = (n / (down * across), n % (down * across));
        let [height, width] = self.size;
        (image, [block / across * height, block % across * width])
    }
}

/// The length of equal parts of `n` that fit, 1 at least. What fits, fits if it is shorter too.
fn cut(n: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut most, mut more) = (1, n + 1);
    while more - most > 1 {
        let len = most + (more - most) / 2;
        match fits(len) {
            true => most = len,
            false => more = len,
        }
    }
    n.div_ceil(n.div_ceil(most).max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_and_are_alike() {
        let blocks = |grid, most| {
            let blocks = Blocks::new(grid, [1, 1], [2, 2], 8, |[h, w]| h * w <= most);
            (blocks.size, blocks.count)
        };
        assert_eq!(blocks([14, 14], 1000), ([14, 14], [1, 1]));
        assert_eq!(blocks([14, 14], 100), ([7, 14], [2, 1]));
        assert_eq!(blocks([14, 40], 20), ([1, 32], [14, 2]));
        // Never less than the few.
        assert_eq!(blocks([3, 32], 1), ([1, 16], [3, 2]));
        assert_eq!(blocks([1, 1], 0), ([1, 1], [1, 1]));
        assert_eq!(blocks([0, 5], 10), ([1, 5], [0, 1]));
    }
}
