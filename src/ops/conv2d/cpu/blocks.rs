//! How the outputs of an image are cut into blocks, each of which is one thread's work at a time.
//!
//! ```text
//!      outputs                            input of one block
//!     ┌────────┬────────┐                ┌─────────────┐
//!     │ block  │        │                │ rows        │   height + halo rows and
//!     │ height │        │                │         ┌╌╌╌│   width + halo columns of
//!     │ ×width │        │                │         ┊   │   each phase: see polyphase.rs
//!     ├────────┼────────┤                │╌╌╌╌╌╌╌╌╌┘   │
//!     │        │        │                │      halo   │
//!     └────────┴────────┘                └─────────────┘
//! ```

use super::polyphase::PolyphaseLayout;
use crate::cpu::simd::MAX_LANES;

/// A grid of positions (outputs, or tiles of them), cut into blocks of equal size but for the last ones.
pub struct Blocks {
    /// Positions of a block in rows and columns.
    pub size: [usize; 2],
    /// Blocks of an image in rows and columns.
    pub count: [usize; 2],
    /// How the input of a block is packed.
    pub input: PolyphaseLayout,
}

impl Blocks {
    /// The largest blocks that `fits` accepts; or rows of `min_width` positions if it accepts none of that width. `halo` is
    /// how many more rows and columns of each phase a block reads than it has positions.
    pub fn new(
        grid: [usize; 2],
        stride: [usize; 2],
        halo: [usize; 2],
        min_width: usize,
        fits: impl Fn([usize; 2]) -> bool,
    ) -> Self {
        let [rows, cols] = grid;
        // A row is cut at whole vectors.
        let width = equal_parts(cols, |len| len <= min_width || fits([1, len]));
        let width = width.next_multiple_of(MAX_LANES).min(cols.max(1));
        let height = equal_parts(rows, |len| fits([len, width]));
        let mut pitch = width + halo[1];
        if height == 1 {
            // Vectors that don't straddle cache lines save a third of the time of a 1×1 kernel.
            pitch = pitch.next_multiple_of(MAX_LANES);
        }
        Blocks {
            size: [height, width],
            count: [rows.div_ceil(height), cols.div_ceil(width)],
            input: PolyphaseLayout {
                stride,
                rows: height + halo[0],
                cols: pitch,
            },
        }
    }

    /// Which image (or group of an image's channels, as the caller counts them) has the n-th block of all, and the block's first
    /// position.
    pub fn first(&self, n: usize) -> (usize, [usize; 2]) {
        let [down, across] = self.count;
        let (image, block) = (n / (down * across), n % (down * across));
        let [height, width] = self.size;
        (image, [block / across * height, block % across * width])
    }
}

/// The length, 1 at least, of the fewest equal parts of `n` that fit. If a length fits, so does every shorter one.
fn equal_parts(n: usize, fits: impl Fn(usize) -> bool) -> usize {
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
        // Never narrower than the least width.
        assert_eq!(blocks([3, 32], 1), ([1, 16], [3, 2]));
        assert_eq!(blocks([1, 1], 0), ([1, 1], [1, 1]));
        assert_eq!(blocks([0, 5], 10), ([1, 5], [0, 1]));
    }
}
