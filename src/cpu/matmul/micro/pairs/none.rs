//! An architecture without pairs.

use super::{Ahead, Block, Tile};

/// As many as no vector has lanes.
pub const LANES: usize = 0;

pub fn available() -> bool {
    false
}

/// # Safety
/// Never called: nothing suits.
pub unsafe fn multiply(_: Tile) {
    unreachable!("no pairs")
}

/// # Safety
/// As for [`multiply`].
pub unsafe fn multiply_block(_: Block, _: usize, _: usize) {
    unreachable!("no pairs")
}

/// # Safety
/// As for [`multiply`].
pub unsafe fn dot<const R: usize, const C: usize>(
    _: [*const f32; R],
    _: [*const f32; C],
    _: usize,
    _: Ahead,
) -> [[f32; C]; R] {
    unreachable!("no pairs")
}
