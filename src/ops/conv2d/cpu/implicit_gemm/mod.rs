//! Implicit GEMM: the convolution as a product of the weights with the im2col matrix, which is never stored.
//!
//! ```text
//!     sums [c_out, positions]  =  weights [c_out, c_in · taps]  ×  im2col [c_in · taps, positions]
//! ```
//!
//! For each block of positions, the part of the image that the block reads is packed (see polyphase.rs), so that it stays
//! in the cache and row (channel, tap) of im2col is the packed memory from an offset on. The micro-kernel of tile.rs
//! multiplies, and the epilogue writes the outputs. Positions are numbered with the packed rows' length as pitch, so that
//! the numbers between the last position of a row and the first of the next are computed in vain, and never written.
//!
//! Only the order of the terms, channel by channel and tap by tap, decides about a sum's rounding: blocks and threads don't.

mod plan;

use super::epilogue::{Output, Rectangle};
use super::image::Image;
use super::tile::{overhang, OffsetRows, Rows, TileGemm, TILE_ROWS};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::scratch;
use plan::Plan;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

/// Rows whose weights (96 rows of 256 terms: 96 KB) stay in the second-level cache while all positions are multiplied.
const ROWS_AT_ONCE: usize = 16 * TILE_ROWS;

/// One or more GEMMs that read the same packed input. A convolution has one. A transposed convolution has one for each phase
/// of its outputs.
pub struct ImplicitGemm<'a, T> {
    pub batch: usize,
    pub groups: usize,
    /// Channels of a group of x, and of the output.
    pub c_in: usize,
    pub c_out: usize,
    pub x: Image<'a, T>,
    /// Rows and columns of positions.
    pub grid: [usize; 2],
    /// Rows and columns of x from one position to the next.
    pub stride: [usize; 2],
    /// How many more rows and columns of each phase of x a position reads than its own.
    pub halo: [usize; 2],
    /// The first row and column of x that the first position reads: negative for padding.
    pub origin: [isize; 2],
    pub phases: Vec<PhaseGemm<'a>>,
    /// Rows and columns of the output from one position of a phase to the next.
    pub step: [usize; 2],
    pub out: Output<'a, T>,
    /// Columns of the output.
    pub width: usize,
}

/// The GEMM of the outputs that read the same taps.
pub struct PhaseGemm<'a> {
    /// `[groups · c_out, c_in · taps]`
    pub weights: Cow<'a, [f32]>,
    /// The row and column of x of each tap, relative to what a position reads first.
    pub taps: Vec<[usize; 2]>,
    /// The positions that are outputs.
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// Position p of a dim is the output `p · step + start`.
    pub start: [isize; 2],
}

impl<T: Element> ImplicitGemm<'_, T> {
    /// Writes all outputs of all phases.
    pub fn run(&self) {
        let mut starts = BTreeSet::new();
        for phase in &self.phases {
            let reached = |i: usize| (self.halo[i] + 1) * self.stride[i];
            let inside = |tap: &[usize; 2]| tap[0] < reached(0) && tap[1] < reached(1);
            assert!(phase.taps.iter().all(inside), "a tap lies beyond the halo");
            let weights = self.groups * self.c_out * self.c_in * phase.taps.len();
            assert_eq!(phase.weights.len(), weights, "weights of a phase");
            let last = (phase.cols.end as isize - 1) * self.step[1] as isize + phase.start[1];
            assert!(last < self.width as isize, "a column beyond the last");
            // Outputs of different phases differ in the remainder of their row or column by the step.
            let start = [0, 1].map(|i| phase.start[i].rem_euclid(self.step[i] as isize));
            assert!(starts.insert(start), "two phases have the same outputs");
        }
        let plan = Plan::new(self);
        let pack_cost = self.c_in * plan.pack_cost;
        if plan.parts == 1 || 4 * pack_cost < plan.multiply_cost {
            self.run_blocks(&plan, pack_cost + plan.multiply_cost)
        } else {
            self.run_parts(&plan)
        }
    }

    /// Each thread packs and multiplies blocks, or parts of them, by itself. The parts of a block each pack it anew.
    fn run_blocks(&self, plan: &Plan, cost: usize) {
        parallel::ranges(plan.jobs * plan.parts, cost, 1, |units| {
            self.with_packed_input(plan.channels * plan.plane(), |x| {
                for unit in units {
                    let (job, part) = (unit / plan.parts, unit % plan.parts);
                    // SAFETY: `multiply` asks for `plan.channels` at most, for which there is room, with zeros for the
                    // overhang. It gets them packed, and no other unit is this part of this job.
                    unsafe {
                        self.multiply(plan, job, part, |channels| {
                            self.pack_input(plan, job, channels, x);
                            x
                        });
                    }
                }
            });
        });
    }

    /// For few blocks of many outputs: all threads pack a block together, then multiply parts of it.
    fn run_parts(&self, plan: &Plan) {
        let plane = plan.plane();
        self.with_packed_input(self.c_in * plane, |x| {
            let x = Shared::new(x);
            let packed = |channel: usize| x.get().wrapping_add(channel * plane);
            for job in 0..plan.jobs {
                parallel::ranges(self.c_in, plan.pack_cost, 1, |channels| {
                    let to = packed(channels.start);
                    // SAFETY: there is room for all channels, and each is packed by one thread.
                    unsafe { self.pack_input(plan, job, channels, to) }
                });
                parallel::ranges(plan.parts, plan.multiply_cost, 1, |parts| {
                    for part in parts {
                        // SAFETY: all channels have been packed, and the zeros for the overhang are behind the last.
                        // `ranges` gives each part to one thread.
                        unsafe {
                            self.multiply(plan, job, part, |channels| packed(channels.start));
                        }
                    }
                });
            }
        });
    }

    /// Memory for `len` packed elements, followed by zeros for what a tile reads beyond the last position.
    fn with_packed_input(&self, len: usize, f: impl FnOnce(*mut f32)) {
        let overhang = overhang(self.c_out);
        scratch::with([len + overhang], |[x]| {
            // SAFETY: the memory has `len + overhang` elements.
            unsafe { std::ptr::write_bytes(x.add(len), 0, overhang) };
            f(x)
        });
    }

    /// Packs what a block reads of some channels of its group.
    ///
    /// # Safety
    /// `to` is valid for writes of [`Plan::plane`] elements for each of the channels.
    unsafe fn pack_input(&self, plan: &Plan, job: usize, channels: Range<usize>, to: *mut f32) {
        let (image_group, first) = plan.blocks.first(job);
        let (image, group) = (image_group / self.groups, image_group % self.groups);
        let origin = [0, 1].map(|i| self.origin[i] + (first[i] * self.stride[i]) as isize);
        let layout = &plan.blocks.input;
        let pack = |channels: Range<usize>, [row, col]: [usize; 2], to: *mut f32| {
            let origin = [origin[0] + row as isize, origin[1] + col as isize];
            let of_x = group * self.c_in + channels.start..group * self.c_in + channels.end;
            // SAFETY: each call below has room for its channels: a copy of a channel has `layout.plane()` elements, and
            // `Plan::plane` those of all copies.
            unsafe { layout.pack(self.x, image, of_x, origin, to) }
        };
        if let [copy] = plan.copies[..] {
            return pack(channels, copy, to);
        }
        let mut to = to;
        for channel in channels {
            for &copy in &plan.copies {
                pack(channel..channel + 1, copy, to);
                to = to.wrapping_add(layout.plane());
            }
        }
    }

    /// The outputs of a block of a part of the channels, by this thread. `packed` gives the packed input of some channels,
    /// `plan.channels` at most.
    ///
    /// # Safety
    /// What `packed` gives is valid for reads of [`Plan::plane`] elements for each of the channels and of an overhang, all of
    /// them initialised. No other thread has this part of this block.
    unsafe fn multiply(
        &self,
        plan: &Plan,
        job: usize,
        part: usize,
        packed: impl Fn(Range<usize>) -> *mut f32,
    ) {
        let (image_group, first) = plan.blocks.first(job);
        let (image, group) = (image_group / self.groups, image_group % self.groups);
        let outputs = part * plan.part..self.c_out.min((part + 1) * plan.part);
        let channel = group * self.c_out + outputs.start;
        let pitch = plan.blocks.input.cols;
        let phase_sums = outputs.len() * plan.sums_stride;
        let phases = || {
            let inside = |(i, phase)| (i, phase, plan.inside(phase, first));
            let all = self.phases.iter().enumerate().map(inside);
            all.filter(|(_, _, [rows, cols])| !rows.is_empty() && !cols.is_empty())
        };
        scratch::with([self.phases.len() * phase_sums], |[sums]| {
            // Without channels there still are sums: zeros.
            for start in (0..self.c_in.max(1)).step_by(plan.channels.max(1)) {
                let channels = start..self.c_in.min(start + plan.channels);
                let x = packed(channels.clone());
                for (i, phase, [rows, cols]) in phases() {
                    let at = (rows.start - first[0]) * pitch + cols.start - first[1];
                    let taps = phase.taps.len();
                    let terms = self.c_in * taps;
                    let weights = Rows {
                        data: &phase.weights[channel * terms + start * taps..],
                        stride: terms,
                    };
                    let x = OffsetRows {
                        start: x.wrapping_add(at),
                        offsets: &plan.offsets[i][..channels.len() * taps],
                        len: (rows.len() - 1) * pitch + cols.len(),
                    };
                    let sums = Rows {
                        data: sums.wrapping_add(i * phase_sums),
                        stride: plan.sums_stride,
                    };
                    let rows = [outputs.len(), self.c_out];
                    // SAFETY: a packed channel has `size + halo` rows and columns of each phase, so that it has the input of
                    // the last position of every tap; a tile's overhang is behind the last channel. The sums have
                    // `outputs.len()` rows for each phase, and `sums_stride` is the positions of a block and the overhang.
                    // With `start > 0` the first channels' product has written them.
                    let gemm = unsafe { TileGemm::new(weights, x, sums, rows, start > 0) };
                    gemm.run_by_rows(ROWS_AT_ONCE);
                }
            }
            for (i, phase, [rows, cols]) in phases() {
                let rectangle = self.rectangle(phase, [rows, cols], pitch);
                for row in 0..outputs.len() {
                    let sums = sums.wrapping_add(i * phase_sums + row * plan.sums_stride);
                    // SAFETY: the sums of these positions have just been written. No other block or part has their outputs,
                    // and no other phase, which `run` has checked.
                    unsafe { self.out.write(image, channel + row, rectangle, sums) };
                }
            }
        });
    }

    /// The outputs of these positions of a phase.
    fn rectangle(
        &self,
        phase: &PhaseGemm,
        [rows, cols]: [Range<usize>; 2],
        pitch: usize,
    ) -> Rectangle {
        let output = |i: usize, position: usize| {
            let output = (position * self.step[i]) as isize + phase.start[i];
            usize::try_from(output).expect("a position before the first output")
        };
        Rectangle {
            rows: rows.len(),
            cols: cols.len(),
            pitch,
            start: output(0, rows.start) * self.width + output(1, cols.start),
            row_step: self.step[0] * self.width,
            col_step: self.step[1],
        }
    }
}
