//! Implicit GEMM: weights times what each place of the kernel sees. Of the image, each block of outputs has a copy of the
//! part it sees, which stays in the cache. Where places are so far apart that the part would be mostly gaps, each has a
//! copy of its own.

use super::blocks::Blocks;
use super::epilogue::{Output, Rectangle};
use super::lattice::Image;
use super::tile::{overhang, Tiles, FACTORS, ROWS};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::scratch;
use crate::cpu::simd::dispatch;
use std::borrow::Cow;
use std::ops::Range;

/// A convolution whose outputs, or a regular part of them for each pass, are `grid` positions that see a lattice.
pub struct Gemm<'a, T> {
    pub batch: usize,
    pub groups: usize,
    pub x: Image<'a, T>,
    /// Of a group of x.
    pub channels: usize,
    /// Of a group of the output.
    pub outputs: usize,
    pub grid: [usize; 2],
    pub phases: [usize; 2],
    /// Rows and columns that a position sees of each phase, beside its own.
    pub reach: [usize; 2],
    /// What the first position sees first, as a row and column of x.
    pub origin: [isize; 2],
    pub passes: Vec<Pass<'a>>,
    pub out: Output<'a, T>,
    /// Columns of the output.
    pub width: usize,
}

/// Outputs that see the lattice through the same places.
pub struct Pass<'a> {
    /// `[groups · outputs, channels · places]`
    pub weights: Cow<'a, [f32]>,
    /// Rows and columns of the lattice's part, seen from the first position.
    pub places: Vec<[usize; 2]>,
    /// The positions that are outputs.
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// Position (i, j) is the output `(i · step + start)` of each dim.
    pub start: [isize; 2],
    pub step: [usize; 2],
}

/// The elements that a block sees, at most: they and the weights they meet should stay in the second cache.
const SEEN: usize = 64 * 1024;
/// Rows whose weights stay in the second cache, to be met by all positions.
const ROWS_AT_ONCE: usize = 16 * ROWS;
/// Positions of a block, at most: their sums, too, should stay near.
const POSITIONS: usize = 2048;
/// Blocks that each thread should get, so that one that is held up doesn't hold up the others.
const SHARES: usize = 4;
/// What copying an element costs, in those of [`parallel`]: rows are short.
const SEEING: usize = 8;

/// How the work is cut.
struct Plan {
    blocks: Blocks,
    /// Copies of each channel, and where, seen from the first position, each begins.
    copies: Vec<[usize; 2]>,
    /// Channels that are multiplied at a time.
    channels: usize,
    /// For each pass: where, seen from a position, each factor of so many channels is.
    offsets: Vec<Vec<usize>>,
    /// From row to row of the sums.
    stride: usize,
}

impl<T: Element> Gemm<'_, T> {
    pub fn run(&self) {
        let plan = self.plan();
        let Blocks {
            size,
            count,
            lattice,
        } = plan.blocks;
        let jobs = self.batch * self.groups * count[0] * count[1];
        // Where there are few blocks, several threads take each.
        let parts = (SHARES * parallel::threads()).div_ceil(jobs.max(1));
        let part = self.outputs.div_ceil(parts).next_multiple_of(ROWS);
        let parts = self.outputs.div_ceil(part);
        let outputs = |n: usize| n * part..self.outputs.min((n + 1) * part);
        let (channels, plane) = (self.channels, plan.copies.len() * lattice.plane());
        let places: usize = self.passes.iter().map(|p| p.places.len()).sum();
        // A multiplication and addition is an eighth of a cheap element.
        let cost = size[0] * lattice.cols * part * (channels * places + 8) / 8;
        let see = SEEING * channels * plane;
        if parts == 1 || 4 * see < cost {
            return parallel::ranges(jobs * parts, cost + see, 1, |units| {
                self.with_room(plan.channels * plane, |x| {
                    for unit in units {
                        let (job, part) = (unit / parts, unit % parts);
                        self.multiply(&plan, job, outputs(part), |channels| {
                            self.see(&plan, job, channels, x);
                            x
                        });
                    }
                });
            });
        }
        self.with_room(channels * plane, |x| {
            let x = Shared::new(x);
            let at = |channel: usize| x.get().wrapping_add(channel * plane);
            for job in 0..jobs {
                parallel::ranges(channels, SEEING * plane, 1, |channels| {
                    let start = channels.start;
                    self.see(&plan, job, channels, at(start))
                });
                parallel::ranges(parts, cost, 1, |parts| {
                    for part in parts {
                        self.multiply(&plan, job, outputs(part), |channels| at(channels.start));
                    }
                });
            }
        });
    }

    /// Memory for so many elements, with zeros behind them for what a tile reads in vain.
    fn with_room(&self, len: usize, f: impl FnOnce(*mut f32)) {
        let overhang = overhang(self.outputs);
        scratch::with([len + overhang], |[x]| {
            // SAFETY: there is room.
            unsafe { std::ptr::write_bytes(x.add(len), 0, overhang) };
            f(x)
        });
    }

    fn plan(&self) -> Plan {
        let places = self.passes.iter().map(|p| p.places.len()).max();
        let most = (FACTORS / places.unwrap_or(0).max(1)).max(1);
        let channels = self.channels.div_ceil(self.channels.div_ceil(most).max(1));
        let copies = match self.is_sparse() {
            true => self.passes[0].places.clone(),
            false => vec![[0, 0]],
        };
        let is_sparse = copies.len() > 1;
        let reach = if is_sparse { [0, 0] } else { self.reach };
        let each = channels.max(1) * copies.len() * self.phases[0] * self.phases[1];
        let positions = self.batch * self.groups * self.grid[0] * self.grid[1];
        let most = positions / (SHARES * parallel::threads());
        let least = if is_sparse {
            POSITIONS / 16
        } else {
            POSITIONS / 8
        };
        let most = most.clamp(least, POSITIONS);
        let blocks = Blocks::new(self.grid, self.phases, reach, 64, |size| {
            let [rows, cols] = [0, 1].map(|i| size[i] + reach[i]);
            // Less than what rows see beside their own would be mostly that.
            let low = size[0] <= reach[0];
            (low || each * rows * cols <= SEEN) && size[0] * size[1] <= most
        });
        let (lattice, count) = (&blocks.lattice, copies.len());
        let of_channel = |pass: &Pass, channel: usize| {
            let start = channel * count * lattice.plane();
            let at = move |(i, &[row, col]): (usize, &[usize; 2])| match is_sparse {
                true => start + i * lattice.plane(),
                false => start + lattice.at(row, col),
            };
            pass.places.iter().enumerate().map(at).collect::<Vec<_>>()
        };
        let of_pass = |pass: &Pass| (0..channels).flat_map(|c| of_channel(pass, c)).collect();
        Plan {
            channels,
            offsets: self.passes.iter().map(of_pass).collect(),
            stride: blocks.size[0] * lattice.cols + overhang(self.outputs),
            blocks,
            copies,
        }
    }

    /// Whether to multiply the columns between rows of positions, which one copy for all places has, would cost more
    /// than to copy each place's part.
    fn is_sparse(&self) -> bool {
        let (cols, reach) = (self.grid[1], self.reach[1]);
        self.passes.len() == 1
            && self.phases == [1, 1]
            && 2 * reach > cols
            && reach * self.outputs > 12 * SEEING * cols
    }

    /// Copies what a block sees of some channels.
    fn see(&self, plan: &Plan, job: usize, channels: Range<usize>, x: *mut f32) {
        let (job, first) = plan.blocks.first(job);
        let (image, group) = (job / self.groups, job % self.groups);
        let origin = [0, 1].map(|i| self.origin[i] + (first[i] * self.phases[i]) as isize);
        let of_group = group * self.channels;
        let lattice = &plan.blocks.lattice;
        let fill = |channels: Range<usize>, [row, col]: [usize; 2], to: *mut f32| {
            let origin = [origin[0] + row as isize, origin[1] + col as isize];
            let channels = of_group + channels.start..of_group + channels.end;
            // SAFETY: there is room for them.
            unsafe { lattice.fill(self.x, image, channels, origin, to) }
        };
        if let [copy] = plan.copies[..] {
            return fill(channels, copy, x);
        }
        let start = channels.start;
        for channel in channels {
            for (i, &copy) in plan.copies.iter().enumerate() {
                let plane = (channel - start) * plan.copies.len() + i;
                fill(
                    channel..channel + 1,
                    copy,
                    x.wrapping_add(plane * lattice.plane()),
                );
            }
        }
    }

    /// Some outputs of a block, by this thread. `x` is what the block sees of some channels.
    fn multiply(
        &self,
        plan: &Plan,
        job: usize,
        outputs: Range<usize>,
        x: impl Fn(Range<usize>) -> *mut f32,
    ) {
        let (job, first) = plan.blocks.first(job);
        let (image, group) = (job / self.groups, job % self.groups);
        let channel = group * self.outputs + outputs.start;
        let pitch = plan.blocks.lattice.cols;
        let each = outputs.len() * plan.stride;
        let inside = |pass: &Pass| {
            [(0, &pass.rows), (1, &pass.cols)].map(|(i, range)| {
                let end = range.end.min(first[i] + plan.blocks.size[i]);
                range.start.max(first[i]).min(end)..end
            })
        };
        scratch::with([self.passes.len() * each], |[sums]| {
            // Without channels there still are sums.
            for start in (0..self.channels.max(1)).step_by(plan.channels.max(1)) {
                let channels = start..self.channels.min(start + plan.channels);
                let x = x(channels.clone());
                for (i, pass) in self.passes.iter().enumerate() {
                    let [rows, cols] = inside(pass);
                    if rows.is_empty() || cols.is_empty() {
                        continue;
                    }
                    let at = (rows.start - first[0]) * pitch + cols.start - first[1];
                    let factors = self.channels * pass.places.len();
                    // SAFETY: x and the sums reach as far beyond the last position as a tile does, and the weights have
                    // these rows.
                    unsafe {
                        let weights = pass.weights.as_ptr();
                        multiply(Tiles {
                            weights: weights.add(channel * factors + start * pass.places.len()),
                            stride: factors,
                            rows: outputs.len(),
                            of_rows: self.outputs,
                            offsets: &plan.offsets[i][..channels.len() * pass.places.len()],
                            x: x.add(at),
                            positions: (rows.len() - 1) * pitch + cols.len(),
                            sums: sums.add(i * each),
                            sums_stride: plan.stride,
                            add: start > 0,
                        });
                    }
                }
            }
            for (i, pass) in self.passes.iter().enumerate() {
                let [rows, cols] = inside(pass);
                if rows.is_empty() || cols.is_empty() {
                    continue;
                }
                let rectangle = pass.rectangle(rows, cols, pitch, self.width);
                for row in 0..outputs.len() {
                    // SAFETY: the sums are there, and this thread alone writes these outputs.
                    unsafe {
                        let sums = sums.add(i * each + row * plan.stride);
                        self.out.write(image, channel + row, rectangle, sums);
                    }
                }
            }
        });
    }
}

/// All rows, a few at a time.
unsafe fn multiply(tiles: Tiles) {
    for row in (0..tiles.rows).step_by(ROWS_AT_ONCE) {
        dispatch(Tiles {
            weights: tiles.weights.add(row * tiles.stride),
            rows: ROWS_AT_ONCE.min(tiles.rows - row),
            sums: tiles.sums.add(row * tiles.sums_stride),
            ..tiles
        });
    }
}

impl Pass<'_> {
    /// The outputs of these positions, `width` to a row.
    fn rectangle(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        pitch: usize,
        width: usize,
    ) -> Rectangle {
        let output = |i: usize, position: usize| {
            ((position * self.step[i]) as isize + self.start[i]) as usize
        };
        Rectangle {
            rows: rows.len(),
            cols: cols.len(),
            pitch,
            start: output(0, rows.start) * width + output(1, cols.start),
            row: self.step[0] * width,
            col: self.step[1],
        }
    }
}
