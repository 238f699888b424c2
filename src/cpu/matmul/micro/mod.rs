//! Products of small blocks that the caller packs, keeps in its cache and multiplies itself, one register block at a time: for
//! [`packed`](super::packed) products and for ops whose products are steps of a larger loop, such as attention's.

mod lanes;
pub mod pack;
pub mod pairs;
pub mod rows;
mod tile;

pub use tile::{cols_of_tile, rows_of_tile, Tile};

/// Multiples of every instruction set's rows and columns of a tile.
pub const ROWS: usize = 12;
pub const COLS: usize = 32;
