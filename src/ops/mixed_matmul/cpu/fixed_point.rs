//! Rows of x as fixed-point numbers: 24-bit integers with a scale for every few columns.
//!
//! A block of columns shares one scale, `x ≈ scale · q` with `|q| ≤ 127 · 2¹⁶`: the largest |x| of the block has all 24 bits.
//! The error, half a scale at most, is what f32 loses too when it adds a number to the largest one. The integers' bytes lie as
//! [`ActivationBytes`] says. Beside them:
//!
//! ```text
//! row of x              │ record                        │ record                        │ ...
//! scales                │ block        │ block          │ block        │ block          │ ...   one for each block of columns
//! sums, corrections     │ group        │ group          │ group        │ group          │ ...   one for each group of W
//! outliers              a list of (column, value) for each row
//! ```
//!
//! A group is the columns of W that share a scale of W. Where a record has several groups, blocks are groups, as drawn;
//! otherwise blocks are records, of which a group has one or more.
//!
//! Numbers that were rounded to signed bytes before ([`FixedPointRows::of_bytes`]) are integers of one digit, the upper one; blocks
//! then have the scale of their group, which is that of the bytes.
//!
//! **Outliers.** Where a few numbers are so large that the scale they ask for leaves the others too few bits, they are kept
//! apart as f32, and their integers are 0.

use crate::cpu::activation_bytes::{top_digit, ActivationBytes, RecordLayout};
use crate::cpu::byte_simd::MAX_WIDTH;
use crate::cpu::fold::{fold, Fold};
use crate::cpu::parallel;
use crate::cpu::simd::{self, Simd};
use crate::ops::quantize::cpu::{AbsMax, Sums};
use std::ops::Range;

/// The largest integer: its upper digit is 127, so that rounding cannot carry beyond a signed byte.
const MAX_INTEGER: f32 = 127.0 * 65536.0;
/// An integer that is 256 times smaller than the largest has 16 bits left. Numbers above that are outliers where they are few.
const OUTLIER_RATIO: f32 = 256.0;
/// A row may have one outlier for this many columns, and four more. Outliers are multiplied one by one, for every output.
const COLS_PER_OUTLIER: usize = 64;
/// The largest |x| of a row that fixed point suits. The scale of 1e-20 is 1e-27, far above the smallest normal f32, and the
/// sum of 1e10 numbers of 1e28 does not overflow.
const IN_RANGE: Range<f32> = 1e-20..1e28;
/// Columns of the widest record: those of 1-bit codes.
const MAX_RECORD_COLS: usize = 8 * MAX_WIDTH;

/// How the columns of x are divided.
#[derive(Clone, Copy)]
pub struct Columns {
    pub record: RecordLayout,
    pub cols: usize,
    /// Columns with one scale of x, all of one record.
    pub block: usize,
    /// Columns with one scale of W.
    pub group: usize,
    /// The code that is subtracted from all others, see [`CodeValues`](super::code_values::CodeValues).
    pub center: i32,
}

impl Columns {
    /// Scales of a row.
    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(self.block)
    }

    /// Sums of a row, and corrections.
    pub fn groups(&self) -> usize {
        self.cols / self.group
    }
}

pub struct FixedPointRows {
    pub columns: Columns,
    pub bytes: ActivationBytes,
    /// Whether the lower two digits of all integers are 0, and scales those of the upper digit.
    pub has_bytes: bool,
    /// For each row, the scale of each block.
    pub scales: Vec<f32>,
    /// For each row and group, Σ x without the outliers.
    pub sums: Vec<f32>,
    /// For each row and group, `−center · Σ scale · (d₀ + 2⁸·d₁)`. What the center adds to the upper digits is in the headers of
    /// the records, as i32.
    pub corrections: Vec<f32>,
    /// For each row, columns and their numbers.
    pub outliers: Vec<Vec<(usize, f32)>>,
}

impl FixedPointRows {
    /// The rows of x, of `columns.cols` numbers each. `None` if fixed point does not suit one of them: if all its numbers are
    /// tiny, if it has many outliers, or if it has NaN, ∞ or numbers whose sum may overflow.
    pub fn new(x: &[f32], columns: Columns) -> Option<Self> {
        let cols = columns.cols;
        let mut fixed = FixedPointRows::zeros(x.len() / cols, columns);
        let rows = fixed.rows_mut().zip(x.chunks_exact(cols));
        let mut rows: Vec<_> = rows.map(|(row, x)| (row, x, false)).collect();
        parallel::each(&mut rows, 4 * cols, |(row, x, suits)| {
            let mut largest = 0.0;
            simd::dispatch(Encode {
                row,
                x,
                largest: &mut largest,
            });
            let few_outliers = row.outliers.len() <= 4 + cols / COLS_PER_OUTLIER;
            let in_range = largest == 0.0 || IN_RANGE.contains(&largest);
            *suits = few_outliers && in_range;
        });
        let all_suit = rows.iter().all(|(.., suits)| *suits);
        all_suit.then_some(fixed)
    }

    /// Rows of signed bytes, of which each group has its scale. `None` where a scale is NaN or so large that sums might overflow.
    pub fn of_bytes(integers: &[u8], scales: &[f32], columns: Columns) -> Option<Self> {
        let (cols, groups) = (columns.cols, columns.groups());
        if !scales.iter().all(|scale| (0.0..1e26).contains(scale)) {
            return None;
        }
        let mut fixed = FixedPointRows::zeros(integers.len() / cols, columns);
        fixed.has_bytes = true;
        let rows = fixed.rows_mut().zip(integers.chunks_exact(cols));
        let mut rows: Vec<_> = rows.zip(scales.chunks_exact(groups)).collect();
        parallel::each(&mut rows, cols, |((row, integers), scales)| {
            row.write_bytes(integers, scales)
        });
        Some(fixed)
    }

    fn zeros(rows: usize, columns: Columns) -> Self {
        let (blocks, groups) = (columns.blocks(), columns.groups());
        FixedPointRows {
            columns,
            bytes: ActivationBytes::zeros(columns.record, rows, columns.cols),
            has_bytes: false,
            scales: vec![0.0; rows * blocks],
            sums: vec![0.0; rows * groups],
            corrections: vec![0.0; rows * groups],
            outliers: vec![Vec::new(); rows],
        }
    }

    fn rows_mut(&mut self) -> impl Iterator<Item = Row<'_>> {
        let columns = self.columns;
        let (blocks, groups) = (columns.blocks(), columns.groups());
        let scales = self.scales.chunks_exact_mut(blocks);
        let sums = self.sums.chunks_exact_mut(groups);
        let corrections = self.corrections.chunks_exact_mut(groups);
        let numbers = scales.zip(sums.zip(corrections));
        let rows = self.bytes.rows_mut().zip(numbers.zip(&mut self.outliers));
        rows.map(
            move |(bytes, ((scales, (sums, corrections)), outliers))| Row {
                columns,
                bytes,
                scales,
                sums,
                corrections,
                outliers,
            },
        )
    }
}

/// The places that the encoding of a row of x goes to.
struct Row<'a> {
    columns: Columns,
    bytes: &'a mut [u8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    corrections: &'a mut [f32],
    outliers: &'a mut Vec<(usize, f32)>,
}

struct Encode<'a, 'b> {
    row: &'a mut Row<'b>,
    x: &'a [f32],
    /// The largest |x| that is no outlier, ∞ where a number is not finite.
    largest: &'a mut f32,
}

impl simd::Kernel for Encode<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        *self.largest = self.row.encode(s, self.x);
    }
}

impl Row<'_> {
    /// Returns the largest |x| that is no outlier.
    #[inline(always)]
    fn encode<S: Simd>(&mut self, s: S, x: &[f32]) -> f32 {
        let Columns {
            record,
            block,
            group,
            center,
            ..
        } = self.columns;
        let mut largest = 0f32;
        // The sums of the current group are in f64, so that they are rounded once and not for each block.
        let mut current = GroupSums::default();
        for (n, from) in x.chunks(record.cols()).enumerate() {
            let mut x = [0f32; MAX_RECORD_COLS];
            x[..from.len()].copy_from_slice(from);
            let mut integers = [0i32; MAX_RECORD_COLS];
            for start in (0..from.len()).step_by(block) {
                let x = &mut x[start..from.len().min(start + block)];
                let col = n * record.cols() + start;
                let (max, sum) = self.take_outliers(s, x, col);
                largest = largest.max(max);
                // A block of smaller numbers has a scale that is not a normal f32. It is left at 0: `new` accepts it only
                // beside numbers that are larger by many orders.
                if !(f32::MIN_POSITIVE * MAX_INTEGER..f32::INFINITY).contains(&max) {
                    continue;
                }
                let scale = max / MAX_INTEGER;
                self.scales[col / block] = scale;
                let factor = MAX_INTEGER / max;
                let integers = &mut integers[start..start + x.len()];
                for (integer, x) in integers.iter_mut().zip(x) {
                    // SAFETY: |x| ≤ max < ∞, so the product is at most MAX_INTEGER but for a rounding, which fits an i32.
                    *integer = unsafe { (*x * factor).round_ties_even().to_int_unchecked() };
                }
                if current.group != col / group {
                    self.end_group(&current);
                    current = GroupSums {
                        group: col / group,
                        ..GroupSums::default()
                    };
                }
                let low: i32 = integers.iter().map(|i| i - (top_digit(*i) << 16)).sum();
                current.x += f64::from(sum);
                current.low_digits += f64::from(scale) * f64::from(low);
            }
            self.write_record(n, &integers, center);
        }
        self.end_group(&current);
        largest
    }

    /// Writes record `n`.
    #[inline(always)]
    fn write_record(&mut self, n: usize, integers: &[i32; MAX_RECORD_COLS], center: i32) {
        let record = self.columns.record;
        let bytes = &mut self.bytes[n * record.bytes()..][..record.bytes()];
        let integers = &integers[..record.cols()];
        match record.codes_per_byte {
            8 => record.write_24_bits::<8>(integers, center, bytes),
            4 => record.write_24_bits::<4>(integers, center, bytes),
            2 => record.write_24_bits::<2>(integers, center, bytes),
            _ => record.write_24_bits::<1>(integers, center, bytes),
        }
    }

    /// Writes a row of signed bytes with a scale for each group.
    fn write_bytes(&mut self, row: &[u8], scales: &[f32]) {
        let Columns { block, group, .. } = self.columns;
        for (n, from) in row.chunks(self.columns.record.cols()).enumerate() {
            let mut integers = [0i32; MAX_RECORD_COLS];
            for (integer, &byte) in integers.iter_mut().zip(from) {
                *integer = i32::from(byte as i8) << 16;
            }
            self.write_record(n, &integers, self.columns.center);
        }
        for (n, scale) in self.scales.iter_mut().enumerate() {
            *scale = scales[n * block / group];
        }
        let groups = row.chunks_exact(group).zip(scales);
        for (sum, (integers, scale)) in self.sums.iter_mut().zip(groups) {
            let integers: i32 = integers.iter().map(|&byte| i32::from(byte as i8)).sum();
            *sum = scale * integers as f32;
        }
    }

    #[inline(always)]
    fn end_group(&mut self, sums: &GroupSums) {
        self.sums[sums.group] = sums.x as f32;
        self.corrections[sums.group] = (-f64::from(self.columns.center) * sums.low_digits) as f32;
    }

    /// The largest |x| of a block and Σ x, without the outliers, which are replaced by 0. `col` is the first column.
    #[inline(always)]
    fn take_outliers<S: Simd>(&mut self, s: S, x: &mut [f32], col: usize) -> (f32, f32) {
        let (first, n) = (x[0], x.len());
        // SAFETY: x has n numbers.
        let [max] = unsafe { fold(s, AbsMax { first }, [x.as_ptr()], n) };
        let threshold = max / OUTLIER_RATIO;
        // SAFETY: x has n numbers.
        let [large, small] = unsafe { fold(s, SplitAt(threshold), [x.as_ptr()], n) };
        let max = match max < f32::INFINITY && are_outliers(large as usize, small, n) {
            true => self.move_outliers(x, col),
            false => max,
        };
        // SAFETY: x has n numbers.
        let [_, sum] = unsafe { fold(s, Sums, [x.as_ptr()], n) };
        (max, sum)
    }

    /// Moves outliers to their list until no number is one; the largest |x| that stays. Rare, and so not inlined.
    #[inline(never)]
    fn move_outliers(&mut self, x: &mut [f32], col: usize) -> f32 {
        loop {
            let max = x.iter().fold(0f32, |max, x| max.max(x.abs()));
            let is_large = |x: f32| x.abs() >= max / OUTLIER_RATIO;
            let large = x.iter().filter(|x| is_large(**x)).count();
            let small: f32 = x.iter().filter(|x| !is_large(**x)).map(|x| x.abs()).sum();
            if !are_outliers(large, small, x.len()) {
                return max;
            }
            for (i, x) in x.iter_mut().enumerate().filter(|(_, x)| is_large(**x)) {
                self.outliers.push((col + i, std::mem::take(x)));
            }
        }
    }
}

/// Σ x and `Σ scale · (d₀ + 2⁸·d₁)` of the columns of a group so far.
#[derive(Default)]
struct GroupSums {
    group: usize,
    x: f64,
    low_digits: f64,
}

/// Counts the numbers whose size is this threshold or more, and sums |x| of those below.
#[derive(Clone, Copy)]
struct SplitAt(f32);

impl Fold<1, 2> for SplitAt {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [large, small]: [S::F; 2], [x]: [S::F; 1]) -> [S::F; 2] {
        let (zero, size) = (s.splat(0.0), s.abs(x));
        let is_small = s.lt(size, s.splat(self.0));
        [
            s.add(large, s.select(is_small, zero, s.splat(1.0))),
            s.add(small, s.select(is_small, size, zero)),
        ]
    }
}

/// Whether `large` of `n` numbers are outliers: a quarter at most, beside others whose |x| sum up to `small` and would be left
/// too few bits.
#[inline(always)]
fn are_outliers(large: usize, small: f32, n: usize) -> bool {
    small > 0.0 && 4 * large <= n
}
