//! How an implicit GEMM is cut into blocks, channels and threads.

use super::super::blocks::Blocks;
use super::super::tile::{overhang, MAX_TERMS, TILE_ROWS};
use super::{ImplicitGemm, PhaseGemm};
use crate::cpu::element::Element;
use crate::cpu::parallel;
use std::ops::Range;

/// Packed elements of a block, at most (256 KB): they and the weights that they are multiplied with should stay in a
/// second-level cache of 1 MB or a little less.
const MAX_PACKED_INPUT: usize = 64 * 1024;
/// Positions of a block, at most: the sums of 16 channels (128 KB) should stay in the second-level cache, too.
const MAX_POSITIONS: usize = 2048;
/// Positions of a block, at least, even if threads then get fewer than [`BLOCKS_PER_THREAD`]; and the same for copies, which
/// have no halo to pack.
const MIN_POSITIONS: usize = 256;
const MIN_POSITIONS_OF_COPIES: usize = 128;
/// Positions of a row of a block, at least, if the image is as wide: four vectors of 16 lanes.
const MIN_WIDTH: usize = 64;
/// Blocks that each thread should get, so that a thread that is held up doesn't hold up the others.
const BLOCKS_PER_THREAD: usize = 4;
/// The cost of packing an element, in the unit of [`parallel`] (a load and a store in a long loop). Rows are short, so that
/// the ends of the loops dominate.
const PACK_COST: usize = 8;

pub(super) struct Plan {
    pub blocks: Blocks,
    /// Where the copies of a channel begin, as rows and columns relative to the first position's input. Usually a block has
    /// one copy for all taps, with its halo. If taps are far apart, each has a copy without a halo, as in im2col.
    pub copies: Vec<[usize; 2]>,
    /// Channels that are packed and multiplied at a time.
    pub channels: usize,
    /// For each phase: the offset, from a position, of the input of each term, for that many channels.
    pub offsets: Vec<Vec<usize>>,
    /// Elements from row to row of the sums.
    pub sums_stride: usize,
    /// The blocks of all images and groups.
    pub jobs: usize,
    /// Parts that the outputs' channels are cut into, for different threads, and the channels of each but the last.
    pub parts: usize,
    pub part: usize,
    /// The costs, in the unit of [`parallel`], of a part's products, and of packing a channel.
    pub multiply_cost: usize,
    pub pack_cost: usize,
}

impl Plan {
    pub fn new<T: Element>(gemm: &ImplicitGemm<T>) -> Self {
        let taps = gemm.phases.iter().map(|p| p.taps.len()).max();
        let most = (MAX_TERMS / taps.unwrap_or(0).max(1)).max(1);
        let channels = gemm.c_in.div_ceil(gemm.c_in.div_ceil(most).max(1));
        let copies = match taps_are_far_apart(gemm) {
            true => gemm.phases[0].taps.clone(),
            false => vec![[0, 0]],
        };
        let blocks = blocks(gemm, channels, copies.len());
        let plane = copies.len() * blocks.input.plane();
        let offsets = gemm.phases.iter().map(|phase| {
            let channels = 0..channels;
            let offsets = channels.flat_map(|c| offsets(phase, &blocks, copies.len(), c * plane));
            offsets.collect()
        });
        let jobs = gemm.batch * gemm.groups * blocks.count[0] * blocks.count[1];
        // If there are few blocks, several threads take each.
        let parts = (BLOCKS_PER_THREAD * parallel::threads()).div_ceil(jobs.max(1));
        let part = gemm.c_out.div_ceil(parts).next_multiple_of(TILE_ROWS);
        let positions = blocks.size[0] * blocks.input.cols;
        let terms = gemm.c_in * gemm.phases.iter().map(|p| p.taps.len()).sum::<usize>();
        Plan {
            channels,
            offsets: offsets.collect(),
            sums_stride: positions + overhang(gemm.c_out),
            jobs,
            parts: gemm.c_out.div_ceil(part),
            part,
            // An FMA is an eighth of the unit.
            multiply_cost: (positions * part).saturating_mul(terms + 8) / 8,
            pack_cost: PACK_COST * plane,
            blocks,
            copies,
        }
    }

    /// Packed elements of a channel.
    pub fn plane(&self) -> usize {
        self.copies.len() * self.blocks.input.plane()
    }

    /// The positions of a phase that lie within the block that begins at position `first`, as rows and columns.
    pub fn inside(&self, phase: &PhaseGemm, first: [usize; 2]) -> [Range<usize>; 2] {
        [(0, &phase.rows), (1, &phase.cols)].map(|(i, range)| {
            let end = range.end.min(first[i] + self.blocks.size[i]);
            range.start.max(first[i]).min(end)..end
        })
    }
}

/// Whether one copy for all taps costs more than a copy for each. In one copy the rows are longer by the halo, whose columns
/// are multiplied in vain: for a row of a tap these are `halo · c_out` FMAs, each an eighth of the unit in which packing the
/// `cols` elements of a copy costs [`PACK_COST`]. Twelve is that factor of eight with a margin of a half.
fn taps_are_far_apart<T: Element>(gemm: &ImplicitGemm<T>) -> bool {
    let (cols, halo) = (gemm.grid[1], gemm.halo[1]);
    gemm.phases.len() == 1
        && gemm.stride == [1, 1]
        && 2 * halo > cols
        && halo * gemm.c_out > 12 * PACK_COST * cols
}

fn blocks<T: Element>(gemm: &ImplicitGemm<T>, channels: usize, copies: usize) -> Blocks {
    let (halo, least) = match copies {
        1 => (gemm.halo, MIN_POSITIONS),
        _ => ([0, 0], MIN_POSITIONS_OF_COPIES),
    };
    let position = channels.max(1) * copies * gemm.stride[0] * gemm.stride[1];
    let positions = gemm.batch * gemm.groups * gemm.grid[0] * gemm.grid[1];
    let most = positions / (BLOCKS_PER_THREAD * parallel::threads());
    let most = most.clamp(least, MAX_POSITIONS);
    Blocks::new(gemm.grid, gemm.stride, halo, MIN_WIDTH, |size| {
        let [rows, cols] = [0, 1].map(|i| size[i] + halo[i]);
        // A block with fewer rows than its halo would pack mostly halo.
        let mostly_halo = size[0] <= halo[0];
        (mostly_halo || position * rows * cols <= MAX_PACKED_INPUT) && size[0] * size[1] <= most
    })
}

/// The offset, from a position, of the input of each tap, for the channel that is packed at `start`.
fn offsets(phase: &PhaseGemm, blocks: &Blocks, copies: usize, start: usize) -> Vec<usize> {
    let layout = &blocks.input;
    let offset = |(i, &[row, col]): (usize, &[usize; 2])| match copies {
        1 => start + layout.at(row, col),
        _ => start + i * layout.plane(),
    };
    phase.taps.iter().enumerate().map(offset).collect()
}
