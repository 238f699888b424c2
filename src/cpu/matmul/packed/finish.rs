//! From sums to outputs.

use super::{cost, Sides};
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::matmul::matrix::Matrix;
use crate::cpu::matmul::micro::pack::{self, Elements};
use crate::cpu::matmul::narrow::Narrow;
use crate::cpu::matmul::Product;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::cpu::{alloc, scratch};

/// Writes the product.
///
/// # Safety
/// `out` is valid for writes of the result, rows one behind the other, and nothing else touches it.
pub unsafe fn run<T: Element, O: Element>(p: &Product<T>, out: *mut O) {
    let shape = (p.x.rows, p.w.rows);
    assert!(p.low.is_none_or(|low| (low.u.rows, low.b.rows) == shape));
    assert!(p
        .addend
        .is_none_or(|m| (m.rows, m.cols) == shape && m.has_dense_rows()));
    let mut wide = Vec::new();
    let low = p.low.map(|low| (low.u, low.b.widened_into(&mut wide)));
    if p.x.cols > MOST_TERMS {
        // SAFETY: the same contract, and the shapes are those asserted.
        return unsafe { run_in_parts(p, low, out) };
    }
    let out = Shared::new(out);
    let addend = p
        .addend
        .map(|m| (Shared::new(m.as_ptr().cast_mut()), m.row));
    // SAFETY: the blocks cover the result without overlap, and the caller has room for it; the addend has its shape.
    multiply((p.x, p.w), low, p.scale, &|block: Block| unsafe {
        let addend = addend.map(|(first, row)| {
            let first = first.get().cast_const();
            (first.add(block.row * row + block.output), row)
        });
        let out = out.get().add(block.row * shape.1 + block.output);
        Narrow::new(block.sums, addend, out, shape.1)
            .apart(block.apart)
            .run(p.act)
    });
}

/// The longest sums that are added up in one go. Longer ones are cut into parts of this many terms, because the packed side of a
/// product takes memory for all of its terms.
const MOST_TERMS: usize = 16 << 10;

/// [`run`] for long sums, which are gathered in f32 beside the output.
///
/// # Safety
/// As for it; `low` is the product of low rank in f32, and all shapes are the result's.
unsafe fn run_in_parts<T: Element, O: Element>(
    p: &Product<T>,
    low: Option<(Matrix<f32>, Matrix<f32>)>,
    out: *mut O,
) {
    let (rows, outputs) = (p.x.rows, p.w.rows);
    let out = Shared::new(out);
    // SAFETY: there is a sum for each result, initialised by the first terms; the caller has room for the results, and the
    // addend has their shape. The ranges cover all rows without overlap.
    unsafe {
        let mut memory = alloc::build(rows * outputs, |sums: *mut f32| {
            add_up((p.x, p.w), (sums, outputs), false, p.scale);
            if let Some(low) = low {
                product(sums, outputs, true, low, 1.0);
            }
        });
        let sums = Shared::new(memory.as_mut_ptr());
        parallel::ranges(rows, outputs, 1, |range| {
            let addend = p
                .addend
                .map(|m| (m.as_ptr().add(range.start * m.row), m.row));
            let at = range.start * outputs;
            let block = (sums.get().add(at), range.len(), outputs);
            Narrow::new(block, addend, out.get().add(at), outputs).run(p.act)
        });
    }
}

/// As [`product`], [`MOST_TERMS`] terms of each sum after the others.
///
/// # Safety
/// As for [`product`].
unsafe fn add_up<T: Element>(
    (x, w): (Matrix<T>, Matrix<T>),
    (out, row): (*mut f32, usize),
    add: bool,
    scale: f32,
) {
    for start in (0..x.cols.max(1)).step_by(MOST_TERMS) {
        let terms = start..x.cols.min(start + MOST_TERMS);
        let [x, w] = [x, w].map(|m| m.t().rows(terms.clone()).t());
        // SAFETY: the same contract; from the second terms on the result is initialised.
        unsafe { product(out, row, add || start > 0, (x, w), scale) }
    }
}

/// `out = scale · x·Wᵀ`, added to the numbers in `out` if `add` is set.
///
/// # Safety
/// `out` is valid for writes of x.rows rows of w.rows elements, `row` elements apart, which nothing else touches. If `add` is
/// set, they are initialised.
pub unsafe fn product<T: Element>(
    out: *mut f32,
    row: usize,
    add: bool,
    (x, w): (Matrix<T>, Matrix<T>),
    scale: f32,
) {
    let out = Shared::new(out);
    // SAFETY: the blocks cover the result without overlap, and the caller has room for it, initialised if it is added to.
    multiply((x, w), None, scale, &|block: Block| unsafe {
        let out = out.get().add(block.row * row + block.output);
        let addend = add.then_some((out.cast_const(), row));
        Narrow::new(block.sums, addend, out, row)
            .apart(block.apart)
            .run(Act::Identity)
    });
}

/// `out = x·Wᵀ`, added to the numbers in `out` if `add` is set: one part of a sum of products.
///
/// # Safety
/// `out` is valid for reads and writes of the result, rows one behind the other, and nothing else touches it. If `add` is set,
/// it is initialised.
pub unsafe fn accumulate((x, w): (Matrix<f32>, Matrix<f32>), out: *mut f32, add: bool) {
    // SAFETY: the same contract.
    unsafe { add_up((x, w), (out, w.rows), add, 1.0) }
}

/// A block of finished sums: its first row is row `row` of the result, its first column output `output`.
struct Block {
    /// The first one, how many rows, and how many outputs of each.
    sums: (*mut f32, usize, usize),
    /// From one row of sums to the next.
    apart: usize,
    row: usize,
    output: usize,
}

/// Calls `finish` with the sums of `scale · x·Wᵀ [+ u·Bᵀ]`, block by block. That of x and W is packed for which there is less
/// to do.
fn multiply<T: Element>(
    (x, w): (Matrix<T>, Matrix<T>),
    low: Option<(Matrix<f32>, Matrix<f32>)>,
    scale: f32,
    finish: &(dyn Fn(Block) + Sync),
) {
    // Sums that have the rows of W for theirs have to be transposed.
    let transposition = (x.rows * w.rows).div_ceil(w.cols.max(1)) * super::costs::TRANSPOSE;
    if cost(&x, &w) <= cost(&w, &x) + transposition {
        let main = (x, w);
        return Sides { main, scale, low }.multiply(&|sums| {
            finish(Block {
                sums: (sums.first, sums.rows.len(), sums.cols.len()),
                apart: sums.row,
                row: sums.rows.start,
                output: sums.cols.start,
            })
        });
    }
    let (main, low) = ((w, x), low.map(|(u, b)| (b, u)));
    Sides { main, scale, low }.multiply(&|sums| {
        let outputs = sums.rows.len().next_multiple_of(MAX_LANES);
        scratch::with([outputs * AT_ONCE], |[to]| {
            for start in sums.cols.clone().step_by(AT_ONCE) {
                let rows = start..sums.cols.end.min(start + AT_ONCE);
                let from = sums.first.wrapping_add(start - sums.cols.start);
                dispatch(Transpose {
                    from: (from, sums.row),
                    shape: (sums.rows.len(), rows.len()),
                    to: (to, outputs),
                });
                finish(Block {
                    sums: (to, rows.len(), sums.rows.len()),
                    apart: outputs,
                    row: start,
                    output: sums.rows.start,
                });
            }
        })
    });
}

/// Rows that are transposed at a time: of 96 outputs they are 12 KB.
const AT_ONCE: usize = 32;

/// Writes the columns of a matrix as rows. The maker answers for both, and for room of up to a multiple of MAX_LANES in each row
/// that is written.
struct Transpose {
    /// The first element, and how far apart the rows are.
    from: (*const f32, usize),
    shape: (usize, usize),
    to: (*mut f32, usize),
}

impl Kernel for Transpose {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (first, row) = self.from;
        let (rows, cols) = self.shape;
        // SAFETY: the maker has these rows and columns, and as many rows of as many columns to write to.
        unsafe {
            let source = Elements(|i| first.wrapping_add(i * row));
            pack::strips(s, rows, cols, self.to.1, &source, self.to.0)
        }
    }
}
