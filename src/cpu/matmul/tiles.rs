//! Parts of products that are made tile by tile elsewhere.

use crate::cpu::parallel;

/// The most rows of a tile on either side: 256 × 256 sums of f32 are 256 KB, which an L2 cache holds.
const MAX_TILE: usize = 256;

/// The rows of a tile along the longer side of a product, `cost` being that of one row. Every thread should get two tiles.
pub fn tile_len(long: usize, cost: usize) -> usize {
    if !parallel::is_shared(long, cost) {
        return MAX_TILE;
    }
    let len = long.div_ceil(2 * parallel::threads());
    len.next_multiple_of(16).min(MAX_TILE)
}
