//! A GEMV of few rows of x, which multiplies W's codes as integers, packed as they are, and reads them once for every few
//! rows of x.
//!
//! x is written as fixed-point numbers `t · q` ([`FixedPointRows`]). With a code c, the center code m and its value
//! `base` ([`CodeValues`]), and the scale s of W's group, the product of a row of x and a row of W is
//!
//! ```text
//! y = Σ over groups ( s · factor · Σ t · Σ q · (c − m)  +  base · Σ x )  +  Σ over outliers x · w
//! ```
//!
//! `Σ q · c` is summed in i32 ([`dot`]). What m contributes depends on x alone: the part of q's upper digit is the number that
//! these sums start from, the part of the lower digits is in `FixedPointRows::corrections`. How scales meet the sums depends
//! on how long a group is: [`small_groups`], of which a vector of codes has one or more, and [`large_groups`], which have one
//! vector or more.

mod dot;
mod large_groups;
mod small_groups;

use super::code_values::CodeValues;
use super::fixed_point::{Columns, FixedPointRows};
use crate::act::Act;
use crate::cpu::activation_bytes::{record_24_bits, RecordLayout};
use crate::cpu::byte_simd::{dispatch_bytes, width, ByteKernel, ByteSimd};
use crate::cpu::element::Element;
use crate::cpu::matmul::Narrow;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::prefetch;
use crate::cpu::{alloc, scratch};
use crate::ops::quantize::cpu::Decoder;
use crate::quant::{CodeRows, Levels, Packing, ScaleScope};
use large_groups::LargeGroups;
use small_groups::SmallGroups;
use std::ops::Range;

/// Rows of W that are multiplied with a row of x at a time: the bytes of x are loaded once for all of them.
const BLOCK_OUTPUTS: usize = 4;

/// A product of rows of f32 and a packed weight.
pub struct Gemv<'a> {
    weight: &'a Decoder<'a>,
    codes: CodeRows<'a>,
    values: CodeValues,
    outputs: usize,
    x: FixedPointRows,
    groups: GroupKind,
}

enum GroupKind {
    Small(SmallGroups),
    Large(LargeGroups),
}

impl<'a> Gemv<'a> {
    /// `None` where there is no fast path: for codes in base 3, for groups that are neither a whole number of vectors nor a
    /// whole part of one, and for numbers that fixed point does not suit.
    pub fn new(weight: &'a Decoder<'a>, x: &[f32], outputs: usize) -> Option<Self> {
        Self::of_rows(weight, outputs, |columns| FixedPointRows::new(x, columns))
    }

    /// For rows of signed bytes, of which each group of W has its scale.
    pub fn of_bytes(
        weight: &'a Decoder<'a>,
        (integers, scales): (&[u8], &[f32]),
        outputs: usize,
    ) -> Option<Self> {
        let rows = |columns| FixedPointRows::of_bytes(integers, scales, columns);
        Self::of_rows(weight, outputs, rows)
    }

    fn of_rows(
        weight: &'a Decoder<'a>,
        outputs: usize,
        rows: impl FnOnce(Columns) -> Option<FixedPointRows>,
    ) -> Option<Self> {
        let (cols, scheme) = (weight.cols, weight.scheme);
        if scheme.packing != Packing::Bits {
            return None;
        }
        let record = RecordLayout::of_24_bits(width(), scheme.per_byte());
        let group = match scheme.scope {
            ScaleScope::Group(group) => group,
            _ => cols,
        };
        let row_groups = cols.checked_div(group)?;
        let groups = match row_groups > 1 {
            true => SmallGroups::new(record, group).map(GroupKind::Small),
            false => None,
        };
        let whole_vectors = row_groups == 1 || group.is_multiple_of(record.cols());
        let groups = match groups {
            Some(groups) => groups,
            None if whole_vectors => GroupKind::Large(LargeGroups::new(record, group)),
            None => return None,
        };
        let values = CodeValues::new(scheme);
        let columns = Columns {
            record,
            cols,
            block: match groups {
                GroupKind::Small(_) => group,
                GroupKind::Large(_) => record.cols(),
            },
            group,
            center: values.center as i32,
        };
        Some(Gemv {
            weight,
            codes: CodeRows::new(weight.codes, scheme.row_bytes(cols), record.width),
            values,
            outputs,
            x: rows(columns)?,
            groups,
        })
    }

    /// The product, plus bias.
    pub fn multiply<T: Element>(&self, bias: Option<&[T]>) -> Vec<T> {
        let (rows, outputs) = (self.x.bytes.rows(), self.outputs);
        assert!(bias.is_none_or(|bias| bias.len() == outputs));
        // SAFETY: `run` writes every sum, for which the scratch memory has room, and `Narrow` every output.
        unsafe {
            alloc::build(rows * outputs, |out: *mut T| {
                scratch::with([rows * outputs], |[sums]| {
                    self.run(Shared::new(sums));
                    let bias = bias.map(|bias| (bias.as_ptr(), 0));
                    Narrow::new((sums, rows, outputs), bias, out, outputs).run(Act::Identity);
                });
            })
        }
    }

    /// # Safety
    /// `out` is valid for writes of `outputs` numbers for each row of x, and nothing else touches it meanwhile.
    unsafe fn run(&self, out: Shared<f32>) {
        // In the units of `parallel`: four multiplications and additions are a cheap element, 16 is for the sums of an output.
        let cost = (self.weight.cols / 4 + 16) * self.x.bytes.rows();
        parallel::ranges(self.outputs, cost, BLOCK_OUTPUTS, |outputs| {
            // SAFETY: the caller promises room for every output of every row, and the ranges are disjoint.
            unsafe { Tile::new(self, outputs, out) }.run();
        });
    }

    /// The scales of an output's groups, and their offsets.
    #[inline(always)]
    fn group_scales(&self, output: usize) -> GroupScales<'_> {
        let Decoder {
            scheme,
            scales,
            offsets,
            ..
        } = *self.weight;
        let groups = self.x.columns.groups();
        let first = match scheme.scope {
            ScaleScope::Tensor => 0,
            _ => output * groups,
        };
        GroupScales {
            scales: &scales[first..first + groups],
            offsets: match offsets {
                [] => &[],
                _ => &offsets[first..first + groups],
            },
        }
    }

    /// The products of a row's outliers, which are rare: kept out of the loops around it.
    #[inline(never)]
    fn outlier_products(&self, row: usize, output: usize) -> f32 {
        let outliers = self.x.outliers[row].iter();
        outliers
            .map(|&(col, x)| x * self.weight.value(output, col))
            .sum()
    }
}

#[derive(Clone, Copy)]
struct GroupScales<'a> {
    scales: &'a [f32],
    /// Empty for codes without offsets.
    offsets: &'a [f32],
}

/// A vector of floats for each of R rows of x and O rows of W.
type Lanes<B, const R: usize, const O: usize> = [[<B as ByteSimd>::F; O]; R];

/// Some outputs of all rows, by one thread.
struct Tile<'a> {
    gemv: &'a Gemv<'a>,
    outputs: Range<usize>,
    out: Shared<f32>,
}

impl<'a> Tile<'a> {
    /// # Safety
    /// `out` is valid for writes of an f32 for each output of each row of `gemv`, and no other thread writes these outputs.
    unsafe fn new(gemv: &'a Gemv<'a>, outputs: Range<usize>, out: Shared<f32>) -> Self {
        assert!(outputs.end <= gemv.outputs);
        Tile { gemv, outputs, out }
    }

    fn run(self) {
        match self.gemv.weight.scheme.bits() {
            1 => dispatch_bytes(Kernel::<1>(self)),
            2 => dispatch_bytes(Kernel::<2>(self)),
            4 => dispatch_bytes(Kernel::<4>(self)),
            _ => dispatch_bytes(Kernel::<8>(self)),
        }
    }
}

/// A tile of codes of BITS bits.
struct Kernel<'a, const BITS: usize>(Tile<'a>);

impl<const BITS: usize> ByteKernel for Kernel<'_, BITS> {
    #[inline(always)]
    fn run<B: ByteSimd>(self, b: B) {
        assert_eq!(B::WIDTH, self.0.gemv.x.columns.record.width);
        let outputs = self.0.outputs.clone();
        let whole = outputs.start + outputs.len() / BLOCK_OUTPUTS * BLOCK_OUTPUTS;
        for output in (outputs.start..whole).step_by(BLOCK_OUTPUTS) {
            self.all_rows::<B, BLOCK_OUTPUTS>(b, output);
        }
        for output in whole..outputs.end {
            self.all_rows::<B, 1>(b, output);
        }
    }
}

impl<const BITS: usize> Kernel<'_, BITS> {
    /// All rows of x times O rows of W. Two rows of x at a time take two rows of W, for there are registers for four sums; a
    /// single row of W takes one row of x at a time, so that no block is compiled for it alone.
    #[inline(always)]
    fn all_rows<B: ByteSimd, const O: usize>(&self, b: B, output: usize) {
        let rows = self.0.gemv.x.bytes.rows();
        let pairs = if O > 1 { rows / 2 * 2 } else { 0 };
        for row in (0..pairs).step_by(2) {
            for output in (output..output + O).step_by(2) {
                self.block::<B, 2, 2>(b, row, output);
            }
        }
        for row in pairs..rows {
            self.block::<B, 1, O>(b, row, output);
        }
    }

    /// R rows of x times O rows of W.
    #[inline(always)]
    fn block<B: ByteSimd, const R: usize, const O: usize>(&self, b: B, row: usize, output: usize) {
        let Tile { gemv, out, .. } = &self.0;
        let totals = Block::<B, R, O>::new(b, gemv, row, output).products::<BITS>();
        for (r, totals) in totals.into_iter().enumerate() {
            for (o, total) in totals.into_iter().enumerate() {
                let mut y = b.reduce_add(total);
                if !gemv.x.outliers[row + r].is_empty() {
                    y += gemv.outlier_products(row + r, output + o);
                }
                // SAFETY: `Tile::new` was promised room for every output of every row, and that the tile's outputs are this
                // thread's. x has row + r, which the index above has checked, and output + o is one of the tile's outputs,
                // because `run` takes O of them only where the tile has O more.
                unsafe { *out.get().add((row + r) * gemv.outputs + output + o) = y };
            }
        }
    }
}

/// R rows of x and O rows of W that are multiplied with each other.
struct Block<'a, B, const R: usize, const O: usize> {
    b: B,
    gemv: &'a Gemv<'a>,
    /// The first of the rows of x.
    row: usize,
    /// Its records; those of the other rows follow.
    x: *const u8,
    codes: [*const u8; O],
    scales: [GroupScales<'a>; O],
}

impl<'a, B: ByteSimd, const R: usize, const O: usize> Block<'a, B, R, O> {
    #[inline(always)]
    fn new(b: B, gemv: &'a Gemv<'a>, row: usize, output: usize) -> Self {
        assert!(row + R <= gemv.x.bytes.rows());
        Block {
            b,
            gemv,
            row,
            x: gemv.x.bytes.row(row),
            codes: std::array::from_fn(|o| gemv.codes.row(output + o)),
            scales: std::array::from_fn(|o| gemv.group_scales(output + o)),
        }
    }

    /// The products of the rows of x and of W; their lanes are still to be added up.
    #[inline(always)]
    fn products<const BITS: usize>(&self) -> Lanes<B, R, O> {
        // Chosen outside of all loops: sums stay in registers in a loop without a branch.
        match (&self.gemv.groups, self.gemv.x.has_bytes) {
            (GroupKind::Small(kind), false) => self.small_groups::<BITS, 0>(kind),
            (GroupKind::Small(kind), true) => self.small_groups::<BITS, 2>(kind),
            (GroupKind::Large(kind), false) => self.large_groups::<BITS, 0>(kind),
            (GroupKind::Large(kind), true) => self.large_groups::<BITS, 2>(kind),
        }
    }

    /// The part of `per_group`, numbers for each group of each row of x, that is about row r, from group `first` on.
    #[inline(always)]
    fn groups_of_row<'v>(&self, per_group: &'v [f32], r: usize, first: usize) -> &'v [f32] {
        let groups = self.gemv.x.columns.groups();
        &per_group[(self.row + r) * groups..(self.row + r + 1) * groups][first..]
    }

    /// Adds `base · Σ x` and the center's part of the lower digits, of as many groups as lanes from `first` on.
    #[inline(always)]
    fn add_sums(&self, first: usize, totals: &mut Lanes<B, R, O>) {
        let (b, Gemv { values, x, .. }) = (self.b, self.gemv);
        let groups = x.columns.groups();
        for (o, GroupScales { scales, offsets }) in self.scales.iter().enumerate() {
            let (scales, offsets) = (&scales[first..], offsets.get(first..).unwrap_or(&[]));
            // The scales of the next block of outputs are too far away for the CPU to predict.
            prefetch(scales.as_ptr().wrapping_add(BLOCK_OUTPUTS * groups));
            prefetch(offsets.as_ptr().wrapping_add(BLOCK_OUTPUTS * groups));
            let scale = b.load_first(scales);
            let mut base = b.mul(b.splat(values.a), scale);
            if !offsets.is_empty() {
                let offset = b.load_first(offsets);
                let slope = b.fma(b.splat(values.b), offset, b.splat(values.a));
                base = b.fma(slope, scale, b.mul(b.splat(values.c), offset));
            }
            for (r, totals) in totals.iter_mut().enumerate() {
                let sums = b.load_first(self.groups_of_row(&x.sums, r, first));
                // Where the center is not 0, the factor of codes is 1.
                let corrections = b.load_first(self.groups_of_row(&x.corrections, r, first));
                totals[o] = b.fma(sums, base, b.fma(corrections, scale, totals[o]));
            }
        }
    }

    /// Adds the products of a vector of codes and its record of x, times `scales`. x has the digits from LOWEST on.
    ///
    /// # Safety
    /// The rows of x have this record.
    #[inline(always)]
    unsafe fn add_vector<const BITS: usize, const LOWEST: usize>(
        &self,
        record: usize,
        scales: Lanes<B, R, O>,
        sums: &mut Lanes<B, R, O>,
    ) {
        let b = self.b;
        let Gemv {
            weight, codes, x, ..
        } = self.gemv;
        let signed = BITS == 8 && weight.scheme.levels == Levels::Int8;
        // Rows of W are too short for the CPU to predict where the next ones are.
        let ahead = BLOCK_OUTPUTS * codes.row_bytes();
        let (record_bytes, row_bytes) = (record_24_bits(B::WIDTH, 8 / BITS), x.bytes.row_bytes());
        // SAFETY: x has R rows from `self.row` on, as `new` has checked, and the caller promises that they have the record.
        // Rows of W have as many vectors as those of x have records, and can be read up to the end of the last one.
        unsafe {
            let bytes = self.x.add(record * record_bytes);
            for o in 0..O {
                let at = self.codes[o].add(record * B::WIDTH);
                let mut v = b.load(at);
                prefetch(at.wrapping_add(ahead));
                if signed {
                    v = b.flip_sign_bits(v);
                }
                for r in 0..R {
                    let bytes = bytes.add(r * row_bytes);
                    let products = dot::products::<B, BITS, LOWEST>(b, v, bytes);
                    sums[r][o] = b.fma(products, scales[r][o], sums[r][o]);
                }
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::guarded_weight::GuardedWeight;
    use super::*;
    use crate::cpu::byte_simd::with_every_isa;
    use crate::quant::Scheme;

    /// Codes, scales and offsets end where a page ends that nothing may be read behind.
    #[test]
    fn nothing_is_read_behind_the_weight() {
        let group = ScaleScope::Group;
        for (levels, scope) in [
            (Levels::Ternary, ScaleScope::Row),
            (Levels::Sign { centred: true }, ScaleScope::Tensor),
            (Levels::Int8, ScaleScope::Row),
            (Levels::Affine { bits: 4 }, group(32)),
            (Levels::Affine { bits: 2 }, group(256)),
            (Levels::ZeroPoint { bits: 8 }, group(32)),
        ] {
            let scheme = Scheme::new(levels, scope);
            for (cols, outputs) in [(256, 1), (256, 7), (768, 5)] {
                let weight = GuardedWeight::new(scheme, outputs, cols);
                let x: Vec<f32> = (0..3 * cols).map(|i| (i as f32 * 0.7).sin()).collect();
                with_every_isa(|isa| {
                    let y = |w: &Decoder| Gemv::new(w, &x, outputs).unwrap().multiply::<f32>(None);
                    let (guarded, copy) = (y(&weight.guarded()), y(&weight.copy()));
                    assert_eq!(guarded, copy, "{isa:?} {scheme:?} {outputs}x{cols}");
                });
            }
        }
    }
}
