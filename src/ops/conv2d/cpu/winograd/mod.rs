//! Winograd's F(4×4, 3×3): a tile of 4 by 4 outputs takes 36 multiplications per channel instead of 144.
//!
//! ```text
//!     y = Aᵀ [ (G w Gᵀ) ⊙ (Bᵀ x B) ] A        w 3×3, x 6×6, y 4×4; ⊙ and the sum over channels in a domain of 6×6 points
//! ```
//!
//! For each block of tiles, and for each of the 36 points, the sum over channels is a product of matrices:
//!
//! ```text
//!     1. transform_input     x̂ [point][c_in, tiles]
//!     2. multiply            ŷ [point][c_out, tiles]  =  ŵ [point][c_out, c_in]  ×  x̂ [point][c_in, tiles]
//!     3. transform_outputs   y, and the epilogue
//! ```
//!
//! Tiles overlap by two pixels. They are packed with stride 4 (see polyphase.rs), so that each of the 6×6 elements of a tile
//! has the next tile's element beside it, and a vector transforms as many tiles as it has lanes.

mod transform;
mod weights;

pub use weights::TransformedWeights;

use super::blocks::Blocks;
use super::epilogue::{Output, Rectangle};
use super::image::Image;
use super::tile::{overhang, OffsetRows, Rows, TileGemm, TILE_ROWS};
use crate::cpu::element::Element;
use crate::cpu::simd::dispatch;
use crate::cpu::{parallel, scratch};
use crate::ops::conv2d::shape::Conv2dShape;
use std::ops::Range;
use transform::{TransformInput, TransformOutputs};

/// Outputs of a tile per side, and inputs.
const TILE_OUT: usize = 4;
const TILE_IN: usize = 6;
/// Points of the domain.
const POINTS: usize = TILE_IN * TILE_IN;

/// Transformed inputs of a block, at most (304 KB), so that they stay in the second-level cache together with a part of the
/// weights and products.
const MAX_TRANSFORMED: usize = 76 * 1024;
/// Tiles of a block, at least: three vectors of 8 lanes. With fewer, vectors would be partly empty.
const MIN_TILES: usize = 24;

/// A convolution by Winograd's algorithm.
pub struct Winograd<'a, T> {
    pub shape: Conv2dShape,
    pub x: Image<'a, T>,
    pub transformed: &'a TransformedWeights,
    /// The weights themselves, for outputs that are infinite or NaN by the transforms.
    pub weights: &'a [T],
    pub out: Output<'a, T>,
}

/// A rectangle of tiles.
struct Block {
    image: usize,
    group: usize,
    /// The row and column of the first tile, and how many rows and columns of tiles there are.
    first: [usize; 2],
    size: [usize; 2],
    /// Tiles are numbered with `pitch` to a row, up to `positions`.
    pitch: usize,
    positions: usize,
    /// Elements of a row of matrices: `positions`, and what the last vectors write beyond them.
    stride: usize,
}

impl<T: Element> Winograd<'_, T> {
    /// Writes all outputs. The kernel is 3 by 3, with stride and dilation 1.
    pub fn run(&self) {
        let g = &self.shape;
        let tiles = g.output.map(|n| n.div_ceil(TILE_OUT));
        let most = (MAX_TRANSFORMED / (POINTS * g.c_in.max(1))).max(MIN_TILES);
        // A tile reads its own 4 by 4 pixels and 2 of the next tile's: a halo of one tile.
        let blocks = Blocks::new(tiles, [TILE_OUT; 2], [1, 1], MIN_TILES, |[rows, cols]| {
            rows * (cols + 1) <= most
        });
        let jobs = g.batch * g.groups * blocks.count[0] * blocks.count[1];
        // If there are few blocks, several threads take each, for a part of the outputs' channels.
        let parts = (2 * parallel::threads()).div_ceil(jobs.max(1));
        let part = g.c_out.div_ceil(parts).next_multiple_of(TILE_ROWS);
        let parts = g.c_out.div_ceil(part);
        let positions = blocks.size[0] * blocks.input.cols;
        // In the unit of `parallel`, of which an FMA is an eighth: a product is transformed at the cost of 8 FMAs, and so is an
        // input.
        let cost = positions * POINTS * (part.min(g.c_out) * (g.c_in + 8) / 8 + g.c_in);
        parallel::ranges(jobs * parts, cost, 1, |units| {
            for unit in units {
                let first = unit % parts * part;
                let outputs = first..g.c_out.min(first + part);
                // SAFETY: no other unit has this block's outputs of these channels.
                unsafe { self.block(&blocks, unit / parts, outputs) };
            }
        });
    }

    /// A block of some outputs, by this thread.
    ///
    /// # Safety
    /// No other thread has this block's outputs of these channels.
    unsafe fn block(&self, blocks: &Blocks, job: usize, outputs: Range<usize>) {
        let g = &self.shape;
        let (image_group, first) = blocks.first(job);
        let size = [0, 1].map(|i| blocks.size[i].min(g.output[i].div_ceil(TILE_OUT) - first[i]));
        let pitch = blocks.input.cols;
        let positions = (size[0] - 1) * pitch + size[1];
        let block = Block {
            image: image_group / g.groups,
            group: image_group % g.groups,
            first,
            size,
            pitch,
            positions,
            stride: positions + overhang(g.c_out),
        };
        let lens = [
            POINTS * g.c_in * block.stride,
            POINTS * outputs.len() * block.stride,
            blocks.input.plane() + overhang(1),
            TILE_OUT * TILE_OUT * block.stride,
        ];
        scratch::with(lens, |[transformed, products, packed, sums]| {
            // SAFETY: the lengths are those that the steps ask for. Each step reads what the one before has written, and the
            // last writes the outputs that this thread alone has.
            unsafe {
                self.transform_input(blocks, &block, packed, transformed);
                self.multiply(&block, outputs.clone(), transformed, products);
                self.transform_outputs(&block, outputs, products, sums);
            }
        });
    }

    /// The block's part of the image, transformed: `[point][c_in, positions]`.
    ///
    /// # Safety
    /// `packed` is valid for writes of a packed plane and `overhang(1)`, `transformed` of `POINTS · c_in · stride` elements.
    unsafe fn transform_input(
        &self,
        blocks: &Blocks,
        block: &Block,
        packed: *mut f32,
        transformed: *mut f32,
    ) {
        let (g, layout) = (&self.shape, &blocks.input);
        let origin = [0, 1].map(|i| (block.first[i] * TILE_OUT) as isize - g.padding[i] as isize);
        let mut offsets = [0; POINTS];
        for (i, offset) in offsets.iter_mut().enumerate() {
            *offset = layout.at(i / TILE_IN, i % TILE_IN);
        }
        // SAFETY: `packed` has room for a plane and, behind it, the vector that the last positions read beyond it. The layout
        // has a halo of one tile, so that each of a tile's elements has `positions` elements from its offset on. Channel c of
        // `transformed` has `stride` elements, which are the positions and more than a vector, for each point.
        unsafe {
            std::ptr::write_bytes(packed.add(layout.plane()), 0, overhang(1));
            for c in 0..g.c_in {
                let channel = block.group * g.c_in + c;
                layout.pack(self.x, block.image, channel..channel + 1, origin, packed);
                let x = OffsetRows {
                    start: packed,
                    offsets: &offsets,
                    len: block.positions,
                };
                let to = Rows {
                    data: transformed.add(c * block.stride),
                    stride: g.c_in * block.stride,
                };
                dispatch(TransformInput::new(x, to));
            }
        }
    }

    /// The products: `[point][outputs, positions]`.
    ///
    /// # Safety
    /// `transformed` has been written by [`Winograd::transform_input`], and `products` is valid for writes of
    /// `POINTS · outputs · stride` elements.
    unsafe fn multiply(
        &self,
        block: &Block,
        outputs: Range<usize>,
        transformed: *const f32,
        products: *mut f32,
    ) {
        let g = &self.shape;
        let offsets: Vec<usize> = (0..g.c_in).map(|c| c * block.stride).collect();
        for point in 0..POINTS {
            let weights = Rows {
                data: self.transformed.rows(block.group, point, outputs.clone()),
                stride: g.c_in,
            };
            let x = OffsetRows {
                start: transformed.wrapping_add(point * g.c_in * block.stride),
                offsets: &offsets,
                len: block.positions,
            };
            let sums = Rows {
                data: products.wrapping_add(point * outputs.len() * block.stride),
                stride: block.stride,
            };
            let rows = [outputs.len(), g.c_out];
            // SAFETY: the rows of each point, `c_in` of x and `outputs` of sums, have `stride` elements: the positions and the
            // overhang.
            dispatch(unsafe { TileGemm::new(weights, x, sums, rows, false) });
        }
    }

    /// The outputs of the products, channel by channel, and their epilogue.
    ///
    /// # Safety
    /// `products` have been written by [`Winograd::multiply`], and `sums` is valid for writes of 4 · 4 · `stride` elements. No
    /// other thread touches these outputs.
    unsafe fn transform_outputs(
        &self,
        block: &Block,
        outputs: Range<usize>,
        products: *const f32,
        sums: *mut f32,
    ) {
        for row in 0..outputs.len() {
            let channel = block.group * self.shape.c_out + outputs.start + row;
            let from = Rows {
                data: products.wrapping_add(row * block.stride),
                stride: outputs.len() * block.stride,
            };
            let to = Rows {
                data: sums,
                stride: TILE_OUT * block.stride,
            };
            // SAFETY: each point's rows of products have `stride` elements, and each of four rows of sums has four times as
            // many. Those are the positions and more than a vector.
            unsafe {
                let mut all_finite = true;
                let positions = block.positions;
                dispatch(TransformOutputs::new(from, to, positions, &mut all_finite));
                if !all_finite {
                    self.plain_sums(block, channel, sums);
                }
                self.write(block, channel, sums);
            }
        }
    }

    /// Computes each output again by the definition. The transforms make NaN of other outputs of a tile that has an
    /// infinite pixel; now infinities and NaNs are where they belong.
    ///
    /// # Safety
    /// That of [`Winograd::transform_outputs`].
    unsafe fn plain_sums(&self, block: &Block, channel: usize, sums: *mut f32) {
        let g = &self.shape;
        for y in 0..block.size[0] * TILE_OUT {
            for x in 0..block.size[1] * TILE_OUT {
                let mut sum = 0.0;
                for c in 0..g.c_in {
                    for k in 0..9 {
                        let row = (block.first[0] * TILE_OUT + y + k / 3) as isize;
                        let col = (block.first[1] * TILE_OUT + x + k % 3) as isize;
                        let at = [row - g.padding[0] as isize, col - g.padding[1] as isize];
                        let weight = self.weights[(channel * g.c_in + c) * 9 + k];
                        let x = self.x.get(block.image, block.group * g.c_in + c, at);
                        // The padding is zeros.
                        sum += x.map_or(0.0, T::widen) * weight.widen();
                    }
                }
                let tile = y / TILE_OUT * block.pitch * TILE_OUT + x;
                // SAFETY: the tile's number is a position, of which each of the four rows has four columns.
                unsafe { *sums.add(y % TILE_OUT * TILE_OUT * block.stride + tile) = sum };
            }
        }
    }

    /// Writes the outputs of a channel, one row of tiles at a time.
    ///
    /// # Safety
    /// The sums have been written; no other thread touches these outputs.
    unsafe fn write(&self, block: &Block, channel: usize, sums: *const f32) {
        let [height, width] = self.shape.output;
        let left = block.first[1] * TILE_OUT;
        for i in 0..block.size[0] {
            let top = (block.first[0] + i) * TILE_OUT;
            let rectangle = Rectangle {
                rows: TILE_OUT.min(height - top),
                cols: (block.size[1] * TILE_OUT).min(width - left),
                pitch: TILE_OUT * block.stride,
                start: top * width + left,
                row_step: width,
                col_step: 1,
            };
            let sums = sums.wrapping_add(i * block.pitch * TILE_OUT);
            // SAFETY: the row of tiles has four rows of four sums for each tile, and no other row of tiles has their outputs.
            unsafe { self.out.write(block.image, channel, rectangle, sums) };
        }
    }
}
