//! The sums of some rows of A with packed rows of B, by one thread.

use super::operand::{paired, steps, Rows};
use super::strips::Strips;
use crate::cpu::element::Element;
use crate::cpu::matmul::matrix::Matrix;
use crate::cpu::matmul::micro::rows::{most_rows, Block};
use crate::cpu::simd::{Kernel, Simd};
use std::ops::Range;

/// Which rows of A, and where their sums go: a row of them each, `row` elements apart.
#[derive(Clone)]
pub struct To {
    pub rows: Range<usize>,
    /// For copies of rows of A.
    pub room: *mut f32,
    pub sums: *mut f32,
    pub row: usize,
}

pub struct Multiply<'a, T> {
    a: Matrix<'a, T>,
    strips: &'a Strips<T>,
    to: &'a To,
    scale: Option<f32>,
}

impl<'a, T: Element> Multiply<'a, T> {
    /// The scaled products, or such that are added to the sums without a scale.
    ///
    /// # Safety
    /// A has the rows `to.rows`, which are as long as B's; A's rows or columns are dense. `to.room` has room for a copy of a step of
    /// these rows. `to.sums` has room for a row of sums for each of them, one sum for each packed row of B, rounded up to
    /// MAX_LANES; without a scale the sums are initialised. Nothing else touches either memory.
    pub unsafe fn new(
        a: Matrix<'a, T>,
        strips: &'a Strips<T>,
        to: &'a To,
        scale: Option<f32>,
    ) -> Self {
        Multiply {
            a,
            strips,
            to,
            scale,
        }
    }
}

impl<T: Element> Kernel for Multiply<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (a, strips, to, scale) = (self.a, self.strips, self.to, self.scale);
        let pairs = paired::<S, T>(&a);
        let mut add = scale.is_none();
        // Where B has one vector of rows, all blocks have.
        let most = most_rows::<S>(strips.rows().len().div_ceil(S::LANES).min(2));
        for slots in steps(strips.slots::<S>()) {
            // SAFETY: A has these rows and slots, and `new` asked for the room.
            let read = unsafe { Rows::new(s, a, (to.rows.clone(), most), slots.clone(), to.room) };
            for start in (0..to.rows.len()).step_by(read.group) {
                let rows = start..to.rows.len().min(start + read.group);
                // Parts of the same length, of at most as many rows as a register block has.
                let parts = rows.len().div_ceil(most);
                let height = rows.len().div_ceil(parts);
                let group = read.first.wrapping_add(start / read.group * read.next);
                for (first, width) in strips.each::<S>() {
                    for i in rows.clone().step_by(height) {
                        // SAFETY: `height` rows from i on, or those that are left, are among the group's; the strip has all of
                        // its slots. There is a row of sums for each row, with room for the strip's columns.
                        unsafe {
                            let block = Block {
                                k: slots.len(),
                                a: group.add((i - start) * read.row),
                                a_row: read.row,
                                a_step: read.step,
                                ahead: match read.fetch && first == 0 {
                                    true => read.next,
                                    false => 0,
                                },
                                b: strips.at::<S>(&slots, first),
                                c: to.sums.add(i * to.row + first),
                                c_row: to.row,
                                add,
                            };
                            let rows = height.min(rows.end - i);
                            match pairs {
                                true => block.of_pairs(rows, width / S::LANES),
                                false => block.of_numbers(s, rows, width / S::LANES),
                            }
                        }
                    }
                }
            }
            add = true;
        }
        if let Some(scale) = scale.filter(|&scale| scale != 1.0) {
            let width = strips.rows().len().next_multiple_of(S::LANES);
            for i in 0..to.rows.len() {
                for j in (0..width).step_by(S::LANES) {
                    // SAFETY: the row has `width` sums, all of which are written above.
                    unsafe {
                        let p = to.sums.add(i * to.row + j);
                        s.store_f32(p, s.mul(s.load_f32(p), s.splat(scale)));
                    }
                }
            }
        }
    }
}
