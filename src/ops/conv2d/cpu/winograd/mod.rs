//! Winograd's F(4×4, 3×3): 4 by 4 outputs by 36 multiplications instead of 144, in a domain that 6 by 6 elements of the
//! image are transformed to, and the kernel ahead of time.

mod kernels;
mod transform;

pub use kernels::Kernels;

use super::blocks::Blocks;
use super::epilogue::{Output, Rectangle};
use super::lattice::Image;
use super::tile::{overhang, Tiles, ROWS};
use crate::cpu::element::Element;
use crate::cpu::simd::dispatch;
use crate::cpu::{parallel, scratch};
use crate::ops::conv2d::Geometry;
use std::ops::Range;
use transform::{TransformImage, TransformProducts};

/// Outputs of a tile, per side, and what it sees.
const TILE: usize = 4;
const SEEN: usize = 6;
/// Elements of the domain.
const POINTS: usize = SEEN * SEEN;

/// Transformed elements of a block, at most: they should stay in the second cache.
const BLOCK: usize = 76 * 1024;

/// A convolution by Winograd's algorithm.
pub struct Winograd<'a, T> {
    pub geometry: Geometry,
    pub x: Image<'a, T>,
    pub kernels: &'a Kernels,
    /// As they came, for where the transformed ones overflow.
    pub weights: &'a [T],
    pub out: Output<'a, T>,
}

/// A rectangle of tiles.
struct Block {
    image: usize,
    group: usize,
    /// Its first tile, and how many it has.
    first: [usize; 2],
    size: [usize; 2],
    /// Tiles are counted with `pitch` to a row.
    pitch: usize,
    positions: usize,
    /// Room for their elements, and for those that vectors read or write in vain.
    stride: usize,
}

impl<T: Element> Winograd<'_, T> {
    pub fn run(&self) {
        let g = &self.geometry;
        let tiles = g.output.map(|n| n.div_ceil(TILE));
        // Fewer would leave vectors empty.
        let most = (BLOCK / (POINTS * g.c_in.max(1))).max(24);
        let blocks = Blocks::new(tiles, [TILE; 2], [1, 1], 24, |[rows, cols]| {
            rows * (cols + 1) <= most
        });
        let jobs = g.batch * g.groups * blocks.count[0] * blocks.count[1];
        // Where there are few blocks, several threads take each.
        let parts = (2 * parallel::threads()).div_ceil(jobs.max(1));
        let part = g.c_out.div_ceil(parts).next_multiple_of(ROWS);
        let parts = g.c_out.div_ceil(part);
        let positions = blocks.size[0] * blocks.lattice.cols;
        let cost = positions * POINTS * (part.min(g.c_out) * (g.c_in + 8) / 8 + g.c_in);
        parallel::ranges(jobs * parts, cost, 1, |units| {
            for unit in units {
                let first = unit % parts * part;
                let outputs = first..g.c_out.min(first + part);
                self.block(&blocks, unit / parts, outputs);
            }
        });
    }

    /// A block of some outputs, by this thread.
    fn block(&self, blocks: &Blocks, job: usize, outputs: Range<usize>) {
        let g = &self.geometry;
        let (job, first) = blocks.first(job);
        let size = [0, 1].map(|i| blocks.size[i].min(g.output[i].div_ceil(TILE) - first[i]));
        let pitch = blocks.lattice.cols;
        let positions = (size[0] - 1) * pitch + size[1];
        let block = Block {
            image: job / g.groups,
            group: job % g.groups,
            first,
            size,
            pitch,
            positions,
            stride: positions + overhang(g.c_out),
        };
        let rooms = [
            POINTS * g.c_in * block.stride,
            POINTS * outputs.len() * block.stride,
            blocks.lattice.plane() + overhang(1),
            TILE * TILE * block.stride,
        ];
        scratch::with(rooms, |[seen, products, part, sums]| {
            // SAFETY: there is room for what each step writes, and this thread alone writes the block's outputs.
            unsafe {
                self.transform(blocks, &block, part, seen);
                self.multiply(&block, outputs.clone(), seen, products);
                self.finish(&block, outputs, products, sums);
            }
        });
    }

    /// The block's part of the image, transformed: for each point, channels by positions.
    unsafe fn transform(&self, blocks: &Blocks, block: &Block, part: *mut f32, seen: *mut f32) {
        let (g, lattice) = (&self.geometry, &blocks.lattice);
        let origin = [0, 1].map(|i| (block.first[i] * TILE) as isize - g.padding[i] as isize);
        std::ptr::write_bytes(part.add(lattice.plane()), 0, overhang(1));
        let mut offsets = [0; POINTS];
        for (i, offset) in offsets.iter_mut().enumerate() {
            *offset = lattice.at(i / SEEN, i % SEEN);
        }
        for c in 0..g.c_in {
            let channel = block.group * g.c_in + c;
            lattice.fill(self.x, block.image, channel..channel + 1, origin, part);
            dispatch(TransformImage {
                from: part,
                offsets: &offsets,
                positions: block.positions,
                to: seen.add(c * block.stride),
                point: g.c_in * block.stride,
            });
        }
    }

    /// The products: for each point, outputs by positions.
    unsafe fn multiply(
        &self,
        block: &Block,
        outputs: Range<usize>,
        seen: *const f32,
        products: *mut f32,
    ) {
        let g = &self.geometry;
        let offsets: Vec<usize> = (0..g.c_in).map(|c| c * block.stride).collect();
        for point in 0..POINTS {
            dispatch(Tiles {
                weights: self.kernels.at(g, block.group, point, outputs.start),
                stride: g.c_in,
                rows: outputs.len(),
                of_rows: g.c_out,
                offsets: &offsets,
                x: seen.add(point * g.c_in * block.stride),
                positions: block.positions,
                sums: products.add(point * outputs.len() * block.stride),
                sums_stride: block.stride,
                add: false,
            });
        }
    }

    unsafe fn finish(
        &self,
        block: &Block,
        outputs: Range<usize>,
        products: *const f32,
        sums: *mut f32,
    ) {
        for row in 0..outputs.len() {
            let channel = block.group * self.geometry.c_out + outputs.start + row;
            let finite = dispatch(TransformProducts {
                from: products.add(row * block.stride),
                point: outputs.len() * block.stride,
                positions: block.positions,
                to: sums,
                stride: TILE * block.stride,
            });
            if !finite {
                self.repeat(block, channel, sums);
            }
            self.write(block, channel, sums);
        }
    }

    /// Computes each output again as the plain sum: infinities and NaNs then are where they belong.
    unsafe fn repeat(&self, block: &Block, channel: usize, sums: *mut f32) {
        let g = &self.geometry;
        for y in 0..block.size[0] * TILE {
            for x in 0..block.size[1] * TILE {
                let mut sum = 0.0;
                for c in 0..g.c_in {
                    for k in 0..9 {
                        let row = (block.first[0] * TILE + y + k / 3) as isize;
                        let col = (block.first[1] * TILE + x + k % 3) as isize;
                        let at = [row - g.padding[0] as isize, col - g.padding[1] as isize];
                        let weight = self.weights[(channel * g.c_in + c) * 9 + k];
                        let x = self.x.get(block.image, block.group * g.c_in + c, at);
                        // Padding is zeros.
                        sum += x.map_or(0.0, T::widen) * weight.widen();
                    }
                }
                let tile = y / TILE * block.pitch * TILE + x;
                *sums.add(y % TILE * TILE * block.stride + tile) = sum;
            }
        }
    }

    unsafe fn write(&self, block: &Block, channel: usize, sums: *const f32) {
        let [height, width] = self.geometry.output;
        let left = block.first[1] * TILE;
        for i in 0..block.size[0] {
            let top = (block.first[0] + i) * TILE;
            let rectangle = Rectangle {
                rows: TILE.min(height - top),
                cols: (block.size[1] * TILE).min(width - left),
                pitch: TILE * block.stride,
                start: top * width + left,
                row: width,
                col: 1,
            };
            let sums = sums.add(i * block.pitch * TILE);
            self.out.write(block.image, channel, rectangle, sums);
        }
    }
}
